//! Files to documents: folders walked in the order of their names, a bounded part of each file read, every paragraph taken once.

use super::{CorpusError, Kind, Limits, inspect};
use crate::regular::{self, Cancelled, Links};
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Paragraphs of fewer bytes may come again: headings, list items.
const PARAGRAPH: usize = 80;
/// Folders within folders.
const DEPTH: usize = 16;

/// One file's text.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub kind: Kind,
    pub name: String,
    pub text: String,
}

/// What was found.
#[derive(Default)]
pub(super) struct Gathered {
    pub documents: Vec<Document>,
    /// Files of folders that were left out.
    pub skipped: usize,
    seen: HashSet<[u8; 16]>,
    bytes: HashMap<Kind, u64>,
    entries: usize,
}

pub(super) fn gather(paths: &[PathBuf], limits: &Limits, cancelled: Cancelled<'_>) -> Result<Gathered, CorpusError> {
    let mut out = Gathered::default();
    for path in paths {
        let io = |source| CorpusError::Io { path: path.clone(), source };
        if cancelled() {
            return Err(CorpusError::Cancelled);
        }
        if std::fs::metadata(path).map_err(io)?.is_dir() {
            std::fs::read_dir(path).map_err(io)?;
            out.folder(path, limits, 0, cancelled)?;
        } else {
            out.named(path, limits)?;
        }
    }
    Ok(out)
}

impl Gathered {
    /// Bytes of a kind that there is still room for.
    fn room(&self, kind: Kind, limits: &Limits) -> u64 {
        limits.kind_bytes.saturating_sub(self.bytes.get(&kind).copied().unwrap_or(0))
    }

    /// A file that was named must be text; what there is no room for is left out, as of a folder.
    fn named(&mut self, path: &Path, limits: &Limits) -> Result<(), CorpusError> {
        let kind = Kind::of(path).unwrap_or(Kind::Prose);
        let room = self.room(kind, limits);
        let (bytes, cut) = read(path, room, Links::Followed).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => CorpusError::Special { path: path.to_owned() },
            _ => CorpusError::Io { path: path.to_owned(), source },
        })?;
        if room == 0 && cut {
            self.skipped += 1;
            return Ok(());
        }
        let text = inspect::text(bytes, cut).map_err(|refusal| CorpusError::Refused { path: path.to_owned(), refusal })?;
        self.add(kind, path, &text, limits);
        Ok(())
    }

    /// What cannot be read in a folder is left out: permissions and broken links are no reason to calibrate on nothing.
    fn folder(&mut self, path: &Path, limits: &Limits, depth: usize, cancelled: Cancelled<'_>) -> Result<(), CorpusError> {
        let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
        let mut entries: Vec<_> = entries.flatten().take(limits.entries.saturating_sub(self.entries)).collect();
        self.entries += entries.len();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            if cancelled() {
                return Err(CorpusError::Cancelled);
            }
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEPTH => self.folder(&path, limits, depth + 1, cancelled)?,
                // Links are left: what they lead to is elsewhere, or already here.
                Ok(kind) if kind.is_file() => self.file(&path, limits),
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, limits: &Limits) {
        let Some((kind, room)) = Kind::of(path).map(|kind| (kind, self.room(kind, limits))).filter(|(_, room)| *room > 0) else {
            self.skipped += 1;
            return;
        };
        let text = read(path, limits.file_bytes.min(room), Links::Refused).ok().and_then(|(bytes, cut)| inspect::text(bytes, cut).ok());
        let before = self.documents.len();
        // Scripts and C++'s own headers have no ending.
        let code = |text: &String| ["#!", "//", "/*"].iter().any(|mark| text.starts_with(mark));
        let kind = if kind == Kind::Prose && text.as_ref().is_some_and(code) { Kind::Source } else { kind };
        if let Some(text) = text.filter(|text| inspect::letters(text) >= kind.least_letters()) {
            self.add(kind, path, &text, limits);
        }
        self.skipped += usize::from(self.documents.len() == before);
    }

    /// Keeps the paragraphs that no text before has said, as far as there is room for the kind.
    fn add(&mut self, kind: Kind, path: &Path, text: &str, limits: &Limits) {
        let mut kept = String::with_capacity(text.len());
        for paragraph in text.split_inclusive("\n\n") {
            let said = paragraph.trim();
            if said.len() >= PARAGRAPH {
                let digest = Sha256::digest(said);
                let mut key = [0; 16];
                key.copy_from_slice(&digest[..16]);
                if !self.seen.insert(key) {
                    continue;
                }
            }
            kept.push_str(paragraph);
        }
        kept.truncate(kept.floor_char_boundary(usize::try_from(self.room(kind, limits)).unwrap_or(usize::MAX)));
        if kept.trim().is_empty() {
            return;
        }
        kept.truncate(kept.trim_end().len());
        *self.bytes.entry(kind).or_default() += kept.len() as u64;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.documents.push(Document { kind, name, text: kept });
    }
}

/// At most `most` bytes of a regular file, and whether there were more.
fn read(path: &Path, most: u64, links: Links) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    regular::open(path, links)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    let cut = bytes.len() as u64 > most;
    bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    Ok((bytes, cut))
}
