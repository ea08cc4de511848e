//! Long work beside serving: one job at a time, watched by whoever started it, the last few remembered.

mod qualify;

use crate::lifecycle::Stage;
use crate::state::Daemon;
use serde_json::{Map, Value};
use skip_client::protocol::{JobList, JobState, JobStatus};
use skip_client::{Error, ErrorKind};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Jobs that are remembered, the running one among them.
pub const KEPT: usize = 16;
/// Kinds that will come.
const LATER: [&str; 4] = ["calibrate", "evaluate", "price", "bench"];

/// The jobs of a daemon.
#[derive(Default)]
pub struct Jobs {
    list: Mutex<VecDeque<Arc<Job>>>,
    last: AtomicU64,
}

/// One job.
pub struct Job {
    status: watch::Sender<JobStatus>,
    cancelled: AtomicBool,
}

impl Job {
    /// How far it is.
    pub fn status(&self) -> JobStatus {
        self.status.borrow().clone()
    }

    /// For waiting on changes.
    pub fn watch(&self) -> watch::Receiver<JobStatus> {
        self.status.subscribe()
    }

    /// Ends it at the next chance; one that has ended stays as it is.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Tells where it is.
    fn advance(&self, stage: String, progress: f64) {
        self.status.send_modify(|status| (status.stage, status.progress) = (stage, progress));
    }

    fn finish(&self, result: Result<Value, Error>) {
        self.status.send_modify(|status| match result {
            Ok(result) => {
                (status.state, status.stage, status.progress, status.result) = (JobState::Done, String::new(), 1.0, Some(result));
            }
            Err(error) => {
                let cancelled = error.kind == ErrorKind::Cancelled;
                (status.state, status.error) = (if cancelled { JobState::Cancelled } else { JobState::Failed }, Some(error.to_string()));
            }
        });
    }
}

impl Jobs {
    /// All that are remembered.
    pub fn list(&self) -> JobList {
        JobList { jobs: self.lock().iter().map(|job| job.status()).collect() }
    }

    /// The job of this id.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, id: &str) -> Result<Arc<Job>, Error> {
        let found = self.lock().iter().find(|job| job.status.borrow().id == id).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no job {id}")).at("id"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job, unless one is running.
    fn add(&self, kind: &str) -> Result<Arc<Job>, Error> {
        let mut list = self.lock();
        if let Some(running) = list.iter().map(|job| job.status()).find(|status| status.state == JobState::Running) {
            return Err(Error::new(ErrorKind::Busy, format!("job {} ({}) is running", running.id, running.kind)).with("retry_after_s", 1));
        }
        let id = (self.last.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let status = watch::Sender::new(JobStatus { id, kind: kind.to_owned(), ..JobStatus::default() });
        let job = Arc::new(Job { status, cancelled: AtomicBool::new(false) });
        list.push_back(job.clone());
        while list.len() > KEPT {
            list.pop_front();
        }
        Ok(job)
    }
}

/// Starts a job of this kind; it runs on a thread of its own.
///
/// # Errors
/// Another job runs, the kind is not known or not built, or an option is not known.
pub fn start(daemon: &Arc<Daemon>, kind: &str, options: &Map<String, Value>) -> Result<Arc<Job>, Error> {
    if LATER.contains(&kind) {
        return Err(Error::new(ErrorKind::Unsupported, format!("{kind} is not built yet")).at("kind"));
    }
    if kind != "qualify" {
        return Err(Error::invalid("kind", "no such job: qualify is"));
    }
    if let Some(option) = options.keys().next() {
        return Err(Error::invalid(option.clone(), "qualify has no options"));
    }
    if let Stage::Draining = daemon.life.stage() {
        return Err(Error::new(ErrorKind::NotReady, "the daemon is draining and starts no jobs"));
    }
    let work = qualify::Work::of(daemon)?;
    let job = daemon.jobs.add(kind)?;
    let (on_thread, daemon) = (job.clone(), daemon.clone());
    let thread = std::thread::Builder::new().name(format!("job {kind}"));
    let spawned = thread.spawn(move || {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.run(&daemon, &on_thread)));
        on_thread.finish(done.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the job panicked"))));
    });
    if let Err(error) = spawned {
        job.finish(Err(Error::new(ErrorKind::Internal, format!("no thread for the job: {error}"))));
    }
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_runs_at_a_time_and_the_last_few_are_remembered() {
        let jobs = Jobs::default();
        let first = jobs.add("qualify").unwrap();
        assert_eq!(jobs.add("qualify").err().unwrap().kind, ErrorKind::Busy);
        first.advance("half".into(), 0.5);
        assert_eq!((first.status().stage.as_str(), first.status().progress), ("half", 0.5));
        first.finish(Ok(Value::Bool(true)));
        for _ in 0..2 * KEPT {
            jobs.add("qualify").unwrap().finish(Err(Error::new(ErrorKind::Cancelled, "told to")));
        }
        assert_eq!(jobs.list().jobs.len(), KEPT);
        assert_eq!(jobs.list().jobs[0].state, JobState::Cancelled);
        assert_eq!(jobs.find("1").err().unwrap().kind, ErrorKind::NotFound, "the oldest is forgotten");
        assert_eq!(jobs.find(&(2 * KEPT + 1).to_string()).unwrap().status().error.as_deref(), Some("told to"));
    }
}
