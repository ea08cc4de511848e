//! `qualify`: has the daemon try the CUDA kernels of its checkpoint again, and shows what it found.

use super::Context;
use crate::failure::Failure;
use crate::{format, output};
use serde_json::Map;
use skip_client::protocol::{JobState, JobStatus, Qualification};
use skip_client::{Client, Error, ErrorKind};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Between two looks at the job.
const POLL: Duration = Duration::from_millis(200);

pub async fn run(context: &Context) -> Result<(), Failure> {
    let client = context.connect().await?;
    let job = watch(&client, client.start_job("qualify", Map::new()).await?).await?;
    let found = match job.state {
        JobState::Done => job.result.ok_or_else(|| Error::new(ErrorKind::Protocol, "the job has no result"))?,
        JobState::Cancelled => return Err(Error::new(ErrorKind::Cancelled, "the job was cancelled").into()),
        _ => return Err(Error::new(ErrorKind::Unsupported, job.error.unwrap_or_else(|| "the job failed".into())).into()),
    };
    let found: Qualification =
        serde_json::from_value(found).map_err(|error| Error::new(ErrorKind::Protocol, format!("the result is not understood: {error}")))?;
    context.show(&found, format::qualification)?;
    match found.refused().count() {
        0 => Ok(()),
        n => Err(Error::new(ErrorKind::DeviceFault, format!("{n} of {} kernels are refused", found.kernels.len())).into()),
    }
}

/// Follows a job to its end, on a terminal with its progress.
async fn watch(client: &Client, mut job: JobStatus) -> Result<JobStatus, Failure> {
    let shown = std::io::stderr().is_terminal();
    while job.state == JobState::Running {
        if shown {
            // A closed stderr is no reason to fail.
            let _ = write!(std::io::stderr(), "\r\x1b[K{:3.0} % {}", job.progress * 100.0, job.stage);
        }
        tokio::time::sleep(POLL).await;
        job = client.job(&job.id).await?;
    }
    if shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    output::note(&format!("job {}: {}", job.id, job.state.name()));
    Ok(job)
}
