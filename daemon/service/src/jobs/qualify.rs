//! `qualify`: tries the kernels of the loaded checkpoint again, whatever is known of them. What runs is not changed; the next start goes by it.

use super::Job;
use crate::lifecycle::Stage;
use crate::qualify::{self, QualifyError, Request};
use crate::state::Daemon;
use serde_json::Value;
use skip_client::{Error, ErrorKind};
use skip_kernels::cuda::qualify::Needs;
use skip_kernels::cuda::{CudaOptions, check};

/// What is to be tried.
pub struct Work {
    needs: Needs,
}

impl Work {
    /// The loaded checkpoint's kernels.
    ///
    /// # Errors
    /// No checkpoint is known yet.
    pub fn of(daemon: &Daemon) -> Result<Self, Error> {
        let model = daemon.model().ok_or_else(|| Error::new(ErrorKind::NotReady, "the model is not known yet"))?;
        Ok(Self { needs: model.needs })
    }

    /// Tries them.
    pub fn run(self, daemon: &Daemon, job: &Job) -> Result<Value, Error> {
        let options = CudaOptions::new(self.needs.activations);
        let probe = check(&options).map_err(|reason| Error::new(ErrorKind::Unsupported, reason.to_string()))?;
        job.advance("opening the device".into(), 0.0);
        let found = qualify::try_again(Request {
            state_dir: &daemon.config.state_dir,
            options: &options,
            probe: &probe,
            needs: self.needs,
            progress: &mut |at| job.advance(format!("trying {}", at.kernel), at.done as f64 / at.total.max(1) as f64),
            cancelled: &|| job.is_cancelled() || daemon.life.stage() == Stage::Draining,
        });
        let found = found.map_err(|error| match error {
            QualifyError::Cancelled => Error::new(ErrorKind::Cancelled, error.to_string()),
            QualifyError::Unusable(_) | QualifyError::Files(_) | QualifyError::Child(_) => {
                Error::new(ErrorKind::Unsupported, error.to_string())
            }
            _ => Error::new(ErrorKind::Internal, error.to_string()),
        })?;
        serde_json::to_value(found).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }
}
