//! The table files of a daemon: where they lie, reading them, and writing the persisted one.

use serde_json::Value;
use skip_tables::{Digest, FileError, MAX_BYTES, Notice, Source, TableFile, ToPersist, replace_file};
use skip_updates::{RealDisk, SlotName, View};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the daemon's tables lie.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths {
    /// Mutable state; the persisted table is `tables/persisted.json` in it.
    pub state_dir: PathBuf,
    /// The administrator's file.
    pub admin: PathBuf,
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
}

/// Tables that came over the air.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The tables, and where they lie.
    pub source: Source,
    /// The weights that they are for.
    pub checkpoint: Digest,
}

/// Why a table file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system does not give it.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds something wrong.
    #[error("{path}: {error}")]
    Content {
        /// The file.
        path: PathBuf,
        /// Field and reason.
        error: FileError,
    },
}

impl Paths {
    /// The persisted set-table.
    pub fn persisted(&self) -> PathBuf {
        self.state_dir.join("tables").join("persisted.json")
    }

    /// The checkpoint's config.json.
    pub fn config(&self) -> PathBuf {
        self.checkpoint.join("config.json")
    }

    /// Calibrated tables of a checkpoint whose config.json cannot be written: they go before it. Named by the checkpoint's folder.
    pub fn calibrated(&self) -> PathBuf {
        let folder = self.checkpoint.canonicalize().unwrap_or_else(|_| self.checkpoint.clone());
        let name = Digest::of(folder.as_os_str().as_encoded_bytes()).to_string();
        self.state_dir.join("tables").join(format!("calibrated-{}.json", &name[..16]))
    }

    /// The store of updates.
    pub fn updates(&self) -> PathBuf {
        self.state_dir.join("tables")
    }

    /// The update to use: the one on trial where that is `begun`, else the committed one; and what was found wrong.
    pub fn update(&self, begun: Option<&SlotName>) -> (Option<Update>, Vec<Notice>) {
        let root = self.updates();
        let passed_over = |place: &Path, reason: String| Notice::PassedOver { place: place.display().to_string(), reason };
        if self.state_dir.as_os_str().is_empty() {
            return (None, Vec::new());
        }
        let view = match View::read(&RealDisk::new(&root)) {
            Ok(view) => view,
            Err(error) => return (None, vec![passed_over(&root, error.to_string())]),
        };
        let mut notices: Vec<Notice> = view.problems.iter().map(|problem| passed_over(&root, problem.clone())).collect();
        let trial = view.trial.filter(|slot| Some(&slot.name) == begun);
        let Some(slot) = trial.or(view.active) else { return (None, notices) };
        let path = root.join(&slot.path);
        match TableFile::parse(&slot.tables) {
            Ok(file) => {
                let source = Source { place: format!("{} (update {})", path.display(), slot.name), file };
                (Some(Update { source, checkpoint: slot.entry.checkpoint }), notices)
            }
            Err(error) => {
                notices.push(passed_over(&path, error.to_string()));
                (None, notices)
            }
        }
    }

    /// Where the digest of the weights is remembered, with what tells whether they changed.
    fn digest_cache(&self) -> PathBuf {
        self.state_dir.join("tables").join("checkpoint.sha256")
    }

    /// Digest of the checkpoint's weights: remembered from an earlier start where names, sizes, inodes and times agree, else computed (a second a
    /// gigabyte or so).
    pub fn digest(&self) -> io::Result<Digest> {
        let stamp = stamp(&self.checkpoint)?;
        let cache = self.digest_cache();
        let remembered = std::fs::read_to_string(&cache).ok();
        let known = remembered.as_deref().and_then(|text| text.split_once('\n')).filter(|(_, of)| *of == stamp);
        if let Some(digest) = known.and_then(|(digest, _)| digest.parse().ok()) {
            return Ok(digest);
        }
        let digest = Digest::of_checkpoint(&self.checkpoint)?;
        let kept = create_parent(&cache).and_then(|()| replace_file(&cache, format!("{digest}\n{stamp}").as_bytes(), false));
        if let Err(error) = kept {
            tracing::debug!(%error, "the digest of the weights is not remembered");
        }
        Ok(digest)
    }

