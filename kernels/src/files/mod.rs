//! Files of weights: mapped for whoever reads them in place, and read in large pieces past the page cache by whoever copies them to a device.

mod direct;
mod reader;

pub use direct::{BLOCK, ReadError};
pub use reader::{Filled, Reader, Reads};

use direct::DirectFile;
use memmap2::{Advice, Mmap, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file of weights, or memory that stands for one.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    map: Mmap,
    /// None: it is memory.
    file: Option<File>,
    /// The file once more, opened for reads past the page cache when the first one comes.
    direct: OnceLock<DirectFile>,
}

impl WeightFile {
    /// Maps a file; nothing of it is read.
    ///
    /// # Errors
    /// The system does not give it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is only read. Checkpoint files are replaced by rename, never written in place, so the bytes stay as they are
        // while the map lives; an administrator who truncates one under a running daemon gets SIGBUS and a restart.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { path: path.to_owned(), map, file: Some(file), direct: OnceLock::new() })
    }

    /// Memory that stands for a file.
    pub fn of_memory(map: Mmap) -> Self {
        Self { path: "memory".into(), map, file: None, direct: OnceLock::new() }
    }

    /// Its name in errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of it, mapped.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Has the system read a range ahead, for whoever is going to read it in place.
    pub fn will_need(&self, range: &Range<usize>) {
        self.advise(self.map.advise_range(Advice::WillNeed, range.start, range.len()));
    }

    /// A range was read in place and is not going to be soon: the process lets go of its pages, the page cache may keep them.
    pub fn release(&self, range: &Range<usize>) {
        if self.file.is_some() {
            // SAFETY: the map is a file's and only read; a page that is used again is the file's again.
            self.advise(unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) });
        }
    }

    /// Lets go of every page, those in the page cache too.
    pub fn forget(&self) {
        self.release(&(0..self.map.len()));
        if let Some(file) = &self.file {
            direct::drop_cached(file, 0..self.map.len() as u64);
        }
    }

    /// Reads a range past the page cache into `buffer`, which begins at a multiple of [`BLOCK`] and has two of them more than the range. Gives the
    /// place of the range in it.
    ///
    /// # Errors
    /// Names the file that could not be read, or has become shorter.
    pub fn read(&self, range: Range<usize>, buffer: &mut [u8]) -> Result<Range<usize>, ReadError> {
        if self.file.is_none() {
            let (from, to) = (self.map.get(range.clone()), buffer.get_mut(..range.len()));
            let (Some(from), Some(to)) = (from, to) else { return Err(ReadError::buffer(&self.path)) };
            to.copy_from_slice(from);
            return Ok(0..range.len());
        }
        let direct = match self.direct.get() {
            Some(direct) => direct,
            None => {
                let opened = DirectFile::open(&self.path).map_err(|source| ReadError::io(&self.path, source))?;
                self.direct.get_or_init(|| opened)
            }
        };
        direct.read(range.start as u64..range.end as u64, buffer)
    }

    /// Whether its reads went past the page cache: not where the file system refuses that, and not before the first.
    pub fn is_direct(&self) -> bool {
        self.direct.get().is_some_and(DirectFile::is_direct)
    }

    /// Advice that is refused costs time, not correctness.
    fn advise(&self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            tracing::debug!(%error, path = %self.path.display(), "advice on pages");
        }
    }
}
