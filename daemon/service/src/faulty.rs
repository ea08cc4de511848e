//! Starting an engine, and for tests one whose device fails or is stuck at a given step (`--inject-fault-at-step` and `--inject-stall-at-step`,
//! hidden options).

use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder::{Decoder, DecoderLimits};
use skip_engine::engine::{Loaded, ModelInfo, StepModel};
use skip_engine::{Engine, EngineHandle, EngineOptions};
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use skip_kernels::{Backend, BackendInfo, KernelError, ScaleTable};
use std::sync::Arc;

/// What a device pretends, and at which step (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pretence {
    /// It fails.
    Fault(u64),
    /// The step never ends.
    Stall(u64),
}

/// Starts an engine on the backend that `backend` makes.
pub fn start<B, F>(options: EngineOptions, name: &str, checkpoint: Arc<Checkpoint>, pretence: Option<Pretence>, backend: F) -> EngineHandle
where
    B: Backend,
    F: FnOnce() -> Result<B, KernelError> + Send + 'static,
{
    let Some(pretence) = pretence else { return Engine::start(options, name, checkpoint, backend) };
    tracing::warn!(?pretence, "a broken device will be pretended");
    let info = ModelInfo::of(&checkpoint, name);
    Engine::start_with(options, info, move |options, cache, progress| {
        let limits = DecoderLimits::new(options, cache);
        Ok(Faulty { model: Decoder::load(backend()?, &checkpoint, &limits, progress)?, pretence, steps: 0 })
    })
}

/// A model that works for some steps.
struct Faulty<M> {
    model: M,
    pretence: Pretence,
    steps: u64,
}

impl<M: StepModel> StepModel for Faulty<M> {
    fn backend(&self) -> BackendInfo {
        self.model.backend()
    }

    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError> {
        self.model.set_table(slot, table)
    }

    fn loaded(&self) -> Option<Loaded> {
        self.model.loaded()
    }

    fn depth(&self) -> usize {
        self.model.depth()
    }

    fn check(&mut self) -> Result<(), KernelError> {
        self.model.check()
    }

    fn edits_logits(&self) -> bool {
        self.model.edits_logits()
    }

    fn start(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        self.model.start(seqs, interrupted)
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        self.steps += 1;
        match self.pretence {
            Pretence::Fault(at) if self.steps == at => Err(KernelError::Device("pretended for a test".into())),
            Pretence::Stall(at) if self.steps == at => loop {
                std::thread::park();
            },
            _ => self.model.finish(report),
        }
    }
}
