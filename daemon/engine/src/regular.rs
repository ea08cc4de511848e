//! Files that others name, opened so that nothing but a file on a disk is ever read: a pipe, a device or one of the kernel's own files may keep its
//! reader for ever, or change with every look.

use rustix::fs::{OFlags, StatFs, fstatfs, statfs};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Asks whether the work at hand is to end; asked often, and from several threads.
pub type Cancelled<'a> = &'a (dyn Fn() -> bool + Sync);

/// Work that nobody ends.
pub const NEVER: Cancelled<'static> = &|| false;

/// File systems that the kernel makes up: proc, sysfs, debugfs, tracefs, securityfs, control groups (twice), bpf, pstore, efivarfs, selinuxfs.
/// Their files call themselves regular, and /proc/kmsg waits for the kernel's next word.
const MADE_UP: [u64; 11] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0x6165_676c,
    0xde5e_81e4,
    0xf97c_ff8c,
];

/// What a symbolic link in the last part of a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// The way to the file: somebody named it.
    Followed,
    /// No file: it was found in a folder.
    Refused,
}

/// Opens a regular file without waiting for anything.
///
/// # Errors
/// `InvalidInput` where it is something else; what the system says.
pub fn open(path: &Path, links: Links) -> io::Result<File> {
    let flags = match links {
        Links::Followed => OFlags::NONBLOCK | OFlags::NOCTTY,
        Links::Refused => OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW,
    };
    // Asked first: opening a device may already do something. Asked again of what was opened, which may be another by then.
    let what = if links == Links::Followed { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) }?;
    if !what.is_file() || is_made_up(&statfs(path)?) {
        return Err(refused());
    }
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() || is_made_up(&fstatfs(&file)?) {
        return Err(refused());
    }
    Ok(file)
}

fn is_made_up(system: &StatFs) -> bool {
    // Of which sign and width the number is differs from machine to machine.
    MADE_UP.contains(&(system.f_type as u64 & 0xffff_ffff))
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// A regular file's bytes.
///
/// # Errors
/// Those of [`open`], and `FileTooLarge` above `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    whole(open(path, Links::Followed)?, most)
}

/// The bytes that are left in a reader.
///
/// # Errors
/// Those of the reader, and `FileTooLarge` above `most` bytes.
pub fn whole(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than the limit of {most} bytes")));
    }
    Ok(bytes)
}

/// A reader that ends with an error when it is told to.
pub struct Watched<'a, R> {
    reader: R,
    cancelled: Cancelled<'a>,
}

impl<'a, R> Watched<'a, R> {
    /// Reads from `reader` until `cancelled` says otherwise.
    pub fn new(reader: R, cancelled: Cancelled<'a>) -> Self {
        Self { reader, cancelled }
    }
}

/// Bytes between two looks at whether it is to end.
const PIECE: usize = 1 << 20;

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.cancelled)() {
            // `Interrupted` would be tried again.
            return Err(io::Error::other("cancelled"));
        }
        let end = buffer.len().min(PIECE);
        self.reader.read(&mut buffer[..end])
    }
}

/// A value of JSON, parsed until `cancelled` says otherwise.
///
/// # Errors
/// It is no such JSON, or it was cancelled.
pub fn json<T: serde::de::DeserializeOwned>(bytes: &[u8], cancelled: Cancelled<'_>) -> serde_json::Result<T> {
    serde_json::from_reader(io::BufReader::with_capacity(1 << 16, Watched::new(bytes, cancelled)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn files_are_read_within_their_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"abcd").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"abcd");
        let error = read(&path, 3).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::FileTooLarge, "larger than the limit of 3 bytes".into()));
        assert_eq!(read(&folder.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_file_on_a_disk_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let others = ["/dev/null", "/dev/zero", "/proc/kmsg", "/proc/self/status", "/proc/self/mem", "/sys/kernel/uevent_seqnum"];
        for other in [pipe.as_path(), &link, folder.path()].into_iter().chain(others.map(Path::new)).filter(|path| path.exists()) {
            let kind = read(other, 1 << 20).unwrap_err().kind();
            // Where this user may not even open it, the system says so.
            assert!(matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied), "{}: {kind}", other.display());
        }
    }

    #[test]
    fn a_link_is_followed_where_it_was_named_and_not_where_it_was_found() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("f"), folder.path().join("l"));
        std::fs::write(&file, b"x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read(&link, 4).unwrap(), b"x");
        assert_eq!(open(&link, Links::Refused).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(open(&file, Links::Refused).is_ok());
    }

    #[test]
    fn a_watched_reader_ends_when_it_is_told_to() {
        let looks = std::sync::atomic::AtomicUsize::new(0);
        let cancelled = || looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 3;
        let error = whole(Watched::new(std::io::repeat(b'x'), &cancelled), 1 << 30).unwrap_err();
        assert_eq!(error.to_string(), "cancelled");
    }
}
