//! Decode steps as graphs: recorded the second time a kind of step occurs, replayed from then on.
//!
//! Operators only name memory that lives as long as the model, so a step of the same kind issues the same calls. A replayed step checks that:
//! each operator's fingerprint must be the one recorded, else the step is refused rather than answered from another step's calls.

use super::device::{Device, fault};
use crate::backend::KernelError;
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

/// What makes two decode steps the same calls on the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Rows of the launch, padding included.
    pub bucket: usize,
    /// Which of the sequences skip.
    pub skipping: Skipping,
    /// Every row is greedy.
    pub greedy: bool,
    /// Skipping is two launches, scan and gather.
    pub gather: bool,
    /// Some row's logits are edited.
    pub edited: bool,
    /// The step's place among those under way, which names the host memory of both ends. A recording for each costs nothing as the step runs; a
    /// turn that the device counts would be one more read before the inputs, and could come apart from the host's where a step is given up.
    pub turn: usize,
}

impl Key {
    /// The kind alone: what is loaded and planned for one turn is for all.
    fn kind(self) -> Self {
        Self { turn: 0, ..self }
    }
}

/// Which sequences of a phase have a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Skipping {
    None,
    Some,
    All,
}

struct Recorded {
    key: Key,
    graph: CudaGraph,
    calls: Vec<u64>,
}

/// What an operator has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Launch.
    Eager,
    /// Launch; the stream records.
    Recording,
    /// Nothing: the graph at this place has it.
    Replaying(usize),
}

/// The graphs of a backend.
pub(super) struct Graphs {
    /// A few dozen at most.
    recorded: Vec<Recorded>,
    /// Kinds that ran once without a graph: their kernels are loaded and their products planned.
    warm: Vec<Key>,
    key: Option<Key>,
    mode: Mode,
    calls: Vec<u64>,
}

// SAFETY: graphs are used on the engine's thread alone; a backend moves there before it has any.
unsafe impl Send for Graphs {}

impl Graphs {
    pub fn new() -> Self {
        Self { recorded: Vec::new(), warm: Vec::new(), key: None, mode: Mode::Eager, calls: Vec::new() }
    }

    /// Drops a recording that never came to its end: nothing else may be asked of the stream before.
    pub fn give_up(&mut self, device: &Device) {
        if self.mode == Mode::Recording {
            let _ = device.stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
            (self.key, self.mode) = (None, Mode::Eager);
        }
    }

    /// Starts a step of kind `key`, None for one that is not recorded.
    pub fn begin(&mut self, device: &Device, key: Option<Key>) -> Result<(), KernelError> {
        self.give_up(device);
        self.calls.clear();
        self.key = key;
        let place = key.and_then(|key| self.recorded.iter().position(|recorded| recorded.key == key));
        self.mode = match (place, key) {
            (Some(place), _) => Mode::Replaying(place),
            (None, Some(key)) if self.warm.contains(&key.kind()) => Mode::Recording,
            _ => Mode::Eager,
        };
        if self.mode == Mode::Recording {
            device.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(fault)?;
        }
        Ok(())
    }

    /// Forgets what was recorded: memory has moved.
    pub fn clear(&mut self) {
        self.recorded.clear();
        self.warm.clear();
    }

    /// Notes one operator's call; whether it is to launch.
    pub fn call(&mut self, fingerprint: u64) -> Result<bool, KernelError> {
        self.calls.push(fingerprint);
        let Mode::Replaying(place) = self.mode else { return Ok(true) };
        if self.recorded[place].calls.get(self.calls.len() - 1) != Some(&fingerprint) {
            return Err(KernelError::Invalid(format!("operator {} of a recorded step differs", self.calls.len() - 1)));
        }
        Ok(false)
    }

    /// All operators were called: launches what is recorded.
    pub fn finish(&mut self, device: &Device) -> Result<(), KernelError> {
        let Some(key) = self.key.take() else { return Ok(()) };
        match std::mem::replace(&mut self.mode, Mode::Eager) {
            Mode::Eager => self.warm.push(key.kind()),
            Mode::Recording => {
                let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let graph = device.stream.end_capture(flags).map_err(fault)?;
                let graph = graph.ok_or_else(|| KernelError::Device("a recorded step is empty".into()))?;
                graph.launch().map_err(fault)?;
                self.recorded.push(Recorded { key, graph, calls: std::mem::take(&mut self.calls) });
            }
            Mode::Replaying(place) => {
                let recorded = &self.recorded[place];
                if recorded.calls.len() != self.calls.len() {
                    return Err(KernelError::Invalid(format!("{} operators of {}", self.calls.len(), recorded.calls.len())));
                }
                recorded.graph.launch().map_err(fault)?;
            }
        }
        Ok(())
    }
}
