//! A thread that reads ranges of files into buffers it is handed, one after the other, while its owner does something else with another buffer.

use super::{ReadError, WeightFile};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// A range to be read, and where to.
struct Job<B> {
    file: Arc<WeightFile>,
    range: Range<usize>,
    buffer: B,
}

/// A buffer that comes back.
pub struct Filled<B> {
    /// The buffer.
    pub buffer: B,
    /// Where in it the range lies.
    pub place: Result<Range<usize>, ReadError>,
    direct: bool,
    seconds: f64,
}

/// What was read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads {
    /// Bytes of the ranges.
    pub bytes: u64,
    /// Seconds in which the thread was reading.
    pub seconds: f64,
    /// All of them past the page cache.
    pub direct: bool,
}

/// The thread, and what is on its way to it and back. Ends with its owner.
pub struct Reader<B> {
    // None only while it is dropped.
    jobs: Option<Sender<Job<B>>>,
    filled: Receiver<Filled<B>>,
    thread: Option<JoinHandle<()>>,
    reads: Reads,
}

impl<B: AsMut<[u8]> + Send + 'static> Reader<B> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives none.
    pub fn start() -> io::Result<Self> {
        let (jobs, asked) = channel::<Job<B>>();
        let (done, filled) = channel();
        let read = move || {
            for Job { file, range, mut buffer } in asked {
                let began = Instant::now();
                let place = file.read(range, buffer.as_mut());
                let (direct, seconds) = (file.is_direct(), began.elapsed().as_secs_f64());
                if done.send(Filled { buffer, place, direct, seconds }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("weights".into()).spawn(read)?;
        Ok(Self { jobs: Some(jobs), filled, thread: Some(thread), reads: Reads { direct: true, ..Reads::default() } })
    }

    /// Has a range read; false where the thread is gone, and the buffer with it.
    pub fn read(&self, file: &Arc<WeightFile>, range: Range<usize>, buffer: B) -> bool {
        let job = Job { file: file.clone(), range, buffer };
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Waits for the oldest range that was asked for; None where the thread is gone. Not to be called where none is on its way.
    pub fn filled(&mut self) -> Option<Filled<B>> {
        let filled = self.filled.recv().ok()?;
        if let Ok(place) = &filled.place {
            self.reads.bytes += place.len() as u64;
            self.reads.seconds += filled.seconds;
            self.reads.direct &= filled.direct;
        }
        Some(filled)
    }

    /// What came back so far.
    pub fn reads(&self) -> Reads {
        self.reads
    }
}

impl<B> Drop for Reader<B> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and if it did its owner has seen that nothing came.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::BLOCK;
    use memmap2::MmapMut;
    use std::io::Write;

    const SIZE: usize = 100_000;

    fn buffer() -> MmapMut {
        MmapMut::map_anon(4 * BLOCK).unwrap()
    }

    #[test]
    fn ranges_come_back_in_order_whole_and_counted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..SIZE).map(|i| (i / 3) as u8).collect();
        file.write_all(&content).unwrap();
        let file = Arc::new(WeightFile::open(file.path()).unwrap());
        let mut reader = Reader::start().unwrap();
        let ranges: Vec<Range<usize>> = (0..SIZE).step_by(7000).map(|at| at..(at + 7000).min(SIZE)).collect();
        let mut buffers = vec![buffer(), buffer()];
        let mut asked = ranges.iter();
        for range in asked.by_ref().take(2) {
            assert!(reader.read(&file, range.clone(), buffers.pop().unwrap()));
        }
        for range in &ranges {
            let Filled { buffer, place, .. } = reader.filled().unwrap();
            assert_eq!(buffer[place.unwrap()], content[range.clone()]);
            if let Some(next) = asked.next() {
                assert!(reader.read(&file, next.clone(), buffer));
            }
        }
        let reads = reader.reads();
        assert!(reads.bytes == SIZE as u64 && reads.seconds > 0.0 && reads.direct == file.is_direct(), "{reads:?}");
    }

    #[test]
    fn a_range_that_cannot_be_read_gives_its_buffer_back_and_the_next_is_read() {
        let mut map = buffer();
        map.fill(3);
        let file = Arc::new(WeightFile::of_memory(map.make_read_only().unwrap()));
        let mut reader = Reader::start().unwrap();
        assert!(reader.read(&file, 0..5 * BLOCK, buffer()));
        let failed = reader.filled().unwrap();
        assert!(failed.place.is_err());
        assert!(reader.read(&file, 5..10, failed.buffer));
        let Filled { buffer, place, .. } = reader.filled().unwrap();
        assert_eq!(buffer[place.unwrap()], [3; 5]);
        assert_eq!(reader.reads().bytes, 5);
    }
}
