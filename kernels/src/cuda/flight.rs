//! Steps on their way: what each brings back, and the number that says it is there. Draws and votes lie side by side in the step's block; its last
//! kernel writes them into the host's memory, the step's number after them, and the host prepares the next step meanwhile.

use super::device::{Device, fault};
use super::ends::VECTOR;
use super::memory::Pinned;
use super::params::Counters;
use super::sampler::{DRAWN_BYTES, sampled};
use super::step::StepBlock;
use crate::attention::SkipCounters;
use crate::backend::{KernelError, StepReport};
use cudarc::driver::CudaContext;
use cudarc::driver::result;
use cudarc::driver::sys::{CUevent, CUevent_flags};
use skip_tables::Phase;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Steps that may be under way.
pub(super) const MOST: usize = 2;

/// How long a wait goes on before the device is asked whether it still runs: a fault leaves the number unwritten.
const ASK: Duration = Duration::from_millis(1);
/// Looks at the number between looks at the clock.
const LOOKS: usize = 64;
/// How long it sleeps between looks, where it does.
const NAP: Duration = Duration::from_micros(50);

/// One step.
struct Flight {
    /// The step's number in the first vector, then votes and draws.
    back: Pinned,
    /// What the number will be.
    number: u32,
    attention: Stopwatch,
    seqs: usize,
    /// It tells votes by gap.
    measures: bool,
    /// Places of sequences that draw, in the order of their rows.
    drawing: Vec<usize>,
    /// Sequences that vote.
    voting: Vec<Voting>,
    /// Offset of the first draw in `back`, behind the number.
    draws: usize,
}

/// Waits until what the device writes last `is_here`. Spins, as the driver's own wait does beside a device with memory of its own; where the
/// processor shares memory and power with it (`naps`), not for long. A fault is found by asking.
fn wait(is_here: impl Fn() -> bool, is_idle: impl Fn() -> Result<bool, KernelError>, naps: bool) -> Result<(), KernelError> {
    let mut asked = Instant::now();
    let mut long = false;
    loop {
        for _ in 0..LOOKS {
            if is_here() {
                return Ok(());
            }
            spin_loop();
        }
        if long && naps {
            std::thread::sleep(NAP);
        }
        if asked.elapsed() >= ASK {
            // In this order: what was done before the device became idle is seen after.
            if is_idle()? && !is_here() {
                return Err(KernelError::Device("a step ended and brought nothing back".into()));
            }
            (long, asked) = (true, Instant::now());
        }
    }
}

/// A sequence that votes.
struct Voting {
    place: usize,
    /// Offset of its counters in `Flight::back`, behind the number.
    at: usize,
    /// Bytes of V that a tile or run left out saves: prefill's tiles are read all the same.
    saves: u64,
}

/// The steps under way, at most [`MOST`].
pub(super) struct Flights {
    ring: [Flight; MOST],
    oldest: usize,
    count: usize,
    number: u32,
}

impl Flights {
    /// For steps of at most `seqs` sequences, a power of two.
    pub fn new(device: &Device, seqs: usize) -> Result<Self, KernelError> {
        // Votes of either phase and draws, each part on whole vectors.
        let bytes = VECTOR + seqs * (2 * size_of::<Counters>() + DRAWN_BYTES) + 3 * VECTOR;
        let flight = || {
            Ok(Flight {
                back: Pinned::new(device, bytes)?,
                number: 0,
                attention: Stopwatch::new(device),
                seqs: 0,
                measures: false,
                drawing: Vec::new(),
                voting: Vec::new(),
                draws: 0,
            })
        };
        Ok(Self { ring: [flight()?, flight()?], oldest: 0, count: 0, number: 0 })
    }

    /// The place of the step that begins or has begun.
    pub fn turn(&self) -> usize {
        (self.oldest + self.count) % MOST
    }

    fn next(&mut self) -> &mut Flight {
        let turn = self.turn();
        &mut self.ring[turn]
    }

    /// Makes a place for the step that begins, and gives its number; one given up before uses the same place.
    pub fn begin(&mut self) -> Result<u32, KernelError> {
        if self.count == MOST {
            return Err(KernelError::Invalid(format!("{MOST} steps are under way")));
        }
        // Of no step the place has had, nor what it began with.
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let flight = self.next();
        flight.attention.reset();
        flight.number = number;
        Ok(number)
    }

    /// The stopwatch of the step that has begun.
    pub fn attention(&mut self) -> &mut Stopwatch {
        &mut self.next().attention
    }

    /// Where the step that has begun brings `bytes` back to.
    pub fn back(&mut self, bytes: usize) -> Result<u64, KernelError> {
        let back = &self.next().back;
        let room = back.bytes_len() - VECTOR;
        if bytes > room {
            return Err(KernelError::Invalid(format!("a step brings back {bytes} bytes, into {room}")));
        }
        Ok(back.device_ptr())
    }

    /// Everything of the step is enqueued, the way back too. `run_bytes`: of V, in a run of keys.
    pub fn launch(&mut self, block: &StepBlock, run_bytes: u64) {
        let flight = self.next();
        let (from, _) = block.back();
        flight.seqs = block.step.seqs.len();
        flight.measures = block.step.measures();
        flight.drawing.clear();
        flight.drawing.extend((0..flight.seqs).filter(|&i| block.step.seqs[i].sample.is_some()));
        flight.voting.clear();
        flight.voting.extend(block.voting().map(|(place, at)| {
            let saves = if block.step.seqs[place].phase == Phase::Decode { run_bytes } else { 0 };
            Voting { place, at, saves }
        }));
        flight.draws = block.layout.drawn.offset() - from;
        self.count += 1;
    }

