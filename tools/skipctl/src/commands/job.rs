//! Jobs: long work of the daemon, followed to its end, listed and cancelled.

use super::{Context, calibrate, evaluate, price};
use crate::cli::Job;
use crate::failure::Failure;
use crate::{format, output};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use skip_client::protocol::{JobList, JobState, JobStatus};
use skip_client::{Client, Error, ErrorKind};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two looks at the job.
const POLL: Duration = Duration::from_millis(200);
/// Between two lines of progress where there is no terminal.
const LINES: Duration = Duration::from_secs(10);

pub async fn run(context: &Context, command: Job) -> Result<(), Failure> {
    let client = context.connect().await?;
    match command {
        Job::List => context.show(&client.jobs().await?, |list: &JobList| format::jobs(&list.jobs)),
        Job::Show { id } => context.show(&client.job(&id).await?, shown),
        Job::Cancel { id } => {
            client.cancel_job(&id).await?;
            let job = client.job(&id).await?;
            let job = follow(&client, job).await?;
            context.show(&job, shown)
        }
    }
}

/// A job's line, and what it found as the command that starts such ones shows it.
fn shown(job: &JobStatus) -> String {
    let line = format::jobs(std::slice::from_ref(job));
    let Some(found) = job.result.as_ref().filter(|_| job.state == JobState::Done) else { return line };
    fn read<T: DeserializeOwned>(found: &Value, text: impl Fn(&T) -> String) -> Option<String> {
        T::deserialize(found).ok().map(|found| text(&found))
    }
    let text = match job.kind.as_str() {
        "calibrate" => read(found, calibrate::text),
        "evaluate" => Some(evaluate::text(found)),
        "price" => read(found, price::text),
        "qualify" => read(found, format::qualification),
        _ => None,
    };
    // What a newer daemon finds is shown as it is.
    line + &text.unwrap_or_else(|| serde_json::to_string_pretty(found).unwrap_or_default())
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
    if let Some(error) = followed.failure() {
        return Err(error.into());
    }
    let found = followed.result.ok_or_else(|| Error::new(ErrorKind::Protocol, "the job has no result"))?;
    serde_json::from_value(found).map_err(|error| Error::new(ErrorKind::Protocol, format!("the result is not understood: {error}")).into())
}

/// Where a job stands, in a line.
fn progress(job: &JobStatus) -> String {
    let left = job.eta_s.map(|s| format!(", {} left", format::span(Duration::from_secs_f64(s.clamp(0.0, 1e9))))).unwrap_or_default();
    format!("{:3.0} % {}{left}", job.progress * 100.0, output::printable(&job.stage))
}

/// Progress for a log: a line where the stage has changed, and not one after the other.
#[derive(Default)]
struct Lines {
    last: Option<(Instant, String)>,
}

impl Lines {
    /// Whether there is something to say of `stage` now.
    fn are_due(&mut self, stage: &str, now: Instant) -> bool {
        let due = !stage.is_empty() && self.last.as_ref().is_none_or(|(then, said)| said != stage && now - *then >= LINES);
        if due {
            self.last = Some((now, stage.to_owned()));
        }
        due
    }
}

/// Follows a job to its end with its progress: in place on a terminal, else a line now and then.
async fn follow(client: &Client, mut job: JobStatus) -> Result<JobStatus, Failure> {
    let (shown, mut lines) = (std::io::stderr().is_terminal(), Lines::default());
    while job.state == JobState::Running {
        if shown {
            // A closed stderr is no reason to fail.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", progress(&job));
        } else if lines.are_due(&job.stage, Instant::now()) {
            output::note(&format!("job {}: {}", job.id, progress(&job).trim_start()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use skip_client::protocol::{Calibrated, CalibratedPhase, KernelVerdict, Price, PriceSpeed, Qualification, Verdict};

    #[test]
    fn a_log_gets_a_line_at_a_new_stage_at_most_every_ten_seconds() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let said: Vec<bool> = [(0, ""), (0, "one"), (1, "one"), (2, "two"), (9, "three"), (10, "three"), (30, "three"), (31, "four")]
            .map(|(s, stage)| lines.are_due(stage, at(s)))
            .to_vec();
        assert_eq!(said, [false, true, false, false, false, true, false, true]);
    }

    #[test]
    fn a_job_that_is_done_shows_what_its_own_command_would() {
        let of = |kind: &str, result: Value| {
            shown(&JobStatus { id: "7".into(), kind: kind.into(), state: JobState::Done, result: Some(result), ..JobStatus::default() })
        };
        let phase = CalibratedPhase { phase: "decode".into(), deployed: Some("50%".into()), ..CalibratedPhase::default() };
        let calibrated = Calibrated { written: "/m/config.json".into(), phases: vec![phase], ..Calibrated::default() };
        let price = Price { speed: vec![PriceSpeed { length: 4096, tier: "dense".into(), ..PriceSpeed::default() }], ..Price::default() };
        let kernel = KernelVerdict { kernel: "embed".into(), verdict: Verdict::Right, micros: None, reason: None };
        let qualified = Qualification { kernels: vec![kernel], ..Qualification::default() };
        let scores = json!({"results": {"arms": [{"arm": "dense", "scores": [{"id": "a", "score": 1.0}]}]}});
        for (kind, result, part) in [
            ("calibrate", serde_json::to_value(calibrated).unwrap(), "decode: deployed 50%"),
            ("evaluate", scores, "dense  all   1      1.000"),
            ("price", serde_json::to_value(price).unwrap(), "4096    dense"),
            ("qualify", serde_json::to_value(qualified).unwrap(), "embed"),
            ("something new", json!({"found": 3}), "\"found\": 3"),
        ] {
            let text = of(kind, result);
            assert!(text.starts_with(&format!("7  {kind}  done")) && text.contains(part), "{text}");
        }
        let failed = JobStatus { state: JobState::Failed, error: Some("why".into()), ..JobStatus::default() };
        assert!(shown(&failed).contains("failed  why"), "{}", shown(&failed));
    }
}
