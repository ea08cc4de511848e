//! Bounded reading of files of items, with errors that name the file and the line.

use crate::regular::{self, Cancelled, Links, Watched};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes of one file.
pub(crate) const MAX_FILE: u64 = 512 << 20;
/// Bytes of one line: LongBench's longest context has 1.5 MB.
pub(crate) const MAX_LINE: usize = 16 << 20;
/// Items of one source.
pub(crate) const MAX_ITEMS: usize = 200_000;
/// Tokens that an answer may have.
pub(crate) const MAX_TOKENS: usize = 32_768;
/// Reference answers, stop strings or classes of one item.
pub(crate) const MAX_STRINGS: usize = 1000;

/// Why items could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ItemsError {
    /// A file or folder could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {detail}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// A file as a whole is wrong.
    #[error("{}: {detail}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

impl ItemsError {
    pub(super) fn line(path: &Path, line: usize, detail: impl Into<String>) -> Self {
        Self::Line { path: path.to_owned(), line, detail: detail.into() }
    }

    pub(super) fn file(path: &Path, detail: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), detail: detail.into() }
    }
}

/// A regular file's bytes, at most `most`.
pub(crate) fn bounded(path: &Path, most: u64, cancelled: Cancelled<'_>) -> Result<Vec<u8>, String> {
    let file = regular::open(path, Links::Followed).map_err(|e| e.to_string())?;
    regular::whole(Watched::new(file, cancelled), most).map_err(|e| e.to_string())
}

/// A regular file, to be read line by line.
pub(super) fn open<'a>(path: &Path, cancelled: Cancelled<'a>) -> Result<impl BufRead + use<'a>, ItemsError> {
    let file = regular::open(path, Links::Followed).map_err(|source| ItemsError::Io { path: path.to_owned(), source })?;
    Ok(BufReader::new(Watched::new(file, cancelled).take(MAX_FILE)))
}

/// Calls `each` with the number and text of every line that is not blank.
pub(super) fn lines(
    path: &Path,
    mut reader: impl BufRead,
    mut each: impl FnMut(usize, &str) -> Result<(), ItemsError>,
) -> Result<(), ItemsError> {
    let mut line = Vec::new();
    let mut bytes = 0u64;
    for number in 1.. {
        line.clear();
        let read = (&mut reader).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|source| ItemsError::Io { path: path.to_owned(), source })?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        if line.len() > MAX_LINE {
            return Err(ItemsError::line(path, number, format!("longer than the limit of {MAX_LINE} bytes")));
        }
        if bytes >= MAX_FILE {
            return Err(ItemsError::file(path, format!("larger than the limit of {MAX_FILE} bytes")));
        }
        let text = std::str::from_utf8(&line).map_err(|_| ItemsError::line(path, number, "not UTF-8"))?;
        // Editors of some systems put a mark in front.
        let text = if number == 1 { text.trim_start_matches('\u{feff}') } else { text };
        if !text.trim().is_empty() {
            each(number, text.trim())?;
        }
    }
    Ok(())
}

/// The last part of a path, for ids.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Files of a folder whose names end so, in the order of their names.
pub(super) fn files(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, ItemsError> {
    let io = |source| ItemsError::Io { path: folder.to_owned(), source };
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)?.take(100_000) {
        let path = entry.map_err(io)?.path();
        if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) && path.is_file() {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}
