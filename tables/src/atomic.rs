//! Replacing a file so that a crash at any moment leaves the old one or the new one, whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file by temporary file, fsync, rename, fsync of the folder; the permissions of the file before are kept, a new one gets 0644.
/// A symbolic link is followed, not replaced.
///
/// With `backup`, the file before is kept beside the file itself, written with the same care, and its path is given. The first that is ever
/// replaced is kept as `.bak`, and nothing replaces that: it is the one that somebody brought. Every later one is kept as `.bak.1`, until the next.
///
/// # Errors
/// What the file system gives; the old file is then still there.
pub fn replace_file(path: &Path, bytes: &[u8], backup: bool) -> io::Result<Option<PathBuf>> {
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
    let kept = if backup && permissions.is_some() { Some(keep(&path, permissions.clone())?) } else { None };
    put(&path, bytes, permissions)?;
    Ok(kept)
}

/// Keeps a file beside itself; gives where. One that is kept already, as it is, is not kept twice.
fn keep(path: &Path, permissions: Option<fs::Permissions>) -> io::Result<PathBuf> {
    let (first, before) = (suffixed(path, ".bak"), fs::read(path)?);
    let to = match fs::symlink_metadata(&first) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => first,
        Err(e) => return Err(e),
        // Read only where it can be the same, and is a file.
        Ok(there) if there.is_file() && there.len() == before.len() as u64 && fs::read(&first)? == before => return Ok(first),
        Ok(_) => suffixed(path, ".bak.1"),
    };
    put(&to, &before, permissions)?;
    Ok(to)
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
        assert_eq!(replace_file(&path, b"one", true).unwrap(), None);
        assert_eq!(names(dir.path()), ["config.json"], "nothing to back up yet");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let backup = replace_file(&path, b"two", true).unwrap().unwrap();
        assert_eq!(names(dir.path()), ["config.json", "config.json.bak"]);
        assert_eq!((fs::read(&path).unwrap(), fs::read(backup).unwrap()), (b"two".into(), b"one".into()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn the_first_file_is_never_lost_however_often_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let kept = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        fs::write(&path, "as it came").unwrap();
        for new in ["one", "two", "three"] {
            replace_file(&path, new.as_bytes(), true).unwrap();
        }
        assert_eq!(names(dir.path()), ["config.json", "config.json.bak", "config.json.bak.1"]);
        assert_eq!(
            (kept("config.json.bak"), kept("config.json.bak.1"), kept("config.json")),
            ("as it came".into(), "two".into(), "three".into())
        );
        // Brought back, it is kept already.
        fs::copy(dir.path().join("config.json.bak"), &path).unwrap();
        assert_eq!(replace_file(&path, b"four", true).unwrap(), Some(dir.path().join("config.json.bak")));
        assert_eq!(kept("config.json.bak.1"), "two");
    }

    #[test]
    fn what_a_link_led_to_is_kept_beside_it_and_its_place_told() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, link) = (dir.path().join("blobs"), dir.path().join("config.json"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("4af1"), "old").unwrap();
        symlink(folder.join("4af1"), &link).unwrap();
        let kept = replace_file(&link, b"new", true).unwrap().unwrap();
        assert_eq!(
            (names(&folder), names(dir.path())),
            (vec!["4af1".into(), "4af1.bak".into()], vec!["blobs".into(), "config.json".into()])
        );
        assert_eq!(
            (kept.canonicalize().unwrap(), fs::read(&kept).unwrap()),
            (folder.join("4af1.bak").canonicalize().unwrap(), b"old".into())
        );
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
