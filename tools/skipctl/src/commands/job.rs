//! Jobs: long work of the daemon, followed to its end, listed and cancelled.

use super::Context;
use crate::cli::Job;
use crate::failure::Failure;
use crate::{format, output};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use skip_client::protocol::{JobList, JobState, JobStatus};
use skip_client::{Client, Error, ErrorKind};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Between two looks at the job.
const POLL: Duration = Duration::from_millis(200);

pub async fn run(context: &Context, command: Job) -> Result<(), Failure> {
    let client = context.connect().await?;
    match command {
        Job::List => context.show(&client.jobs().await?, |list: &JobList| format::jobs(&list.jobs)),
        Job::Show { id } => context.show(&client.job(&id).await?, |job: &JobStatus| format::jobs(std::slice::from_ref(job))),
        Job::Cancel { id } => {
            client.cancel_job(&id).await?;
            let job = client.job(&id).await?;
            let job = follow(&client, job).await?;
            context.show(&job, |job: &JobStatus| format::jobs(std::slice::from_ref(job)))
        }
    }
}

/// Starts a job and follows it to its end; Ctrl-C cancels it. Gives what it found.
pub async fn finish<T: DeserializeOwned>(client: &Client, kind: &str, options: Map<String, Value>) -> Result<T, Failure> {
    let job = client.start_job(kind, options).await?;
    let id = job.id.clone();
    let followed = tokio::select! {
        followed = follow(client, job) => followed?,
        _ = tokio::signal::ctrl_c() => {
            client.cancel_job(&id).await?;
            output::note(&format!("job {id} is told to end"));
            return Err(Failure::Interrupted);
        }
    };
    let found = match followed.state {
        JobState::Done => followed.result.ok_or_else(|| Error::new(ErrorKind::Protocol, "the job has no result"))?,
        JobState::Cancelled => return Err(Error::new(ErrorKind::Cancelled, "the job was cancelled").into()),
        _ => return Err(Error::new(ErrorKind::Unsupported, followed.error.unwrap_or_else(|| "the job failed".into())).into()),
    };
    serde_json::from_value(found).map_err(|error| Error::new(ErrorKind::Protocol, format!("the result is not understood: {error}")).into())
}

/// Follows a job to its end, on a terminal with its progress.
async fn follow(client: &Client, mut job: JobStatus) -> Result<JobStatus, Failure> {
    let shown = std::io::stderr().is_terminal();
    while job.state == JobState::Running {
        if shown {
            let left =
                job.eta_s.map(|s| format!(", {} left", format::span(Duration::from_secs_f64(s.clamp(0.0, 1e9))))).unwrap_or_default();
            // A closed stderr is no reason to fail.
            let _ = write!(std::io::stderr(), "\r\x1b[K{:3.0} % {}{left}", job.progress * 100.0, job.stage);
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
