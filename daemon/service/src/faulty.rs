//! Starting an engine, and for tests one whose device fails at a given step (`--inject-fault-at-step`, a hidden option).

use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder::{Decoder, DecoderLimits};
use skip_engine::engine::{Loaded, ModelInfo, StepModel};
use skip_engine::{Engine, EngineHandle, EngineOptions};
use skip_kernels::backend::{SeqStep, StepReport, TableSlot};
use skip_kernels::{Backend, BackendInfo, KernelError, ScaleTable};
use std::sync::Arc;

/// Starts an engine on the backend that `backend` makes; `fault_at`: the step (from 1) at which its device fails.
pub fn start<B, F>(options: EngineOptions, name: &str, checkpoint: Arc<Checkpoint>, fault_at: Option<u64>, backend: F) -> EngineHandle
where
    B: Backend,
    F: FnOnce() -> Result<B, KernelError> + Send + 'static,
{
    let Some(at) = fault_at else { return Engine::start(options, name, checkpoint, backend) };
    tracing::warn!(step = at, "a device fault will be pretended");
    let info = ModelInfo::of(&checkpoint, name);
    Engine::start_with(options, info, move |options, cache, progress| {
        let limits = DecoderLimits::new(options, cache);
        Ok(Faulty { model: Decoder::load(backend()?, &checkpoint, &limits, progress)?, left: at })
    })
}

/// A model that works for some steps.
struct Faulty<M> {
    model: M,
    left: u64,
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

    fn edits_logits(&self) -> bool {
        self.model.edits_logits()
    }

    fn start(&mut self, seqs: &[SeqStep<'_>], interrupted: &mut dyn FnMut() -> bool) -> Result<(), KernelError> {
        self.model.start(seqs, interrupted)
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return Err(KernelError::Device("pretended for a test".into()));
        }
        self.model.finish(report)
    }
}
