//! The live view: requests under way by the names they have in logs, as far as who asks may see them, and totals whose differences are rates.

use crate::peer::Peer;
use crate::request_id::RequestId;
use crate::state::{Daemon, Model};
use skip_client::protocol::{Activity, Others, Priority, ProcessStatus, RequestState, RequestStatus, Skips, Speed, Totals};
use skip_client::{Error, ErrorKind};
use skip_engine::handle::{self, Progress, Stage};
use skip_engine::stats::Status;
use skip_kernels::attention::SkipCounters;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The engine answers between two steps; a device that takes longer than this for one is no longer waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The names of the requests under way.
#[derive(Debug, Default)]
pub struct Names(Arc<Mutex<HashMap<handle::RequestId, RequestId>>>);

/// A request's place among the names, given up when dropped.
#[derive(Debug)]
pub struct Named {
    names: Arc<Mutex<HashMap<handle::RequestId, RequestId>>>,
    id: handle::RequestId,
}

/// The map is whole after every operation, so a panic elsewhere leaves it usable.
fn lock(names: &Mutex<HashMap<handle::RequestId, RequestId>>) -> MutexGuard<'_, HashMap<handle::RequestId, RequestId>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names {
    /// The engine's `id` is called `name` from now on.
    pub fn enter(&self, id: handle::RequestId, name: RequestId) -> Named {
        lock(&self.0).insert(id, name);
        Named { names: self.0.clone(), id }
    }

    /// Requests that have a name.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }

    /// Empty between the engine's taking a request and its name's being entered.
    fn name(&self, id: handle::RequestId) -> String {
        lock(&self.0).get(&id).map(|name| name.name().to_owned()).unwrap_or_default()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        lock(&self.names).remove(&self.id);
    }
}

/// What `peer` may see of what is going on.
///
/// # Errors
/// The engine is in a step that does not end.
pub async fn report(daemon: &Daemon, peer: &Peer) -> Result<Activity, Error> {
    let uptime_ms = u64::try_from(daemon.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut activity = Activity { uptime_ms, process: process(), ..Activity::default() };
    if let Some(model) = daemon.model() {
        let status = model.engine.status();
        activity.totals = totals(&status);
        activity.speed = Speed { prefill: status.prefill_speed, decode: status.decode_speed };
        // Until then there are no requests, and an engine that loads answers nobody.
        if daemon.ready_after().is_some() {
            list(&mut activity, daemon, peer, under_way(model).await?);
        }
    }
    Ok(activity)
}

async fn under_way(model: &Model) -> Result<Vec<Progress>, Error> {
    let asked = tokio::time::timeout(PATIENCE, model.engine.progress()).await;
    let late = || Error::new(ErrorKind::Internal, format!("the engine has been in one step for {PATIENCE:?}"));
    // An engine that has ended has no requests.
    Ok(asked.map_err(|_| late())?.unwrap_or_default())
}

fn list(activity: &mut Activity, daemon: &Daemon, peer: &Peer, requests: Vec<Progress>) {
    let sees_all = daemon.authority.is_administrator(peer);
    let (seen, others): (Vec<Progress>, Vec<Progress>) = requests.into_iter().partition(|p| sees_all || p.client.0 == peer.id());
    activity.requests = seen.iter().map(|progress| request(daemon, progress)).collect();
    let waiting = others.iter().filter(|p| p.stage == Stage::Waiting).count() as u32;
    activity.others = Others { running: others.len() as u32 - waiting, waiting };
}

fn request(daemon: &Daemon, progress: &Progress) -> RequestStatus {
    let decoding = progress.decoding.as_secs_f64();
    let tells = progress.generated > 1 && decoding > 0.0;
    RequestStatus {
        id: daemon.names.name(progress.id),
        uid: progress.client.0,
        priority: match progress.priority {
            handle::Priority::Background => Priority::Background,
            handle::Priority::Interactive => Priority::Interactive,
            handle::Priority::Control => Priority::Control,
        },
        state: match progress.stage {
            Stage::Waiting => RequestState::Waiting,
            Stage::Prefill => RequestState::Prefill,
            Stage::Decode => RequestState::Decode,
        },
        prompt_tokens: progress.prompt_tokens,
        prefilled_tokens: progress.prefilled,
        completion_tokens: progress.generated,
        max_tokens: progress.max_tokens,
        tokens_per_second: tells.then(|| f64::from(progress.generated - 1) / decoding),
        waited_ms: progress.waited.as_micros() as f64 / 1e3,
        pages: progress.pages,
    }
}

fn totals(status: &Status) -> Totals {
    let skips = |counters: &SkipCounters| Skips { votes: counters.votes, skipped: counters.skipped };
    Totals {
        prompt_tokens: status.prompt_tokens,
        completion_tokens: status.generated_tokens,
        steps: status.steps,
        prefill_seconds: status.prefill_step_seconds,
        decode_seconds: status.step_seconds - status.prefill_step_seconds,
        prefill: skips(&status.prefill),
        decode: skips(&status.decode),
    }
}

/// What the kernel says of this process.
pub fn process() -> ProcessStatus {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // The folder being read has a descriptor of its own.
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |folder| folder.count().saturating_sub(1));
    ProcessStatus { descriptors: descriptors as u32, ..read_status(&status) }
}

