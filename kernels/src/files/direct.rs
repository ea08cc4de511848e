//! Reads past the page cache (`O_DIRECT`), in whole blocks; where a file system refuses them, reads through it whose pages are given back at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads begin and end at multiples of this: no device in use has larger sectors.
pub const BLOCK: usize = 4096;

/// Why a range of a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system does not give it.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not as long as it was.
    #[error("{}: cut short while it was read: it ends before byte {end}", path.display())]
    CutShort {
        /// The file.
        path: PathBuf,
        /// Where what was asked for ends.
        end: u64,
    },
    /// A buffer that has no room for it, or does not begin at a block; a defect of the caller.
    #[error("{}: read into a buffer that does not fit", path.display())]
    Buffer {
        /// The file.
        path: PathBuf,
    },
}

impl ReadError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        ReadError::Io { path: path.to_owned(), source }
    }

    pub(super) fn buffer(path: &Path) -> Self {
        ReadError::Buffer { path: path.to_owned() }
    }
}

/// A file that is read past the page cache, as far as its file system allows it.
#[derive(Debug)]
pub(super) struct DirectFile {
    path: PathBuf,
    direct: Option<File>,
    cached: File,
    /// The system refused a direct read.
    refused: AtomicBool,
}

impl DirectFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        Ok(Self { path: path.to_owned(), direct: direct.ok(), cached: File::open(path)?, refused: AtomicBool::new(false) })
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.refused.load(Ordering::Relaxed)
    }

    /// Reads `range` into `buffer`; gives its place there.
    pub fn read(&self, range: Range<u64>, buffer: &mut [u8]) -> Result<Range<usize>, ReadError> {
        let start = range.start / BLOCK as u64 * BLOCK as u64;
        let (skipped, length) = ((range.start - start) as usize, (range.end - range.start) as usize);
        let whole = (skipped + length).next_multiple_of(BLOCK);
        let aligned = buffer.as_ptr().addr().is_multiple_of(BLOCK);
        let Some(buffer) = buffer.get_mut(..whole).filter(|_| aligned) else { return Err(ReadError::buffer(&self.path)) };
        let failed = |source| ReadError::io(&self.path, source);
        let mut done = 0;
        if let Some(file) = self.direct.as_ref().filter(|_| self.is_direct()) {
            match fill(file, start, buffer, skipped + length) {
                Ok(read) => done = read,
                // Not this file system, this device's sectors, or not into this memory.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EFAULT | libc::EOPNOTSUPP)) => {
                    tracing::debug!(%error, path = %self.path.display(), "direct reads are refused");
                    self.refused.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        if !self.is_direct() {
            done = fill(&self.cached, start, buffer, skipped + length).map_err(failed)?;
            drop_cached(&self.cached, start..start + done as u64);
        }
        if done < skipped + length {
            return Err(ReadError::CutShort { path: self.path.clone(), end: range.end });
        }
        Ok(skipped..skipped + length)
    }
}

/// Where bytes come from.
trait ReadAt {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

/// Fills `buffer` from `start` on until `enough` bytes are there or the file ends; gives how many are. A read that is interrupted or short goes on.
fn fill(file: &impl ReadAt, start: u64, buffer: &mut [u8], enough: usize) -> io::Result<usize> {
    let mut done = 0;
    while done < enough {
        match file.read_at(&mut buffer[done..], start + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Gives the pages of a range back that nobody has mapped.
pub(super) fn drop_cached(file: &File, range: Range<u64>) {
    let (start, length) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    // SAFETY: only advice, on a descriptor that is open.
    let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), start, length, libc::POSIX_FADV_DONTNEED) };
    if code != 0 {
        tracing::debug!(code, "pages stay in the cache");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::{Mmap, MmapMut};
    use std::cell::RefCell;
    use std::io::Write;

    const SIZE: usize = (3 << 20) + 1234;

    fn content() -> Vec<u8> {
        (0..SIZE).map(|i| (i * 7 + i / 4096) as u8).collect()
    }

    /// A file whose pages are on the disk alone.
    fn file(folder: &Path) -> PathBuf {
        let path = folder.join("weights");
        let mut file = File::create(&path).unwrap();
        file.write_all(&content()).unwrap();
        file.sync_all().unwrap();
        drop_cached(&file, 0..SIZE as u64);
        path
    }

    /// Pages of the file that are in memory.
    fn resident(path: &Path) -> usize {
        // SAFETY: the test's own file.
        let map = unsafe { Mmap::map(&File::open(path).unwrap()) }.unwrap();
        let mut pages = vec![0u8; map.len().div_ceil(BLOCK)];
        // SAFETY: a byte for each page of the map.
        assert_eq!(unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    fn buffer() -> MmapMut {
        MmapMut::map_anon(SIZE.next_multiple_of(BLOCK) + 2 * BLOCK).unwrap()
    }

    /// Ranges at, around and between blocks, at the end, and none.
    fn ranges() -> Vec<Range<usize>> {
        let blocks =
            [0..BLOCK, 1..2, BLOCK - 1..BLOCK + 1, 5000..1 << 20, 1 << 20..2 << 20, SIZE - 1..SIZE, SIZE - 5000..SIZE, 0..SIZE, 77..77];
        blocks.to_vec()
    }

    #[test]
    fn any_range_is_read_past_the_page_cache_or_leaves_nothing_in_it() {
        let memory = Path::new("/dev/shm");
        let folders = [Some(tempfile::tempdir().unwrap()), memory.is_dir().then(|| tempfile::tempdir_in(memory).unwrap())];
        for (folder, refused) in folders.iter().flatten().flat_map(|folder| [(folder, false), (folder, true)]) {
            let path = file(folder.path());
            let on_disk = !folder.path().starts_with(memory);
            assert!(!on_disk || resident(&path) == 0, "the file is in memory before it is read");
            let direct = DirectFile::open(&path).unwrap();
            direct.refused.store(refused, Ordering::Relaxed);
            let (content, mut buffer) = (content(), buffer());
            for range in ranges() {
                let place = direct.read(range.start as u64..range.end as u64, &mut buffer).unwrap();
                assert_eq!(buffer[place], content[range.clone()], "{range:?}");
            }
            drop_cached(&direct.cached, 0..SIZE as u64);
            assert!(!on_disk || resident(&path) == 0, "{} pages are in memory, refused: {refused}", resident(&path));
            assert!(!(refused && direct.is_direct()));
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_named() {
        for refused in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = file(folder.path());
            let direct = DirectFile::open(&path).unwrap();
            direct.refused.store(refused, Ordering::Relaxed);
            let mut buffer = buffer();
            direct.read(0..SIZE as u64, &mut buffer).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
            for range in [9_000..10_001, 0..SIZE as u64, 2 << 20..3 << 20] {
                let error = direct.read(range.clone(), &mut buffer).unwrap_err();
                assert!(matches!(error, ReadError::CutShort { end, .. } if end == range.end), "{error}");
                assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
            }
            assert_eq!(direct.read(9_000..10_000, &mut buffer).unwrap().len(), 1000, "what is still there");
        }
    }

    #[test]
    fn a_buffer_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let direct = DirectFile::open(&file(folder.path())).unwrap();
        let mut buffer = buffer();
        assert!(matches!(direct.read(0..100, &mut buffer[1..]), Err(ReadError::Buffer { .. })), "not at a block");
        assert!(matches!(direct.read(0..5000, &mut buffer[..5000]), Err(ReadError::Buffer { .. })), "no whole blocks");
    }

    /// Gives what the script says: bytes at most, or an error.
    struct Scripted {
        content: Vec<u8>,
        script: RefCell<Vec<io::Result<usize>>>,
    }

    impl ReadAt for Scripted {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            let most = self.script.borrow_mut().pop().unwrap_or(Ok(usize::MAX))?;
            let rest = &self.content[self.content.len().min(offset as usize)..];
            let read = most.min(buffer.len()).min(rest.len());
            buffer[..read].copy_from_slice(&rest[..read]);
            Ok(read)
        }
    }

    #[test]
    fn interrupted_and_short_reads_go_on_and_other_errors_end_them() {
        let read = |script: Vec<io::Result<usize>>| {
            let file = Scripted { content: content(), script: RefCell::new(script) };
            let mut buffer = vec![0; 20_480];
            fill(&file, 4096, &mut buffer, 20_000).map(|done| (done >= 20_000 && buffer[..20_000] == content()[4096..24_096], done))
        };
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        assert_eq!(read(vec![Ok(1), interrupted(), Ok(512), interrupted(), interrupted(), Ok(4096)]).unwrap(), (true, 20_480));
        assert_eq!(read(vec![Ok(0), Ok(4096)]).unwrap(), (false, 4096), "the end of the file");
        assert_eq!(read(vec![Err(io::ErrorKind::PermissionDenied.into()), Ok(4096)]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
