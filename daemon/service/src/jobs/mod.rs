//! Long work beside serving: one job at a time, watched by whoever started it, the last few remembered.

mod asking;
mod calibrate;
mod evaluate;
mod price;
pub mod probation;
mod qualify;

use crate::lifecycle::Stage;
use crate::peer::{Authority, Peer};
use crate::state::{Daemon, Model};
use serde_json::{Map, Value};
use skip_client::protocol::{JobList, JobState, JobStatus};
use skip_client::{Error, ErrorKind};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Jobs that are remembered, the running one among them.
pub const KEPT: usize = 16;
/// Kinds that will come.
const LATER: [&str; 1] = ["bench"];

/// The jobs of a daemon.
#[derive(Default)]
pub struct Jobs {
    list: Mutex<VecDeque<Arc<Job>>>,
    last: AtomicU64,
}

/// One job.
pub struct Job {
    status: watch::Sender<JobStatus>,
    /// The user who started it.
    owner: u32,
    cancelled: AtomicBool,
    /// When it first told how far it was, and how far that was.
    first: Mutex<Option<(Instant, f64)>>,
}

impl Job {
    /// How far it is.
    pub fn status(&self) -> JobStatus {
        self.status.borrow().clone()
    }

    /// The same as far as this caller may see it: what it reads and finds is for administrators and whoever started it.
    pub fn status_for(&self, authority: &Authority, peer: &Peer) -> JobStatus {
        if self.is_open_to(authority, peer) { self.status() } else { self.status().public() }
    }

    /// Whether this caller may see all of it.
    pub fn is_open_to(&self, authority: &Authority, peer: &Peer) -> bool {
        authority.is_administrator(peer) || matches!(peer, Peer::User { uid, .. } | Peer::Granted { uid, .. } if *uid == self.owner)
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
        let eta = self.eta(progress, Instant::now());
        self.status.send_modify(|status| (status.stage, status.progress, status.eta_s) = (stage, progress, eta));
    }

    /// Seconds it has still to go, at the pace since it first moved: what an earlier run has done takes no time.
    fn eta(&self, progress: f64, now: Instant) -> Option<f64> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, from) = *first.get_or_insert((now, progress));
        if from == 0.0 && progress > 0.0 {
            // Up to here it prepared.
            *first = Some((now, progress));
            return None;
        }
        (progress > from).then(|| (now - since).as_secs_f64() * (1.0 - progress) / (progress - from))
    }

    fn finish(&self, result: Result<Value, Error>) {
        self.status.send_modify(|status| match result {
            Ok(result) => {
                (status.state, status.stage, status.progress, status.result) = (JobState::Done, String::new(), 1.0, Some(result));
                status.eta_s = None;
            }
            Err(error) => {
                let cancelled = error.kind == ErrorKind::Cancelled;
                status.eta_s = None;
                (status.state, status.error) = (if cancelled { JobState::Cancelled } else { JobState::Failed }, Some(error.to_string()));
                status.error_code = Some(error.kind.code().to_owned());
            }
        });
    }
}

