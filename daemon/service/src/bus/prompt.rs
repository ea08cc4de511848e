//! A prompt that comes as a file descriptor: a sealed memory file, or a regular file.

use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat};
use skip_client::{Error, ErrorKind};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Reads a prompt of at most `limit` bytes from the beginning of the file, wherever its position is. Blocks on slow file systems.
///
/// # Errors
/// A kind of file that could block or change its length, a memory file that its sender can still change, too many bytes, no UTF-8.
pub fn read(fd: OwnedFd, limit: usize) -> Result<String, Error> {
    let wrong = |message: String| Error::invalid("prompt", message);
    let unreadable = |error: io::Error| wrong(format!("the file cannot be read: {error}"));
    let stat = fstat(&fd).map_err(|e| unreadable(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(wrong("the descriptor must be of a memory file or a regular file".into()));
    }
    if is_memory_file(&fd) {
        let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        let seals = fcntl_get_seals(&fd).map_err(|e| unreadable(e.into()))?;
        if !seals.contains(needed) {
            return Err(wrong("the memory file must be sealed against shrinking, growing and writing".into()));
        }
    }
    let too_large = || Error::new(ErrorKind::TooLarge, format!("the prompt is longer than {limit} bytes")).at("prompt");
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if size > limit {
        return Err(too_large());
    }
    // A regular file may grow meanwhile: a byte more than was there would be one too many to trust.
    let mut bytes = vec![0; size];
    let file = File::from(fd);
    file.read_exact_at(&mut bytes, 0).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|e| wrong(format!("not UTF-8 from byte {} on", e.utf8_error().valid_up_to())))
}

fn is_memory_file(fd: &OwnedFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|path| path.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
    use std::io::Write;

    const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

    fn memory(bytes: &[u8], seals: SealFlags) -> OwnedFd {
        let mut file = File::from(memfd_create("prompt", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    #[test]
    fn a_sealed_memory_file_is_read_whole_from_its_beginning() {
        assert_eq!(read(memory("grüß dich".as_bytes(), SEALED), 100).unwrap(), "grüß dich");
        assert_eq!(read(memory(b"", SEALED), 0).unwrap(), "");
    }

    #[test]
    fn a_memory_file_that_may_change_is_refused() {
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::SHRINK | SealFlags::GROW] {
            assert!(read(memory(b"x", seals), 100).unwrap_err().message.contains("sealed"));
        }
    }

    #[test]
    fn a_regular_file_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"from a file").unwrap();
        assert_eq!(read(file.into(), 100).unwrap(), "from a file");
    }

    #[test]
    fn size_encoding_and_kind_are_checked() {
        assert_eq!(read(memory(b"four", SEALED), 3).unwrap_err().kind, ErrorKind::TooLarge);
        assert!(read(memory(b"ab\xff", SEALED), 100).unwrap_err().message.contains("byte 2"));
        let (reader, _writer) = io::pipe().unwrap();
        assert!(read(reader.into(), 100).unwrap_err().message.contains("regular file"));
        assert!(read(File::open("/").unwrap().into(), 100).unwrap_err().message.contains("regular file"));
    }
}
