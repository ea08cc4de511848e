//! Serving over TCP: an address of this machine alone, and the key that every request must bring.

use super::{ConfigError, invalid};
use crate::files;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Shortest key, in characters.
const SHORTEST_KEY: usize = 16;
/// Longest key, in characters.
const LONGEST_KEY: usize = 256;
/// Longest file of one, with the space around it.
const MOST_BYTES: u64 = 1024;

/// Where HTTP is served over TCP, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// A loopback address; port 0: any that is free.
    pub address: SocketAddr,
    /// What a request must bring.
    pub key: Key,
}

/// A secret that is neither printed nor compared in a time that tells of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Box<[u8]>);

impl Listen {
    /// Both or neither, the address on loopback, the key long enough and readable by few.
    pub(super) fn check(address: Option<&str>, key_file: Option<&Path>) -> Result<Option<Self>, ConfigError> {
        let (address, key_file) = match (address, key_file) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(invalid("--key-file", "is for --listen, which is not given")),
            (Some(_), None) => return Err(invalid("--listen", "takes a key: give --key-file")),
            (Some(address), Some(key_file)) => (address, key_file),
        };
        let parsed: SocketAddr =
            address.parse().map_err(|_| invalid("--listen", &format!("{address:?} is no address and port such as 127.0.0.1:8000")))?;
        if !parsed.ip().is_loopback() {
            return Err(invalid("--listen", &format!("{address} is not a loopback address: 127.0.0.1 and [::1] are")));
        }
        Ok(Some(Self { address: parsed, key: Key::read(key_file)? }))
    }
}

impl Key {
    /// The file's one line.
    fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        // One byte more than is taken: what is longer is no key.
        let bytes = files::read(path, MOST_BYTES + 1).map_err(failed)?;
        let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
        if mode & 0o007 != 0 {
            let reason = format!("{} is open to everybody (mode {:03o}): chmod o= it", path.display(), mode & 0o777);
            return Err(invalid("--key-file", &reason));
        }
        let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() as u64 <= MOST_BYTES);
        text.and_then(|text| Self::parse(text.trim())).ok_or_else(|| {
            let wanted = format!("{SHORTEST_KEY} to {LONGEST_KEY} visible ASCII characters");
            invalid("--key-file", &format!("{} must hold one key of {wanted}", path.display()))
        })
    }

    /// A key that may stand in a header.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fits = (SHORTEST_KEY..=LONGEST_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.as_bytes().into()))
    }

    /// Whether `given` is the key; how long that takes tells its length at most.
    pub fn is(&self, given: &[u8]) -> bool {
        let differing = self.0.iter().zip(given).fold(0, |differing, (a, b)| std::hint::black_box(differing | (a ^ b)));
        self.0.len() == given.len() && differing == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn key_file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn loopback_with_a_key_is_taken() {
        let file = key_file(&format!("{KEY}\n"), 0o640);
        for address in ["127.0.0.1:8000", "[::1]:8000", "127.1.2.3:0"] {
            let listen = Listen::check(Some(address), Some(file.path())).unwrap().unwrap();
            assert!(listen.key.is(KEY.as_bytes()));
            assert!(!format!("{listen:?}").contains(KEY), "a key is not printed");
        }
        assert_eq!(Listen::check(None, None).unwrap(), None);
    }

    #[test]
    fn what_others_could_reach_is_refused_by_name() {
        let file = key_file(KEY, 0o600);
        for address in ["0.0.0.0:8000", "192.168.0.1:8000", "[::]:8000", "[::ffff:127.0.0.1]:8000", "localhost:8000", "127.0.0.1", "8000"] {
            let error = Listen::check(Some(address), Some(file.path())).unwrap_err().to_string();
            assert!(error.starts_with("--listen: ") && error.contains(address), "{error}");
        }
    }

    #[test]
    fn a_key_that_is_missing_short_or_open_is_refused_and_not_shown() {
        let error = Listen::check(Some("127.0.0.1:1"), None).unwrap_err().to_string();
        assert!(error.contains("--key-file"), "{error}");
        assert!(matches!(Listen::check(Some("127.0.0.1:1"), Some(Path::new("/nowhere/key"))), Err(ConfigError::Read { .. })));
        for (text, mode) in [("hunter2hunter2", 0o600), ("hunter2 hunter2 hunter2", 0o600), ("hunter2hunter2hunter2", 0o644), ("", 0o600)] {
            let file = key_file(text, mode);
            let error = Listen::check(Some("127.0.0.1:1"), Some(file.path())).unwrap_err().to_string();
            assert!(error.starts_with("--key-file: ") && !error.contains("hunter2"), "{error}");
        }
        let file = key_file(KEY, 0o600);
        assert!(Listen::check(None, Some(file.path())).is_err(), "a key without an address protects nothing");
    }

    #[test]
    fn what_has_no_end_or_is_no_file_is_no_key() {
        let read = |path: &Path| Listen::check(Some("127.0.0.1:1"), Some(path)).unwrap_err().to_string();
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        for path in [Path::new("/dev/zero"), &pipe, dir.path()] {
            let error = read(path);
            assert!(error.contains("not a regular file") && error.contains(&path.display().to_string()), "{error}");
        }
        for text in [format!("{KEY}{}", " ".repeat(1 << 20)), format!("{}{KEY}", "\n".repeat(1 << 20))] {
            assert!(read(key_file(&text, 0o600).path()).contains("must hold one key"));
        }
    }

    #[test]
    fn only_the_key_is_the_key() {
        let key = Key::parse(KEY).unwrap();
        for wrong in ["", "0", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0", "1123456789abcdef"] {
            assert!(!key.is(wrong.as_bytes()), "{wrong}");
        }
    }
}
