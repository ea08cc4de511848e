//! A file that a job's result goes to: whether it can be written is known before hours of work, not behind them.

use crate::failure::Failure;
use std::fs::{File, OpenOptions, metadata, remove_file};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Where a result is to go.
pub struct Saved(PathBuf);

impl Saved {
    /// Tries it: a file that is there stays as it is, and one that is not is not there afterwards either.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn at(path: PathBuf) -> Result<Self, Failure> {
        match try_it(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(Failure::Io(path.display().to_string(), error)),
        }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the text and a line's end.
    ///
    /// # Errors
    /// It cannot be written after all.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        std::fs::write(&self.0, format!("{text}\n")).map_err(|error| Failure::Io(self.0.display().to_string(), error))
    }
}

fn try_it(path: &Path) -> io::Result<()> {
    match metadata(path) {
        Ok(there) if there.is_dir() => Err(io::Error::from(ErrorKind::IsADirectory)),
        // Opening a pipe would wait for its reader.
        Ok(there) if !there.is_file() => Ok(()),
        Ok(_) => OpenOptions::new().append(true).open(path).map(drop),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            File::create_new(path)?;
            remove_file(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written_is_known_before_and_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scores.json");
        let saved = Saved::at(path.clone()).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "old").unwrap();
        Saved::at(path.clone()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        saved.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(saved.path()).unwrap(), "new\n");
    }

    #[test]
    fn a_folder_and_a_place_in_none_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("none/scores.json"), "/proc/scores.json".into(), PathBuf::new()] {
            let failure = Saved::at(path.clone()).err().unwrap();
            assert!(matches!(&failure, Failure::Io(name, _) if *name == path.display().to_string()), "{failure}");
        }
    }
}
