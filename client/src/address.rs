//! Where the daemon's socket is.

use crate::protocol::error::{Error, ErrorKind};
use crate::protocol::names;
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// The sockets to try, in order: `SKIPD_SOCKET` alone where it is set, else the device's and then the user's.
pub(crate) fn candidates(env: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(path) = env(names::SOCKET_ENV) {
        return vec![path];
    }
    let user = env("XDG_RUNTIME_DIR").map(|dir| dir.join(names::USER_SOCKET));
    [Some(PathBuf::from(names::SYSTEM_SOCKET)), user].into_iter().flatten().collect()
}

/// The process environment; an empty variable counts as unset.
pub(crate) fn process_env(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The first socket that accepts a connection.
pub(crate) async fn find(candidates: Vec<PathBuf>) -> Result<PathBuf, Error> {
    let mut tried = Vec::new();
    for path in candidates {
        match UnixStream::connect(&path).await {
            Ok(_) => return Ok(path),
            Err(error) => tried.push((path, error)),
        }
    }
    Err(unreachable(&tried))
}

/// No daemon answered; the message lists what was tried and why each failed.
pub(crate) fn unreachable(tried: &[(PathBuf, io::Error)]) -> Error {
    let list: Vec<String> = tried.iter().map(|(path, error)| format!("{} ({})", path.display(), reason(error))).collect();
    Error::new(ErrorKind::Unreachable, format!("no skipd answers; tried {}", list.join(", ")))
}

/// The same for one path.
pub(crate) fn unreachable_at(path: &Path, error: io::Error) -> Error {
    unreachable(&[(path.to_owned(), error)])
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".into(),
        io::ErrorKind::ConnectionRefused => "nobody listens".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<PathBuf> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
    }

    #[test]
    fn the_variable_is_the_only_candidate_where_set() {
        assert_eq!(candidates(env(&[("SKIPD_SOCKET", "/a"), ("XDG_RUNTIME_DIR", "/b")])), [Path::new("/a")]);
    }

    #[test]
    fn the_device_comes_before_the_user() {
        assert_eq!(
            candidates(env(&[("XDG_RUNTIME_DIR", "/run/user/7")])),
            [Path::new("/run/skipd/skipd.sock"), Path::new("/run/user/7/skipd.sock")]
        );
        assert_eq!(candidates(env(&[])), [Path::new("/run/skipd/skipd.sock")]);
    }

    #[tokio::test]
    async fn a_missing_and_a_dead_socket_are_both_named() {
        let dir = tempfile::tempdir().unwrap();
        let dead = dir.path().join("dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let missing = dir.path().join("missing.sock");
        let error = find(vec![missing.clone(), dead.clone()]).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable);
        assert!(error.message.contains(&format!("{} (no such file)", missing.display())), "{error}");
        assert!(error.message.contains(&format!("{} (nobody listens)", dead.display())), "{error}");
    }
}
