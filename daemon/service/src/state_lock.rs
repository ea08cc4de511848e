//! One daemon a state folder: its tables, verdicts and faults are one process's to write.
//! The lock goes with the process, however it ends; the file stays, with the id of who held it last.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The file's name in the folder.
const NAME: &str = "lock";

/// Another process has the state folder.
#[derive(Debug, thiserror::Error)]
#[error("{holder} uses the state folder {folder}: give this one another --state-dir", folder = .folder.display())]
pub struct Held {
    /// The folder.
    pub folder: PathBuf,
    /// Who has it, as far as the file says.
    pub holder: String,
}

/// The lock, given up when dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: Option<File>,
}

impl StateLock {
    /// Takes the lock of `folder`, which is made if it is not there. One that cannot be written holds no state, and needs no lock.
    ///
    /// # Errors
    /// Another process has it.
    pub fn take(folder: &Path) -> Result<Self, Held> {
        let file = match open(folder) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "nothing can be kept in the state folder");
                return Ok(Self { _file: None });
            }
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Held { folder: folder.to_owned(), holder: holder(&file) }),
            Err(error) => tracing::warn!(folder = %folder.display(), %error, "the state folder cannot be locked"),
        }
        if let Err(error) = sign(&file) {
            tracing::debug!(%error, "the lock of the state folder does not say whose it is");
        }
        Ok(Self { _file: Some(file) })
    }
}

fn open(folder: &Path) -> io::Result<File> {
    std::fs::create_dir_all(folder)?;
    // Not truncated: until it is locked it is another's.
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(NAME))
}

fn sign(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &File) -> String {
    let mut text = String::new();
    // Longer than any process id.
    let read = file.take(32).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) if read.is_ok() => format!("process {pid}"),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_is_one_daemon_s_and_the_other_is_told_whose() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let lock = StateLock::take(&folder).unwrap();
        let held = StateLock::take(&folder).unwrap_err().to_string();
        assert!(held.contains(&format!("process {} uses", std::process::id())) && held.contains(&folder.display().to_string()), "{held}");
        drop(lock);
        StateLock::take(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_reason_not_to_serve() {
        let file = tempfile::NamedTempFile::new().unwrap();
        StateLock::take(&file.path().join("state")).unwrap();
    }
}