/// The lines of `/proc/PID/status` that are told; sizes there are in KiB.
fn read_status(text: &str) -> ProcessStatus {
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    ProcessStatus {
        resident_bytes: number("VmRSS") << 10,
        anonymous_bytes: number("RssAnon") << 10,
        threads: number("Threads") as u32,
        descriptors: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{Ask, Input, start};
    use crate::testing::{daemon_with, myself};
    use skip_client::protocol::{GenerationOptions, Prompt};

    fn ask(name: &str) -> Ask {
        let options = GenerationOptions { max_tokens: Some(500), ignore_eos: true, ..GenerationOptions::new() };
        Ask { id: RequestId::new(Some(name)), model: None, input: Input::Raw(Prompt::from("ab")), options }
    }

    #[test]
    fn the_kernel_s_words_are_read_and_absent_ones_are_zero() {
        let text = "Name:\tskipd\nVmRSS:\t  2048 kB\nRssAnon:\t 1024 kB\nThreads:\t7\n";
        let read = ProcessStatus { resident_bytes: 2 << 20, anonymous_bytes: 1 << 20, threads: 7, descriptors: 0 };
        assert_eq!(read_status(text), read);
        assert_eq!(read_status(""), ProcessStatus::default());
        let own = process();
        assert!(own.resident_bytes > own.anonymous_bytes && own.anonymous_bytes > 0 && own.threads > 0 && own.descriptors > 2, "{own:?}");
    }

    /// The group `root` stands in for one of members: it is there on every system, and uid 4,000,000 in it is no administrator.
    #[tokio::test]
    async fn everybody_sees_their_own_requests_and_administrators_see_all() {
        let daemon = daemon_with(Duration::from_millis(2), |settings| settings.group = Some("root".into())).await;
        let member = |uid| Peer::User { uid, groups: vec![0] };
        let mut running = Vec::new();
        for (peer, name) in [(member(4_000_000), "theirs"), (member(4_000_001), "another"), (myself(), "mine")] {
            running.push(start(&daemon, &peer, ask(name)).await.unwrap());
        }
        let names = async |peer: &Peer| {
            let activity = report(&daemon, peer).await.unwrap();
            let names: Vec<String> = activity.requests.into_iter().map(|request| request.id).collect();
            (names, activity.others)
        };
        // Two run, one waits, once the step under way has ended.
        while daemon.model().unwrap().engine.status().running < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(names(&myself()).await, (["theirs", "another", "mine"].map(String::from).to_vec(), Others::default()));
        assert_eq!(names(&member(4_000_001)).await, (vec!["another".into()], Others { running: 1, waiting: 1 }));
        assert_eq!(names(&member(4_000_009)).await, (vec![], Others { running: 2, waiting: 1 }));
        let told = serde_json::to_string(&report(&daemon, &member(4_000_009)).await.unwrap()).unwrap();
        assert!(!told.contains("400000"), "nobody's uid: {told}");

        // Each has its name until the engine has ended it.
        drop(running);
        while daemon.names.count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_request_is_told_with_how_far_it_is() {
        let daemon = daemon_with(Duration::from_millis(1), |_| {}).await;
        let mut running = start(&daemon, &myself(), ask("mine")).await.unwrap();
        for _ in 0..3 {
            running.next().await.unwrap();
        }
        // What was drawn is published with the step after.
        let activity = loop {
            let activity = report(&daemon, &myself()).await.unwrap();
            if activity.totals.completion_tokens >= 3 {
                break activity;
            }
        };
        let [request] = &activity.requests[..] else { panic!("{activity:?}") };
        assert_eq!((request.state, request.priority), (RequestState::Decode, Priority::Interactive));
        assert_eq!((request.prompt_tokens, request.prefilled_tokens, request.max_tokens, request.pages), (2, 2, 500, 4));
        assert!((3..500).contains(&request.completion_tokens) && request.tokens_per_second.is_some_and(|rate| rate > 0.0), "{request:?}");
        let Totals { prompt_tokens, steps, prefill_seconds, decode_seconds, .. } = activity.totals;
        assert!(prompt_tokens == 2 && steps >= 3 && prefill_seconds > 0.0 && decode_seconds > 0.0, "{:?}", activity.totals);
    }

    #[tokio::test]
    async fn a_daemon_without_a_model_has_no_requests() {
        let daemon = Daemon::new(crate::testing::config(std::path::Path::new("/nowhere/s")), std::time::Instant::now());
        assert_eq!(report(&daemon, &myself()).await.unwrap().requests, []);
    }
}
