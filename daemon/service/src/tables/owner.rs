//! The one task that changes tables: commands in, one snapshot out after each, trials that end by themselves, drift.

use super::store::{Store, Wanted, table_set};
use super::view::{self, Snapshot, counters};
use skip_client::protocol::{Selector, SetTableOptions};
use skip_client::{Error, ErrorKind};
use skip_engine::EngineHandle;
use skip_engine::handle::TableSet;
use skip_kernels::attention::SkipCounters;
use skip_tables::{Digest, Drift, DriftRules, PerPhase, Phase};
use skip_updates::SlotName;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// How often production's shares are looked at.
const DRIFT_INTERVAL: Duration = Duration::from_secs(5);

/// What the daemon does when production skips far more than a tier stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrift {
    /// Says so in log and status.
    #[default]
    Warn,
    /// Says so, and goes dense until the next set-table or reload.
    Dense,
}

/// What the owner is asked to do; each is answered once it is in force.
pub enum Command {
    /// Put a table in force.
    Set {
        /// Of this phase.
        phase: Phase,
        /// Which.
        selector: Selector,
        /// For how long, and past which checks.
        options: SetTableOptions,
        /// The answer.
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Keep what is on trial.
    Confirm(oneshot::Sender<Result<(), Error>>),
    /// Take back what is on trial.
    Revert(oneshot::Sender<Result<(), Error>>),
    /// Use the update on trial of this name, or else the committed one.
    FollowUpdate {
        /// The one on trial.
        begun: Option<SlotName>,
        /// The answer.
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Read the files again.
    Reload(oneshot::Sender<Result<(), Error>>),
}

/// The task's state.
pub struct Owner {
    snapshot: Snapshot,
    engine: EngineHandle,
    publish: watch::Sender<Arc<Snapshot>>,
    /// The weights' digest, while it is being computed.
    hashing: Option<JoinHandle<io::Result<Digest>>>,
    drift: PerPhase<Drift>,
    seen: PerPhase<SkipCounters>,
    rules: DriftRules,
    on_drift: OnDrift,
    /// The engine is gone, and with it what there was to own.
    ended: bool,
}

impl Owner {
    /// An owner of what `publish` holds, which the engine was started with.
    pub fn new(
        engine: EngineHandle,
        publish: watch::Sender<Arc<Snapshot>>,
        hashing: Option<JoinHandle<io::Result<Digest>>>,
        on_drift: OnDrift,
    ) -> Self {
        let snapshot = Snapshot::clone(&publish.borrow());
        let drift = PerPhase::from_fn(|phase| Drift::new(snapshot.decisions[phase].tier.map(|t| t.share())));
        Self { snapshot, engine, publish, hashing, drift, seen: PerPhase::default(), rules: DriftRules::default(), on_drift, ended: false }
    }

    /// Runs until nobody can command it any more, or the engine has ended.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut look = tokio::time::interval(DRIFT_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.ended {
            let deadline = self.snapshot.store.retarget().trial().map(|t| t.deadline());
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => return,
                },
                () = until(deadline) => self.expire().await,
                digest = hashed(&mut self.hashing) => self.take_digest(digest).await,
                _ = look.tick() => self.look_for_drift().await,
            }
        }
    }

    async fn handle(&mut self, command: Command) {
        // A deadline that has passed counts before whatever comes after it.
        self.expire().await;
        let (reply, result) = match command {
            Command::Set { phase, selector, options, reply } => (reply, self.set(phase, selector, options).await),
            Command::Confirm(reply) => (reply, self.change(|store| store.confirm(Instant::now())).await),
            Command::Revert(reply) => (reply, self.change(Store::revert).await),
            Command::FollowUpdate { begun, reply } => {
                let follow = move |store: &mut Store| {
                    store.follow_update(begun);
                    Ok(())
                };
                (reply, self.change(follow).await)
            }
            Command::Reload(reply) => (reply, self.change(reload).await),
        };
        // Who does not wait for the answer any more does not need it.
        let _ = reply.send(result);
    }

    async fn set(&mut self, phase: Phase, selector: Selector, options: SetTableOptions) -> Result<(), Error> {
        if let Some(hashing) = self.hashing.take() {
            // A tier is checked against the weights: the first set-table may have to wait for their digest.
            let digest = hashing.await;
            self.take_digest(digest).await;
        }
        let (wanted, _): (Wanted, _) = self.snapshot.store.understand(phase, &selector, options.force)?;
        self.change(move |store| store.set(phase, wanted, options, Instant::now())).await
    }

    /// Tries a transition on a copy, with its writing to disk, and makes it true: first in the engine, then for readers.
    async fn change<F>(&mut self, transition: F) -> Result<(), Error>
    where
        F: FnOnce(&mut Store) -> Result<(), Error> + Send + 'static,
    {
        let mut store = self.snapshot.store.clone();
        let tried = tokio::task::spawn_blocking(move || transition(&mut store).map(|()| store)).await;
        let store = tried.map_err(|panic| Error::new(ErrorKind::Internal, panic.to_string()))??;
        self.apply(store).await
    }

    async fn apply(&mut self, store: Store) -> Result<(), Error> {
        let decisions = store.decide();
        let set = table_set(&decisions, &self.snapshot.set);
        let changed = PerPhase::from_fn(|phase| rows_of(&set, phase) != rows_of(&self.snapshot.set, phase));
        if set != self.snapshot.set && !self.engine.set_tables(set.clone()).await {
            self.ended = true;
            return Err(Error::new(ErrorKind::Shutdown, "the engine has ended"));
        }
        let status = self.engine.status();
        for phase in Phase::ALL {
            if changed[phase] {
                self.snapshot.version[phase] += 1;
                let now = counters(phase, &set, &status);
                (self.snapshot.baseline[phase], self.seen[phase]) = (now, now);
                self.drift[phase] = Drift::new(decisions[phase].tier.map(|t| t.share()));
                self.snapshot.alarms[phase] = None;
            }
        }
        (self.snapshot.store, self.snapshot.decisions, self.snapshot.set) = (store, decisions, set);
        self.snapshot.note_deadline();
        self.publish.send_replace(Arc::new(self.snapshot.clone()));
        view::log(&self.snapshot, Phase::ALL.into_iter().filter(|&phase| changed[phase]));
        Ok(())
    }

    async fn expire(&mut self) {
        let mut store = self.snapshot.store.clone();
        if store.tick(Instant::now()) {
            tracing::warn!("a table was not confirmed in time: back to the one before");
            self.apply_anyway(store).await;
        }
    }

    async fn take_digest(&mut self, digest: Result<io::Result<Digest>, tokio::task::JoinError>) {
        self.hashing = None;
        match digest {
            Ok(Ok(digest)) => {
                let mut store = self.snapshot.store.clone();
                store.set_digest(digest);
                self.apply_anyway(store).await;
            }
            Ok(Err(error)) => tracing::error!(%error, "the weights cannot be hashed: recorded tables stay refused"),
            Err(error) => tracing::error!(%error, "hashing the weights failed: recorded tables stay refused"),
        }
    }

    async fn look_for_drift(&mut self) {
        let status = self.engine.status();
        let mut store = self.snapshot.store.clone();
        let mut news = false;
        for phase in Phase::ALL {
            let now = counters(phase, &self.snapshot.set, &status);
            let before = std::mem::replace(&mut self.seen[phase], now);
            let (votes, skipped) = (now.votes.saturating_sub(before.votes), now.skipped.saturating_sub(before.skipped));
            if !self.drift[phase].observe(votes, skipped, &self.rules) {
                continue;
            }
            news = true;
            let alarm = self.drift[phase].alarm();
            self.snapshot.alarms[phase] = alarm;
            match alarm {
                Some(alarm) => {
                    tracing::warn!(%phase, "{alarm}");
                    store.suspended[phase] = alarm.skips_too_much() && self.on_drift == OnDrift::Dense;
                }
                None => tracing::info!(%phase, "drift: measured and promised shares agree again"),
            }
        }
        if news {
            let alarms = self.snapshot.alarms;
            self.apply_anyway(store).await;
            self.snapshot.alarms = alarms;
            self.publish.send_replace(Arc::new(self.snapshot.clone()));
        }
    }

    /// A change of the daemon's own: there is nobody to tell but the log.
    async fn apply_anyway(&mut self, store: Store) {
        if let Err(error) = self.apply(store).await {
            tracing::warn!(%error, "tables are not applied");
        }
    }
}

fn reload(store: &mut Store) -> Result<(), Error> {
    store.reload().map_err(|e| Error::new(ErrorKind::TableRefused, format!("{e}; the tables before stay")))
}

fn rows_of(set: &TableSet, phase: Phase) -> Option<&skip_kernels::ScaleTable> {
    set.phase(phase).map(|t| &t.table)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

async fn hashed(hashing: &mut Option<JoinHandle<io::Result<Digest>>>) -> Result<io::Result<Digest>, tokio::task::JoinError> {
    match hashing {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
