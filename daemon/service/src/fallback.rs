//! Starting the engine where the choice fell; a device that refuses the model under `auto` leaves it to the processor.

use crate::device::{Choice, Chosen};
use crate::lifecycle::{Lifecycle, Stage};
use skip_engine::engine::{EngineError, LoadError};
use skip_engine::{EngineHandle, EngineState};
use skip_kernels::KernelError;
use std::sync::Arc;

/// Starts the engine of `choice` with `start`. If it is one on CUDA and `may_fall_back`, waits until it has loaded, and where the device refuses
/// starts another on the processor: the choice then says why. `refused` is told of the refusal.
pub async fn place(
    choice: Choice,
    may_fall_back: bool,
    life: &Lifecycle,
    start: impl Fn(&Choice) -> EngineHandle,
    refused: impl FnOnce(&EngineError),
) -> (EngineHandle, Choice) {
    let engine = start(&choice);
    if !may_fall_back || matches!(choice.chosen, Chosen::Cpu) {
        return (engine, choice);
    }
    let Some(error) = refusal(&engine, life).await else { return (engine, choice) };
    refused(&error);
    let choice = Choice::cpu(format!("the CPU serves: on CUDA {error}"), true, choice.rung);
    tracing::error!(reason = choice.reason, "degraded");
    // The first engine has ended, and its memory with it.
    (start(&choice), choice)
}

/// Waits until the engine has loaded; the error if the device did not take the model. What is wrong with the checkpoint is wrong everywhere.
async fn refusal(engine: &EngineHandle, life: &Lifecycle) -> Option<Arc<EngineError>> {
    let (mut states, mut stages) = (engine.watch(), life.watch());
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Loading { progress } => life.advance(Stage::Loading(progress)),
            EngineState::Failed(error) if is_the_device_s(&error) => return Some(error),
            _ => return None,
        }
        tokio::select! {
            changed = states.changed() => changed.ok()?,
            // Told to stop: nobody waits for a model any more.
            _ = stages.wait_for(|stage| *stage == Stage::Draining) => {
                engine.shutdown();
                return None;
            }
        }
    }
}

/// Whether the device refused, and not the weights' file.
fn is_the_device_s(error: &EngineError) -> bool {
    matches!(error, EngineError::Load(LoadError::Kernel(error)) if !matches!(error, KernelError::Read(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Rung;
    use crate::testing;
    use skip_kernels::cuda::{Activations, CudaOptions, Probe};
    use skip_kernels::ledger::Ledger;
    use std::cell::RefCell;
    use std::time::Duration;

    fn cuda() -> Choice {
        let (name, uuid) = ("H200".into(), "ab".into());
        let probe = Probe { name, uuid, capability: (9, 0), driver: 13000, integrated: false, memory: 1 << 33, free: None, sms: 132 };
        let chosen = Chosen::Cuda { options: CudaOptions::new(Activations::Bf16), probe: Box::new(probe) };
        Choice { chosen, reason: "CUDA 13.0".into(), degraded: None, rung: Rung::All, kernel_notes: vec!["no measuring".into()] }
    }

    fn full() -> KernelError {
        KernelError::TooLarge(Box::new(Ledger { entries: vec![("KV pages", 9120 << 20)], free: 8000 << 20, ..Ledger::default() }))
    }

    /// Starts on a device that refuses, beside a processor that works; tells on what was started.
    async fn placed(choice: Choice, may_fall_back: bool) -> (Vec<&'static str>, EngineHandle, Choice, usize) {
        let (started, told) = (RefCell::new(Vec::new()), RefCell::new(0));
        let start = |choice: &Choice| {
            let on_cpu = matches!(choice.chosen, Chosen::Cpu);
            started.borrow_mut().push(if on_cpu { "cpu" } else { "cuda" });
            if on_cpu { testing::idle() } else { testing::refused(full) }
        };
        let (engine, choice) = place(choice, may_fall_back, &Lifecycle::default(), start, |_| *told.borrow_mut() += 1).await;
        (started.into_inner(), engine, choice, told.into_inner())
    }

    async fn end_of_loading(engine: &EngineHandle) -> EngineState {
        let mut states = engine.watch();
        states.wait_for(|state| !matches!(state, EngineState::Loading { .. })).await.unwrap().clone()
    }

    #[tokio::test]
    async fn a_device_that_refuses_the_model_leaves_it_to_the_processor() {
        let (started, engine, choice, told) = placed(cuda(), true).await;
        assert_eq!((started, told), (vec!["cuda", "cpu"], 1));
        assert!(matches!(end_of_loading(&engine).await, EngineState::Ready));
        let reason = choice.degraded.unwrap();
        assert!(
            reason.contains("9120 MiB are needed (KV pages 9120), 8000 MiB are free") && reason.starts_with("the CPU serves"),
            "{reason}"
        );
        assert_eq!((choice.reason, choice.kernel_notes.len()), (reason, 0));
    }

    #[tokio::test]
    async fn cuda_that_was_asked_for_fails_with_the_numbers() {
        let (started, engine, choice, told) = placed(cuda(), false).await;
        assert_eq!((started, told, choice.degraded), (vec!["cuda"], 0, None));
        let EngineState::Failed(error) = end_of_loading(&engine).await else { panic!("it has not failed") };
        assert!(error.to_string().contains("9120 MiB are needed"), "{error}");
    }

    #[tokio::test]
    async fn an_engine_that_loads_or_ends_otherwise_stays() {
        let life = Lifecycle::default();
        let (engine, choice) = place(cuda(), true, &life, |_| testing::idle(), |_| panic!("not refused")).await;
        assert!(choice.degraded.is_none() && matches!(*engine.watch().borrow(), EngineState::Ready));
        let (_, choice) =
            place(Choice::cpu("x".into(), false, Rung::All), true, &life, |_| testing::refused(full), |_| panic!("asked")).await;
        assert_eq!(choice.reason, "x");
    }

    #[tokio::test]
    async fn nobody_waits_for_a_model_once_told_to_stop() {
        let life = Lifecycle::default();
        life.advance(Stage::Draining);
        let slow = |_: &Choice| {
            testing::refused(|| {
                std::thread::sleep(Duration::from_secs(2));
                full()
            })
        };
        let began = std::time::Instant::now();
        let (_, choice) = place(cuda(), true, &life, slow, |_| panic!("nobody asks")).await;
        assert!(choice.degraded.is_none() && began.elapsed() < Duration::from_secs(1));
    }
}
