//! What the daemon is told in its configuration, as far as the checks go by it. The daemon itself judges every key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The main file; `skipd.d/*.toml` beside it win.
pub const MAIN: &str = "/etc/skipd/skipd.toml";
/// Where state lies unless told.
const STATE: &str = "/var/lib/skipd";

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// Files that were read.
    pub files: Vec<PathBuf>,
    /// A file that cannot be used, and why.
    pub broken: Option<(PathBuf, String)>,
    /// One that the caller may not read.
    pub closed: Option<PathBuf>,
    /// `model`.
    pub model: Option<PathBuf>,
    /// `backend`.
    pub backend: Option<String>,
    /// `group`.
    pub group: Option<String>,
    /// `state-dir`.
    pub state_dir: Option<PathBuf>,
}

impl Configuration {
    /// That of a root, or of another file than the main one.
    pub fn read(root: &Path, main: Option<&Path>) -> Self {
        let main = main.map_or_else(|| root.join(MAIN.trim_start_matches('/')), Path::to_owned);
        let mut later: Vec<PathBuf> =
            std::fs::read_dir(main.with_extension("d")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        later.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        later.sort();
        let mut found = Self::default();
        for path in std::iter::once(main).chain(later) {
            match std::fs::read_to_string(&path) {
                Ok(text) => found.take(path, &text),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::PermissionDenied => found.closed = Some(path),
                Err(error) => found.broken = Some((path, error.to_string())),
            }
        }
        found
    }

    /// Where state lies.
    pub fn state(&self) -> &Path {
        self.state_dir.as_deref().unwrap_or(Path::new(STATE))
    }

    /// Whose members may generate.
    pub fn members(&self) -> &str {
        self.group.as_deref().unwrap_or("skipd")
    }

    fn take(&mut self, path: PathBuf, text: &str) {
        match text.parse::<toml::Table>() {
            Ok(table) => {
                let text = |key: &str| table.get(key).and_then(toml::Value::as_str).map(str::to_owned);
                let folder = |key: &str| text(key).map(PathBuf::from);
                self.model = folder("model").or_else(|| self.model.take());
                self.state_dir = folder("state-dir").or_else(|| self.state_dir.take());
                self.backend = text("backend").or_else(|| self.backend.take());
                self.group = text("group").or_else(|| self.group.take());
                self.files.push(path);
            }
            Err(error) => self.broken = Some((path, error.message().to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::Tree;

    #[test]
    fn later_files_win_key_by_key() {
        let tree = Tree::empty();
        tree.set(MAIN, "model = \"/a\"\ngroup = \"robots\"\n");
        tree.set("/etc/skipd/skipd.d/10.toml", "model = \"/b\"\nqueue = 3\n");
        tree.set("/etc/skipd/skipd.d/20.toml", "model = \"/c\"\nbackend = \"cuda\"\n");
        tree.set("/etc/skipd/skipd.d/30.txt", "model = \"/d\"\n");
        let found = Configuration::read(tree.root(), None);
        assert_eq!((found.model.as_deref(), found.members(), found.backend.as_deref()), (Some(Path::new("/c")), "robots", Some("cuda")));
        assert_eq!((found.files.len(), found.state()), (3, Path::new(STATE)));
    }

    #[test]
    fn a_file_that_is_no_toml_is_named_and_the_others_count() {
        let tree = Tree::empty();
        tree.set(MAIN, "model = \"/a\"\n");
        tree.set("/etc/skipd/skipd.d/10.toml", "model = \n");
        let found = Configuration::read(tree.root(), None);
        assert!(found.broken.as_ref().unwrap().0.ends_with("skipd.d/10.toml"), "{found:?}");
        assert_eq!(found.model.as_deref(), Some(Path::new("/a")));
    }
}
