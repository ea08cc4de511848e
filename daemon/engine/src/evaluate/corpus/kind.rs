//! Kinds of text, told by the names of files.

use std::path::Path;

/// A kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Sentences: licences, changelogs, books; what has no other mark.
    Prose,
    /// Text with mark-up: Markdown, reStructuredText, manual pages, TeX.
    Documentation,
    /// Programs.
    Source,
}

const DOCUMENTATION: [&str; 13] = ["md", "markdown", "rst", "adoc", "tex", "texi", "pod", "org", "man", "1", "3", "5", "8"];
const SOURCE: [&str; 28] = [
    "c", "cc", "cpp", "cu", "cuh", "cxx", "go", "h", "hh", "hpp", "java", "jl", "js", "kt", "lua", "m", "php", "pl", "pm", "py", "rb",
    "rs", "scala", "sh", "sql", "swift", "ts", "zig",
];
const PROSE: [&str; 4] = ["", "txt", "text", "debian"];

impl Kind {
    /// All, in the order in which they are used.
    pub const ALL: [Self; 3] = [Self::Prose, Self::Documentation, Self::Source];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prose => "prose",
            Self::Documentation => "documentation",
            Self::Source => "source",
        }
    }

    /// The least share of letters and white space in a folder's file: below it are tables and data (licences have .96, C .75, tables of
    /// Unicode .5). A file that is named may be a log.
    pub(super) fn least_letters(self) -> f64 {
        match self {
            Self::Prose => 0.8,
            Self::Documentation => 0.7,
            Self::Source => 0.6,
        }
    }

    /// What a file named so holds; None for names of which a folder's files are left out: data, pages of mark-up, archives, and Debian's
    /// `copyright`, which are lists of files and names.
    pub(super) fn of(path: &Path) -> Option<Self> {
        if path.file_name().is_some_and(|name| name == "copyright") {
            return None;
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_lowercase();
        let known = |list: &[&str]| list.contains(&extension.as_str());
        if known(&PROSE) {
            Some(Self::Prose)
        } else if known(&DOCUMENTATION) {
            Some(Self::Documentation)
        } else if known(&SOURCE) {
            Some(Self::Source)
        } else {
            None
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
