//! A folder that appears whole or not at all: written beside its final place under another name, synced, then renamed.

use crate::ImportError;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder being written; removed again unless committed.
pub(crate) struct Staging {
    target: PathBuf,
    dir: PathBuf,
    /// Holds the advisory lock that keeps a second import out; a stale folder of a killed one is unlocked.
    _lock: File,
    committed: bool,
}

impl Staging {
    /// Makes `.NAME.importing` beside `target`, which must be absent or empty.
    pub fn new(target: &Path) -> Result<Self, ImportError> {
        let name = target.file_name().ok_or_else(|| ImportError::TargetExists { dir: target.to_owned() })?;
        match fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(ImportError::TargetExists { dir: target.to_owned() });
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(ImportError::io(target)(e)),
        }
        let dir = target.with_file_name(format!(".{}.importing", name.to_string_lossy()));
        fs::create_dir_all(&dir).map_err(ImportError::io(&dir))?;
        let lock = File::open(&dir).map_err(ImportError::io(&dir))?;
        lock.try_lock().map_err(|_| ImportError::TargetBusy { dir: target.to_owned() })?;
        for entry in fs::read_dir(&dir).map_err(ImportError::io(&dir))? {
            let path = entry.map_err(ImportError::io(&dir))?.path();
            fs::remove_file(&path).map_err(ImportError::io(&path))?;
        }
        Ok(Self { target: target.to_owned(), dir, _lock: lock, committed: false })
    }

    /// Where a file of that name goes.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a small file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ImportError> {
        let path = self.path(name);
        let mut file = File::create_new(&path).map_err(ImportError::io(&path))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(ImportError::io(&path))
    }

    /// Puts the folder in its place.
    pub fn commit(mut self) -> Result<(), ImportError> {
        self._lock.sync_all().map_err(ImportError::io(&self.dir))?;
        fs::rename(&self.dir, &self.target).map_err(ImportError::io(&self.target))?;
        self.committed = true;
        let parent = match self.target.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        File::open(parent).and_then(|d| d.sync_all()).map_err(ImportError::io(parent))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            // Best effort: what cannot be removed is found and cleared by the next import.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
