//! The engine: one thread that owns weights, pages and device, and the handle through which everything reaches it.
//! A step is admit, pick, run, sample, emit, retire; messages are applied between steps, and the loop sleeps when there is nothing to do.

mod control;
mod options;
mod pause;
mod prefixes;
mod routes;
mod run;

pub use control::EngineHandle;
pub use options::{CachePlan, CacheSize, EngineOptions, ModelInfo};
pub use pause::Pause;
pub use prefixes::Pinning;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::decoder::{Decoder, DecoderLimits};
use control::Shared;
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use skip_kernels::files::Reads;
use skip_kernels::ledger::Ledger;
use skip_kernels::{Backend, BackendInfo, KernelError, ScaleTable};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Where an engine stands.
#[derive(Clone, Debug)]
pub enum EngineState {
    /// Weights are being loaded; requests queue.
    Loading {
        /// 0 to 1.
        progress: f32,
    },
    /// Takes and runs requests.
    Ready,
    /// Finishes what it has and takes no more.
    Draining,
    /// Ended by `shutdown`.
    Stopped,
    /// Ended by a fault; the process should end too.
    Failed(Arc<EngineError>),
}

impl EngineState {
    /// The name in status and on the bus.
    pub fn name(&self) -> &'static str {
        match self {
            EngineState::Loading { .. } => "loading",
            EngineState::Ready => "ready",
            EngineState::Draining => "draining",
            EngineState::Stopped => "stopped",
            EngineState::Failed(_) => "failed",
        }
    }

    /// True when nothing will ever run again.
    pub fn is_final(&self) -> bool {
        matches!(self, EngineState::Stopped | EngineState::Failed(_))
    }
}

/// Why an engine ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model could not be loaded.
    #[error("loading failed: {0}")]
    Load(#[from] LoadError),
    /// The device is gone.
    #[error("device fault: {0}")]
    Device(String),
    /// A defect.
    #[error("the engine panicked: {0}")]
    Panic(String),
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No such device, or it refused the weights.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No thread for the engine.
    #[error("no thread for the engine: {0}")]
    Thread(std::io::Error),
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts an engine that loads `checkpoint` onto the backend `backend` makes (in the engine's thread). `name` is the model's in status.
    pub fn start<B, F>(options: EngineOptions, name: impl Into<String>, checkpoint: Arc<Checkpoint>, backend: F) -> EngineHandle
    where
        B: Backend,
        F: FnOnce() -> Result<B, KernelError> + Send + 'static,
    {
        let info = ModelInfo::of(&checkpoint, name);
        Self::start_with(options, info, move |options, cache, progress| {
            let limits = DecoderLimits::new(options, cache);
            Decoder::load(backend()?, &checkpoint, &limits, progress)
        })
    }

    /// Starts an engine over any model: `load` runs in the engine's thread, gets the cache's size, and reports progress from 0 to 1.
    /// Returns at once; the state goes from loading to ready or failed.
    pub fn start_with<M, L>(options: EngineOptions, info: ModelInfo, load: L) -> EngineHandle
    where
        M: StepModel + 'static,
        L: FnOnce(&EngineOptions, &CachePlan, &mut dyn FnMut(f32)) -> Result<M, LoadError> + Send + 'static,
    {
        let cache = CachePlan::new(&options, &info);
        let shared = Arc::new(Shared::new(info, cache, options.queue_limit, options.token_buffer, options.tables.clone()));
        let (control, messages) = mpsc::unbounded_channel();
        let handle = EngineHandle { shared: shared.clone(), control };
        // Forms of answers nest, and what may follow is told on this thread; address space, used as it is needed.
        let thread = std::thread::Builder::new().name("engine".into()).stack_size(16 << 20);
        let spawned = thread.spawn({
            let shared = shared.clone();
            move || run::run(&shared, messages, &options, load)
        });
        if let Err(error) = spawned {
            shared.set_state(EngineState::Failed(Arc::new(LoadError::Thread(error).into())));
        }
        handle
    }
}

/// What the loop needs of a model: the decoder over a backend, or a fake in tests.
pub trait StepModel {
    /// What runs it.
    fn backend(&self) -> BackendInfo;
    /// Puts a table in a slot, for sequences that start from now on.
    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError>;
    /// What was loaded, where it is counted.
    fn loaded(&self) -> Option<Loaded> {
        None
    }
    /// Steps that may be started before the first of them is finished; see [`skip_kernels::Backend::depth`].
    fn depth(&self) -> usize {
        1
    }
    /// Whether the device is still there, asked while no step is under way; see [`skip_kernels::Backend::check`].
    fn check(&mut self) -> Result<(), KernelError> {
        Ok(())
    }
    /// Whether sequences may bring edits of their logits; see [`skip_kernels::Backend::edits_logits`].
    fn edits_logits(&self) -> bool {
        true
    }
    /// Starts a step. `interrupted` is asked between layers; once it says true the step ends with [`KernelError::Aborted`] and has no effect
    /// but on cache slots at and behind each sequence's `start`. A step that was not started is not finished either.
    fn start(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError>;
    /// Waits for the oldest step that was started and not finished, and gives what it gave.
    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError>;

    /// A step from start to finish.
    fn step(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool, report: &mut StepReport) -> Result<(), KernelError> {
        self.start(seqs, interrupted)?;
        self.finish(report)
    }
}

/// Weights on a device, and the memory it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Bytes of weights in the checkpoint's files.
    pub bytes: u64,
    /// Seconds from the first weight to the last.
    pub seconds: f64,
    /// What was read past the page cache, where weights are copied.
    pub reads: Option<Reads>,
    /// What was counted before; None where the backend does not count.
    pub ledger: Option<Ledger>,
}

impl std::fmt::Display for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let rate = |bytes, seconds: f64| megabytes(bytes) / seconds.max(1e-9);
        let Self { bytes, seconds, reads, .. } = self;
        write!(f, "{:.0} MB of weights in {seconds:.2} s, {:.0} MB/s", megabytes(*bytes), rate(*bytes, *seconds))?;
        let Some(reads) = reads else { return Ok(()) };
        let how = if reads.direct { "past the page cache" } else { "through the page cache, as the file system refuses direct reads" };
        write!(f, "; reads alone {:.0} MB/s, {how}", rate(reads.bytes, reads.seconds))
    }
}

#[cfg(test)]
mod tests;