    /// Waits for the oldest step and gives what it gave; whether it measured. The stream does not record.
    pub fn finish(&mut self, device: &Device, report: &mut StepReport) -> Result<bool, KernelError> {
        if self.count == 0 {
            return Err(KernelError::Invalid("finish: no step is under way".into()));
        }
        let flight = &mut self.ring[self.oldest];
        self.oldest = (self.oldest + 1) % MOST;
        self.count -= 1;
        let began = Instant::now();
        let is_here = || flight.back.word().load(Ordering::Acquire) == flight.number;
        wait(is_here, || device.is_idle(), device.probe.integrated)?;
        report.device_seconds = began.elapsed().as_secs_f64();
        report.attention_seconds = flight.attention.seconds()?;
        report.sampled.clear();
        report.sampled.resize(flight.seqs, None);
        report.counters.clear();
        report.counters.resize(flight.seqs, SkipCounters::default());
        let back = &flight.back.bytes()[VECTOR..];
        for (row, &place) in flight.drawing.iter().enumerate() {
            report.sampled[place] = Some(sampled(&back[flight.draws + row * DRAWN_BYTES..][..DRAWN_BYTES]));
        }
        for &Voting { place, at, saves } in &flight.voting {
            let votes: Counters = bytemuck::pod_read_unaligned(&back[at..][..size_of::<Counters>()]);
            report.counters[place] += SkipCounters { votes: votes.votes, skipped: votes.skipped, bytes_not_read: votes.skipped * saves };
        }
        Ok(flight.measures)
    }
}

/// Times stretches of the stream with events, which lie outside recorded steps: a graph has no place for them that costs nothing.
pub(super) struct Stopwatch {
    pairs: Vec<[CUevent; 2]>,
    used: usize,
    ctx: Arc<CudaContext>,
}

// SAFETY: events may be used from any thread; one owner.
unsafe impl Send for Stopwatch {}

impl Stopwatch {
    fn new(device: &Device) -> Self {
        Self { pairs: Vec::new(), used: 0, ctx: device.ctx.clone() }
    }

    fn reset(&mut self) {
        self.used = 0;
    }

    /// A stretch begins.
    pub fn start(&mut self, device: &Device) -> Result<(), KernelError> {
        if self.used == self.pairs.len() {
            let event = || result::event::create(CUevent_flags::CU_EVENT_DEFAULT).map_err(fault);
            self.pairs.push([event()?, event()?]);
        }
        self.mark(device, 0)
    }

    /// It ends.
    pub fn stop(&mut self, device: &Device) -> Result<(), KernelError> {
        self.mark(device, 1)?;
        self.used += 1;
        Ok(())
    }

    fn mark(&self, device: &Device, which: usize) -> Result<(), KernelError> {
        // SAFETY: the event lives and belongs to the stream's context.
        unsafe { result::event::record(self.pairs[self.used][which], device.stream.cu_stream()) }.map_err(fault)
    }

    /// Seconds of all stretches, once the stream has passed them.
    fn seconds(&self) -> Result<f64, KernelError> {
        let mut sum = 0.0;
        if let Some(&[_, stop]) = self.pairs[..self.used].last() {
            // The stream has passed it, which the event may say a little later than the step's own number.
            // SAFETY: it was recorded.
            unsafe { result::event::synchronize(stop) }.map_err(fault)?;
        }
        for &[start, stop] in &self.pairs[..self.used] {
            // SAFETY: both were recorded.
            sum += f64::from(unsafe { result::event::elapsed(start, stop) }.map_err(fault)?) / 1e3;
        }
        Ok(sum)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        if self.ctx.bind_to_thread().is_ok() {
            for event in self.pairs.drain(..).flatten() {
                // SAFETY: created in `start`.
                let _ = unsafe { result::event::destroy(event) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A wait in which the device, asked for the `after`-th time, `says` this and has `written` the number or not; the times it was asked.
    fn waiting(after: usize, says: Result<bool, &str>, written: bool, naps: bool) -> (Result<(), String>, usize) {
        let (asked, here) = (Cell::new(0), Cell::new(false));
        let is_idle = || {
            asked.set(asked.get() + 1);
            if asked.get() < after {
                return Ok(false);
            }
            here.set(written);
            says.map_err(|fault| KernelError::Device(fault.into()))
        };
        (wait(|| here.get(), is_idle, naps).map_err(|error| error.to_string()), asked.get())
    }

    #[test]
    fn what_is_there_is_not_waited_for() {
        assert!(wait(|| true, || unreachable!("nobody asks"), false).is_ok());
    }

    #[test]
    fn a_step_may_take_long_and_end_as_the_device_is_asked() {
        for naps in [false, true] {
            assert_eq!(waiting(3, Ok(false), true, naps), (Ok(()), 3));
            assert_eq!(waiting(2, Ok(true), true, naps), (Ok(()), 2));
        }
    }

    #[test]
    fn a_fault_ends_the_wait_and_so_does_a_device_with_nothing_left_to_do() {
        for (says, naps, told) in [(Err("a trap"), false, "a trap"), (Err("a trap"), true, "a trap"), (Ok(true), false, "nothing back")] {
            let (ended, asked) = waiting(2, says, false, naps);
            assert_eq!(asked, 2);
            assert!(ended.unwrap_err().contains(told));
        }
    }
}
