//! Small files that the daemon reads while it starts: whole, within bounds, and only where they are files.

use skip_engine::regular::{self, Links};
use std::io::{self, Read};
use std::path::Path;

/// At most `most` bytes of a regular file. Anything else of that name is refused; a pipe without a writer would be waited for without end.
///
/// # Errors
/// It is no file, or cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    regular::open(path, Links::Followed)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_within_bounds_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"abcdef").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"abcd");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        for other in [pipe.as_path(), folder.path()] {
            assert_eq!(read(other, 4).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", other.display());
        }
    }
}
