//! Replacing a file so that a crash at any moment leaves the old one or the new one, whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where [`replace_file`] keeps the file before: its name with `.bak` added.
pub fn backup_path(path: &Path) -> PathBuf {
    suffixed(path, ".bak")
}

/// Writes a file by temporary file, fsync, rename, fsync of the folder; the permissions of the file before are kept, a new one gets 0644.
/// With `backup`, the file before is kept beside it, written with the same care. A symbolic link is followed, not replaced.
///
/// # Errors
/// What the file system gives; the old file is then still there.
pub fn replace_file(path: &Path, bytes: &[u8], backup: bool) -> io::Result<()> {
    let path = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(e) => return Err(e),
    };
    let permissions = match fs::metadata(&path) {
        Ok(meta) => Some(meta.permissions()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if backup && permissions.is_some() {
        put(&backup_path(&path), &fs::read(&path)?, permissions.clone())?;
    }
    put(&path, bytes, permissions)
}

fn put(path: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let temporary = suffixed(path, &format!(".{}.tmp", std::process::id()));
    let written = write_synced(&temporary, bytes, permissions).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error that matters is already in hand.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn write_synced(path: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    // A temporary file of this process id can only be left over from an earlier process: it goes away first, so that nothing is followed.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_file_before_is_kept_with_its_permissions_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        replace_file(&path, b"one", true).unwrap();
        assert_eq!(names(dir.path()), ["config.json"], "nothing to back up yet");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace_file(&path, b"two", true).unwrap();
        assert_eq!(names(dir.path()), ["config.json", "config.json.bak"]);
        assert_eq!((fs::read(&path).unwrap(), fs::read(backup_path(&path)).unwrap()), (b"two".into(), b"one".into()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "old").unwrap();
        symlink(&real, &link).unwrap();
        replace_file(&link, b"new", false).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
    }

    #[test]
    fn a_folder_that_is_not_there_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing").join("config.json");
        assert_eq!(replace_file(&path, b"x", true).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(names(dir.path()).is_empty());
    }
}
