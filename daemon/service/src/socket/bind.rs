//! Binds the socket's path. A file left by a dead daemon is replaced; one behind which somebody listens is not.

use rustix::fs::{FlockOperation, Mode, OFlags};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another process answers there.
    #[error("socket taken: another process is listening on {0}")]
    Taken(PathBuf),
    /// Something that is no socket has the name; it is left alone.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// The address that was configured cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// Of `--listen`.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// A bound path, removed when dropped if it is still the one we made.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            // Nobody is left to be told; a stale file is replaced at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds and listens; the file is 0666 because the peer's credentials decide who may do what.
pub fn bind(path: &Path) -> Result<(UnixListener, SocketFile), BindError> {
    let failed = |action| move |source: std::io::Error| BindError::Io { action, path: path.to_owned(), source };
    // Two daemons that start together must not both find the file stale: the folder is locked until we listen.
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("open the folder of")(e.into()))?;
    rustix::fs::flock(folder.as_fd(), FlockOperation::LockExclusive).map_err(|e| failed("lock the folder of")(e.into()))?;
    remove_stale(path)?;
    let listener = UnixListener::bind(path).map_err(failed("bind"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed("set the mode of"))?;
    let inode = std::fs::symlink_metadata(path).map_err(failed("inspect"))?.ino();
    listener.set_nonblocking(true).map_err(failed("set up"))?;
    Ok((listener, SocketFile { path: path.to_owned(), inode }))
}

/// The listener systemd passed, if it passed one.
pub fn inherited() -> Result<Option<UnixListener>, BindError> {
    let failed = |source| BindError::Io { action: "take over", path: PathBuf::from("the inherited socket"), source };
    let Some(listener) = listenfd::ListenFd::from_env().take_unix_listener(0).map_err(failed)? else {
        return Ok(None);
    };
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(Some(listener))
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |action| move |source: std::io::Error| BindError::Io { action, path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("inspect")(e)),
        Ok(meta) if !meta.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed("remove the stale")),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        // Connected, or full, or not for us to connect to: somebody is there.
        Ok(_) | Err(_) => Err(BindError::Taken(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_replaced_and_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the dead listener left its file");
        let (listener, file) = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        drop(listener);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_living_socket_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let living = UnixListener::bind(&path).unwrap();
        let error = bind(&path).unwrap_err();
        assert!(matches!(error, BindError::Taken(_)) && error.to_string().starts_with("socket taken"), "{error}");
        assert!(path.exists());
        drop(living);
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(bind(&path), Err(BindError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn a_folder_or_a_link_in_the_socket_s_place_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, link) = (dir.path().join("folder"), dir.path().join("link"));
        std::fs::create_dir(&folder).unwrap();
        // A link to a dead socket: what it points at may be anybody's.
        let dead = dir.path().join("dead.sock");
        drop(UnixListener::bind(&dead).unwrap());
        std::os::unix::fs::symlink(&dead, &link).unwrap();
        for path in [&folder, &link] {
            assert!(matches!(bind(path), Err(BindError::NotASocket(_))));
        }
        assert!(folder.is_dir() && link.is_symlink() && dead.exists());
    }

    #[test]
    fn a_successor_keeps_its_file_when_the_predecessor_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let (first, first_file) = bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_second, _second_file) = bind(&path).unwrap();
        drop(first);
        drop(first_file);
        assert!(path.exists());
    }
}
