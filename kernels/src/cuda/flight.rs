//! Steps on their way: what each brings back, and the event that says it is there. Draws and votes lie side by side in the step's block, so one
//! copy brings both; it is enqueued behind the step, and the host prepares the next one meanwhile.

use super::device::{Device, fault};
use super::memory::{Passed, Pinned};
use super::sampler::{DRAWN_BYTES, sampled};
use super::step::StepBlock;
use crate::attention::SkipCounters;
use crate::backend::{KernelError, StepReport};
use cudarc::driver::CudaContext;
use cudarc::driver::result;
use cudarc::driver::sys::{CUevent, CUevent_flags};
use skip_tables::Phase;
use std::sync::Arc;
use std::time::Instant;

/// Steps that may be under way.
pub(super) const MOST: usize = 2;

/// One step.
struct Flight {
    back: Pinned,
    done: Passed,
    attention: Stopwatch,
    seqs: usize,
    /// Places of sequences that draw, in the order of their rows.
    drawing: Vec<usize>,
    /// Sequences that vote.
    voting: Vec<Voting>,
    /// Offset of the first draw in `back`.
    draws: usize,
}

/// A sequence that votes.
struct Voting {
    place: usize,
    /// Offset of its counters in `Flight::back`.
    at: usize,
    /// Bytes of V that a tile or run left out saves: prefill's tiles are read all the same.
    saves: u64,
}

/// The steps under way, at most [`MOST`].
pub(super) struct Flights {
    ring: [Flight; MOST],
    oldest: usize,
    count: usize,
}

impl Flights {
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        let flight = || {
            Ok(Flight {
                back: Pinned::new(device, 1 << 14)?,
                done: Passed::new(device)?,
                attention: Stopwatch::new(device),
                seqs: 0,
                drawing: Vec::new(),
                voting: Vec::new(),
                draws: 0,
            })
        };
        Ok(Self { ring: [flight()?, flight()?], oldest: 0, count: 0 })
    }

    fn next(&mut self) -> &mut Flight {
        &mut self.ring[(self.oldest + self.count) % MOST]
    }

    /// Makes a place for the step that begins; one given up before uses the same.
    pub fn begin(&mut self) -> Result<(), KernelError> {
        if self.count == MOST {
            return Err(KernelError::Invalid(format!("{MOST} steps are under way")));
        }
        self.next().attention.reset();
        Ok(())
    }

    /// The stopwatch of the step that has begun.
    pub fn attention(&mut self) -> &mut Stopwatch {
        &mut self.next().attention
    }

    /// Everything of the step is enqueued: enqueues the way back. `run_bytes`: of V, in a run of keys.
    pub fn launch(&mut self, device: &Device, block: &StepBlock, run_bytes: u64) -> Result<(), KernelError> {
        let flight = self.next();
        let (from, bytes) = block.back();
        if flight.back.bytes().len() < bytes {
            // Nothing is on its way into it: its step was finished.
            flight.back = Pinned::new(device, bytes.next_power_of_two())?;
        }
        flight.seqs = block.step.seqs.len();
        flight.drawing.clear();
        flight.drawing.extend((0..flight.seqs).filter(|&i| block.step.seqs[i].sample.is_some()));
        flight.voting.clear();
        flight.voting.extend(block.voting().map(|(place, at)| {
            let saves = if block.step.seqs[place].phase == Phase::Decode { run_bytes } else { 0 };
            Voting { place, at, saves }
        }));
        flight.draws = block.layout.drawn.offset() - from;
        // SAFETY: pinned, and read only once `done` has passed; nobody else uses it until `finish`.
        unsafe { block.download(device, from, &mut flight.back.bytes_mut()[..bytes])? };
        flight.done.record(device)?;
        self.count += 1;
        Ok(())
    }

    /// Waits for the oldest step and gives what it gave.
    pub fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        if self.count == 0 {
            return Err(KernelError::Invalid("finish: no step is under way".into()));
        }
        let flight = &mut self.ring[self.oldest];
        self.oldest = (self.oldest + 1) % MOST;
        self.count -= 1;
        let began = Instant::now();
        flight.done.wait()?;
        report.device_seconds = began.elapsed().as_secs_f64();
        report.attention_seconds = flight.attention.seconds()?;
        report.sampled.clear();
        report.sampled.resize(flight.seqs, None);
        report.counters.clear();
        report.counters.resize(flight.seqs, SkipCounters::default());
        let back = flight.back.bytes();
        for (row, &place) in flight.drawing.iter().enumerate() {
            report.sampled[place] = Some(sampled(&back[flight.draws + row * DRAWN_BYTES..][..DRAWN_BYTES]));
        }
        for &Voting { place, at, saves } in &flight.voting {
            let votes: super::params::Counters = bytemuck::pod_read_unaligned(&back[at..][..size_of::<super::params::Counters>()]);
            report.counters[place] += SkipCounters { votes: votes.votes, skipped: votes.skipped, bytes_not_read: votes.skipped * saves };
        }
        Ok(())
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
