//! From a folder to a model that answers, followed stage by stage.

use crate::faults::{self, Faults};
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use skip_engine::engine::{self, EngineError};
use skip_engine::{EngineHandle, EngineState};
use skip_kernels::KernelError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// Why there is no model, or no longer one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The folder, or something in it.
    #[error("cannot load {path}: {reason}")]
    Model {
        /// The folder.
        path: String,
        /// What is wrong, with file, field or tensor.
        reason: String,
    },
    /// The device failed while serving.
    #[error("{0}")]
    Device(String),
    /// The engine ended by itself.
    #[error("{0}")]
    Engine(String),
}

/// Opens the model with `open` on a thread where waiting is allowed, then follows the engine to its end.
/// An error is also the daemon's stage, for those who ask.
pub async fn run<F>(daemon: Arc<Daemon>, open: F) -> Result<(), LoadError>
where
    F: FnOnce(&Daemon) -> Result<Model, LoadError> + Send + 'static,
{
    daemon.life.advance(Stage::Loading(0.0));
    let result = match open_model(&daemon, open).await {
        Ok(model) => follow(&daemon, &model.engine).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &result {
        daemon.life.advance(Stage::Failed(error.to_string()));
    }
    result
}

async fn open_model<F>(daemon: &Arc<Daemon>, open: F) -> Result<Arc<Model>, LoadError>
where
    F: FnOnce(&Daemon) -> Result<Model, LoadError> + Send + 'static,
{
    let on_thread = daemon.clone();
    let task = tokio::task::spawn_blocking(move || open(&on_thread));
    let opened = task.await.unwrap_or_else(|panic| Err(LoadError::Engine(format!("loading panicked: {panic}"))));
    let model = Arc::new(opened?);
    daemon.set_model(model.clone());
    Ok(model)
}

async fn follow(daemon: &Daemon, engine: &EngineHandle) -> Result<(), LoadError> {
    let mut states = engine.watch();
    let mut clean = None;
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Loading { progress } => daemon.life.advance(Stage::Loading(progress)),
            EngineState::Ready => {
                daemon.set_ready();
                clean.get_or_insert_with(|| Clean(tokio::spawn(forget_faults(daemon.config.state_dir.clone()))));
            }
            EngineState::Draining => daemon.life.advance(Stage::Draining),
            EngineState::Stopped => return Ok(()),
            EngineState::Failed(error) => {
                let fault = is_device_fault(&error);
                if fault {
                    let with = daemon.model().map(|model| model.rung).unwrap_or_default();
                    Faults::record(&daemon.config.state_dir, SystemTime::now(), with, &error.to_string());
                }
                return Err(match daemon.ready_after() {
                    None => LoadError::Model { path: daemon.config.model.display().to_string(), reason: error.to_string() },
                    Some(_) if fault => LoadError::Device(error.to_string()),
                    Some(_) => LoadError::Engine(error.to_string()),
                });
            }
        }
        if states.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Ended with the model, so that a run that fails in time is no clean one.
struct Clean(tokio::task::JoinHandle<()>);

impl Drop for Clean {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn forget_faults(state_dir: PathBuf) {
    tokio::time::sleep(faults::CLEAN_RUN).await;
    Faults::forget(&state_dir);
}

/// Whether it counts among the device's faults.
pub fn is_device_fault(error: &EngineError) -> bool {
    matches!(error, EngineError::Device(_) | EngineError::Load(engine::LoadError::Kernel(KernelError::Device(_))))
}
