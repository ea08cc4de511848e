//! Every operation on files that the store does, behind one trait: tests put a disk there that fails, stops dead or loses power.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Operations below one folder; every path is relative to it. None follows a symbolic link in its last component, `read` apart.
pub trait Disk {
    /// A file being written.
    type File;

    /// What a file holds, at most `limit` bytes and one more, so that the caller sees that there are more.
    ///
    /// # Errors
    /// What the file system gives.
    fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>>;

    /// Names in a folder, in order.
    ///
    /// # Errors
    /// What the file system gives.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Whether there is a folder.
    ///
    /// # Errors
    /// What the file system gives.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// What the file system gives; `InvalidInput` where it is none.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;

    /// Makes a file that is not there yet.
    ///
    /// # Errors
    /// What the file system gives.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Writes all of a file.
    ///
    /// # Errors
    /// What the file system gives.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;

    /// Returns when what was written is on the medium.
    ///
    /// # Errors
    /// What the file system gives.
    fn sync(&self, file: Self::File) -> io::Result<()>;

    /// Returns when the names in a folder are on the medium.
    ///
    /// # Errors
    /// What the file system gives.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Gives a file, link or folder another name, in place of the file or link that has it.
    ///
    /// # Errors
    /// What the file system gives.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// What the file system gives.
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()>;

    /// Makes a folder.
    ///
    /// # Errors
    /// What the file system gives.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a file or link.
    ///
    /// # Errors
    /// What the file system gives.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    ///
    /// # Errors
    /// What the file system gives.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
}

/// The file system.
///
/// A folder it makes is written to by the group where the folder above passes its group on (set-group-ID): so the updater's user and the daemon's share a
/// store. Files are never written to again, so that the group need only read them.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// The folder `root`, which need not be there yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the folder itself, with those above it.
    ///
    /// # Errors
    /// What the file system gives.
    pub fn make_root(&self) -> io::Result<()> {
        fs::create_dir_all(&self.root)
    }

    /// Keeps every other process that asks from changing the store, until what is returned is dropped; None where another has it.
    ///
    /// # Errors
    /// What the file system gives.
    pub fn lock(&self) -> io::Result<Option<File>> {
        // The folder itself: there is no lock file to leave behind, and a read-only file system allows it.
        let folder = File::open(&self.root)?;
        match rustix::fs::flock(&folder, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(folder)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn at(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl Disk for RealDisk {
    type File = File;

    fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.at(path))?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(self.at(path)) {
            Ok(meta) => Ok(meta.is_dir()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(self.at(path))
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(self.at(path))
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(self.at(path))?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        symlink(target, self.at(path))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let path = self.at(path);
        fs::create_dir(&path)?;
        let mut permissions = fs::metadata(&path)?.permissions();
        if permissions.mode() & 0o2000 != 0 {
            permissions.set_mode(permissions.mode() & 0o7777 | 0o070);
            fs::set_permissions(&path, permissions)?;
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.at(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(self.at(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path());
        let held = disk.lock().unwrap();
        assert!(held.is_some());
        // A lock belongs to the opened file, so a second opening stands for a second process.
        assert!(disk.lock().unwrap().is_none());
        drop(held);
        assert!(disk.lock().unwrap().is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left by locking");
    }

    #[test]
    fn a_folder_is_the_groups_where_the_one_above_passes_its_group_on() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode();
        let disk = RealDisk::new(dir.path());
        disk.make_dir(Path::new("own")).unwrap();
        assert_eq!(mode("own") & 0o020, 0);
        fs::set_permissions(dir.path().join("own"), fs::Permissions::from_mode(0o2770)).unwrap();
        disk.make_dir(Path::new("own/shared")).unwrap();
        assert_eq!(mode("own/shared") & 0o2070, 0o2070);
    }
}