impl Jobs {
    /// All that are remembered, as far as this caller may see them.
    pub fn list(&self, authority: &Authority, peer: &Peer) -> JobList {
        JobList { jobs: self.lock().iter().map(|job| job.status_for(authority, peer)).collect() }
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
    fn add(&self, kind: &str, owner: u32) -> Result<Arc<Job>, Error> {
        let mut list = self.lock();
        if let Some(running) = list.iter().map(|job| job.status()).find(|status| status.state == JobState::Running) {
            return Err(Error::new(ErrorKind::Busy, format!("job {} ({}) is running", running.id, running.kind)).with("retry_after_s", 1));
        }
        let id = (self.last.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let status = watch::Sender::new(JobStatus { id, kind: kind.to_owned(), ..JobStatus::default() });
        let job = Arc::new(Job { status, owner, cancelled: AtomicBool::new(false), first: Mutex::default() });
        list.push_back(job.clone());
        while list.len() > KEPT {
            list.pop_front();
        }
        Ok(job)
    }
}

/// Waits until the model's weights are hashed: tables that were recorded for some cannot be judged before.
fn hashed(model: &Model, cancelled: &dyn Fn() -> bool) -> Result<String, Error> {
    loop {
        if let Some(digest) = model.tables.checkpoint_hash() {
            return Ok(digest);
        }
        if cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "cancelled"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A job of the daemon's own, which whoever has it runs; administrators see what comes of it.
///
/// # Errors
/// Another job runs.
pub fn begin(daemon: &Daemon, kind: &str) -> Result<Arc<Job>, Error> {
    daemon.jobs.add(kind, 0)
}

/// What a job does.
enum Work {
    Qualify(qualify::Work),
    Calibrate(Box<calibrate::Work>),
    Evaluate(evaluate::Work),
    Price(price::Work),
}

impl Work {
    fn run(self, daemon: &Daemon, job: &Job) -> Result<Value, Error> {
        match self {
            Work::Qualify(work) => work.run(daemon, job),
            Work::Calibrate(work) => work.run(daemon, job),
            Work::Evaluate(work) => work.run(daemon, job),
            Work::Price(work) => work.run(daemon, job),
        }
    }
}

/// Starts a job of this kind for a caller who may; it runs on a thread of its own.
///
/// # Errors
/// Another job runs, the kind is not known or not built, or an option is not known.
pub fn start(daemon: &Arc<Daemon>, kind: &str, options: &Map<String, Value>, peer: &Peer) -> Result<Arc<Job>, Error> {
    if LATER.contains(&kind) {
        return Err(Error::new(ErrorKind::Unsupported, format!("{kind} is not built yet")).at("kind"));
    }
    if let Stage::Draining = daemon.life.stage() {
        return Err(Error::new(ErrorKind::NotReady, "the daemon is draining and starts no jobs"));
    }
    let work = match kind {
        "qualify" => {
            if let Some(option) = options.keys().next() {
                return Err(Error::invalid(option.clone(), "qualify has no options"));
            }
            Work::Qualify(qualify::Work::of(daemon)?)
        }
        "calibrate" => Work::Calibrate(Box::new(calibrate::Work::of(daemon, options)?)),
        "evaluate" => Work::Evaluate(evaluate::Work::of(daemon, options)?),
        "price" => Work::Price(price::Work::of(daemon, options)?),
        _ => return Err(Error::invalid("kind", "no such job: qualify, calibrate, evaluate and price are")),
    };
    let job = daemon.jobs.add(kind, peer.id())?;
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

    fn user(uid: u32) -> Peer {
        Peer::User { uid, groups: Vec::new() }
    }

    #[test]
    fn what_a_job_reads_and_finds_is_for_administrators_and_its_owner() {
        let (jobs, authority) = (Jobs::default(), Authority::new("skipd", None));
        // Neither root nor the test's own user.
        let [owner, other] = [70_001, 70_002].map(user);
        let job = jobs.add("evaluate", owner.id()).unwrap();
        job.advance("tasks/secret, dense".into(), 0.5);
        assert_eq!(job.status_for(&authority, &owner).stage, "tasks/secret, dense");
        job.finish(Ok(Value::String("secret".into())));
        for may in [&owner, &user(0)] {
            assert_eq!(job.status_for(&authority, may).result, Some(Value::String("secret".into())), "{may:?}");
        }
        for may_not in [&other, &Peer::KeyHolder] {
            let [one, listed] = [job.status_for(&authority, may_not), jobs.list(&authority, may_not).jobs.remove(0)];
            assert_eq!((&one, one.state, one.progress), (&listed, JobState::Done, 1.0));
            assert!(!serde_json::to_string(&one).unwrap().contains("secret"), "{may_not:?}: {one:?}");
        }
    }

    #[test]
    fn a_job_that_failed_tells_the_class_of_its_error() {
        let job = Jobs::default().add("price", 0).unwrap();
        job.finish(Err(Error::invalid("corpus", "too short")));
        assert_eq!(job.status().failure().unwrap().kind, ErrorKind::InvalidRequest);
        assert_eq!(job.status().error_code.as_deref(), Some("invalid_request"));
    }

    #[test]
    fn one_runs_at_a_time_and_the_last_few_are_remembered() {
        let jobs = Jobs::default();
        let first = jobs.add("qualify", 0).unwrap();
        assert_eq!(jobs.add("qualify", 0).err().unwrap().kind, ErrorKind::Busy);
        first.advance("half".into(), 0.5);
        assert_eq!((first.status().stage.as_str(), first.status().progress), ("half", 0.5));
        first.finish(Ok(Value::Bool(true)));
        for _ in 0..2 * KEPT {
            jobs.add("qualify", 0).unwrap().finish(Err(Error::new(ErrorKind::Cancelled, "told to")));
        }
        assert_eq!(jobs.list(&Authority::new("skipd", None), &user(0)).jobs.len(), KEPT);
        assert_eq!(jobs.list(&Authority::new("skipd", None), &user(0)).jobs[0].state, JobState::Cancelled);
        assert_eq!(jobs.find("1").err().unwrap().kind, ErrorKind::NotFound, "the oldest is forgotten");
        assert_eq!(jobs.find(&(2 * KEPT + 1).to_string()).unwrap().status().error.as_deref(), Some("told to"));
    }

    #[test]
    fn what_is_left_is_told_at_the_pace_since_it_first_moved() {
        let job = Jobs::default().add("calibrate", 0).unwrap();
        let at = |s| job.first.lock().unwrap().map_or(Instant::now(), |(since, _)| since) + std::time::Duration::from_secs(s);
        assert_eq!(job.eta(0.0, at(0)), None);
        assert_eq!(job.eta(0.5, at(60)), None, "an earlier run may have done it");
        assert_eq!(job.eta(0.6, at(10)).map(f64::round), Some(40.0));
    }
}