    /// Writes phases of the persisted file over what is there.
    pub fn persist(&self, before: Option<&TableFile>, changes: &ToPersist) -> io::Result<TableFile> {
        let mut file = before.cloned().unwrap_or_default();
        // They are not written again.
        file.unread.clear();
        for (phase, setting) in changes {
            *file.phase_mut(*phase) = setting.as_ref().map(|s| s.to_tables()).unwrap_or_default();
        }
        let path = self.persisted();
        create_parent(&path)?;
        let mut text = serde_json::to_string_pretty(&Value::Object(file.to_object()))?;
        text.push('\n');
        replace_file(&path, text.as_bytes(), true)?;
        Ok(file)
    }
}

/// Reads a file of tables; None where there is none.
pub fn read(path: &Path) -> Result<Option<Source>, ReadError> {
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ReadError::Io { path: path.to_owned(), source }),
    };
    match TableFile::parse(&bytes) {
        Ok(file) => Ok(Some(Source { place: path.display().to_string(), file })),
        Err(error) => Err(ReadError::Content { path: path.to_owned(), error }),
    }
}

/// One byte more than is accepted at most, so that the parser says what is wrong with a larger file.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Names, sizes, inodes and change times of the weights, a file a line.
fn stamp(folder: &Path) -> io::Result<String> {
    let mut lines = vec![format!("{}\n", folder.canonicalize()?.display())];
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let meta = std::fs::metadata(&path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            lines.push(format!("{name} {} {} {} {}.{}\n", meta.len(), meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()));
        }
    }
    lines[1..].sort();
    Ok(lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_tables::{Phase, Selection, Setting};

    fn paths(dir: &Path) -> Paths {
        Paths { state_dir: dir.join("state"), admin: dir.join("tables.json"), checkpoint: dir.join("model") }
    }

    #[test]
    fn persisting_a_phase_keeps_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        let setting = |selection| Some(Setting { selection, force: false });
        let file = paths.persist(None, &vec![(Phase::Prefill, setting(Selection::Tier("50%".parse().unwrap())))]).unwrap();
        let file = paths.persist(Some(&file), &vec![(Phase::Decode, setting(Selection::Dense))]).unwrap();
        assert_eq!(read(&paths.persisted()).unwrap().unwrap().file, file);
        let file = paths.persist(Some(&file), &vec![(Phase::Prefill, None)]).unwrap();
        assert!(file.prefill.is_silent() && !file.decode.is_silent());
    }

    #[test]
    fn a_digest_is_remembered_until_the_weights_change() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        std::fs::create_dir(&paths.checkpoint).unwrap();
        let weights = paths.checkpoint.join("model.safetensors");
        std::fs::write(&weights, "one").unwrap();
        assert_eq!(paths.digest().unwrap(), Digest::of(b"one"));
        let cache = paths.digest_cache();
        let text = std::fs::read_to_string(&cache).unwrap();
        std::fs::write(&cache, text.replacen(&Digest::of(b"one").to_string(), &Digest::of(b"planted").to_string(), 1)).unwrap();
        assert_eq!(paths.digest().unwrap(), Digest::of(b"planted"), "taken from the cache");
        std::fs::write(&weights, "other").unwrap();
        assert_eq!(paths.digest().unwrap(), Digest::of(b"other"));
    }

    #[test]
    fn a_broken_file_is_named_and_a_missing_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tables.json");
        assert!(read(&path).unwrap().is_none());
        std::fs::write(&path, "{\"skip_softmax_prefill_scale_table\": [[1, -1]]}").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: skip_softmax_prefill_scale_table: row 0: S is negative (-1)", path.display()));
    }
}
