//! Updates over the air: a program of its own verifies and stores them; the daemon uses the one on trial, measures it, and has it committed or given up.

mod program;

use crate::jobs::{self, Job, probation};
use crate::lifecycle::Stage;
use crate::state::{Daemon, Model};
use serde_json::Value;
use skip_client::protocol::{ApplyUpdate, Probation, UpdateShow, UpdateSlot};
use skip_client::{Error, ErrorKind};
use skip_updates::{RealDisk, Slot, SlotName, View};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// Longest archive that is taken: a bundle's files and their headers.
pub const MAX_ARCHIVE: usize = 34 << 20;
/// Between looks at what has to be there first.
const LOOK: Duration = Duration::from_millis(100);
/// How long a new update waits for the one before to be done with.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a rollback waits for the trial that it ends.
const TRIAL_ENDS: Duration = Duration::from_secs(60);

/// The daemon's part in updates.
#[derive(Default)]
pub struct Updates {
    /// Held while an update is taken, tried or left.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// What was last read of the store.
    shown: Mutex<UpdateShow>,
    /// The measuring of the trial.
    job: Mutex<Option<Arc<Job>>>,
}

impl Updates {
    /// What was last read of the store.
    pub fn shown(&self) -> UpdateShow {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn job(&self) -> std::sync::MutexGuard<'_, Option<Arc<Job>>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bundle as it was handed over.
#[derive(Clone, Debug)]
pub enum Bundle {
    /// The archive itself.
    Archive(Vec<u8>),
    /// Where it lies.
    At(ApplyUpdate),
}

/// What updates brought.
///
/// # Errors
/// The store cannot be read.
pub async fn show(daemon: &Arc<Daemon>) -> Result<UpdateShow, Error> {
    let view = read(daemon).await?;
    let stage = daemon.updates.job().as_ref().map(|job| job.status().stage).unwrap_or_default();
    let trial = view.trial.as_ref().map(|trial| Probation { slot: slot(trial), tries_left: view.state.tries_left, stage });
    let shown = UpdateShow {
        active: view.active.as_ref().map(slot),
        previous: view.previous.as_ref().map(slot),
        probation: trial,
        floor: view.floor,
        reason: view.state.reason.clone(),
        problems: view.problems.clone(),
    };
    *daemon.updates.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown.clone();
    Ok(shown)
}

fn slot(slot: &Slot) -> UpdateSlot {
    UpdateSlot {
        slot: slot.name.to_string(),
        version: slot.manifest.version,
        created: slot.manifest.created,
        note: slot.manifest.note.clone(),
        checkpoint: slot.entry.checkpoint.to_string(),
    }
}

async fn read(daemon: &Daemon) -> Result<View, Error> {
    let disk = RealDisk::new(daemon.config.state_dir.join("tables"));
    let reading = tokio::task::spawn_blocking(move || View::read(&disk)).await;
    let internal = |error: String| Error::new(ErrorKind::Internal, error);
    reading.map_err(|panic| internal(panic.to_string()))?.map_err(|error| internal(format!("the store of updates: {error}")))
}

/// Has a bundle verified and put on trial, which begins at once.
///
/// # Errors
/// The failed check in `details.check`; `Busy` while another update is on trial here.
pub async fn apply(daemon: &Arc<Daemon>, bundle: Bundle) -> Result<UpdateShow, Error> {
    let busy = |_| Error::new(ErrorKind::Busy, "another update is being taken or tried").with("retry_after_s", 1);
    // A trial whose verdict can be seen already may have its last words to say.
    let turn = tokio::time::timeout(LAST_WORDS, daemon.updates.turn.clone().lock_owned()).await.map_err(busy)?;
    let model = daemon.ready_model()?;
    let checkpoint = hashed(daemon, &model).await?;
    let mut arguments = vec!["apply".to_owned(), "--checkpoint-sha256".into(), checkpoint];
    let archive = match bundle {
        Bundle::Archive(archive) => {
            arguments.extend(["--fd".into(), "0".into()]);
            Some(archive)
        }
        Bundle::At(wanted) => {
            if wanted.relax_expiry {
                arguments.push("--relax-expiry".into());
            }
            arguments.extend(["--".into(), wanted.path]);
            None
        }
    };
    let taken = program::run(daemon, &arguments, archive).await.inspect_err(|error| tracing::warn!(%error, "an update is refused"))?;
    tracing::info!(slot = taken["slot"].as_str(), "an update is verified and on trial");
    let shown = show(daemon).await;
    tokio::spawn(try_out(daemon.clone(), turn));
    shown
}

/// Ends the trial, or goes back to the update before, or to none.
///
/// # Errors
/// `NothingPending` where there is nothing to leave.
pub async fn roll_back(daemon: &Arc<Daemon>) -> Result<UpdateShow, Error> {
    let measuring = daemon.updates.job().clone();
    if let Some(job) = &measuring {
        job.cancel();
    }
    let stuck = |_| Error::new(ErrorKind::Busy, "the trial does not end").with("retry_after_s", 1);
    let _turn = tokio::time::timeout(TRIAL_ENDS, daemon.updates.turn.clone().lock_owned()).await.map_err(stuck)?;
    // A trial that was being measured has been given up by now.
    if measuring.is_none() || read(daemon).await?.trial.is_some() {
        program::run(daemon, &["rollback".to_owned()], None).await?;
    }
    if let Ok(tables) = daemon.tables() {
        tables.follow_update(None).await?;
    }
    let shown = show(daemon).await?;
    tracing::info!(reason = shown.reason.as_deref(), "an update is rolled back");
    Ok(shown)
}

/// Looks whether there is an update on trial, which another process may have put there, and tries it.
pub fn look(daemon: &Arc<Daemon>) {
    if let Ok(turn) = daemon.updates.turn.clone().try_lock_owned() {
        tokio::spawn(try_out(daemon.clone(), turn));
    }
}

/// Tries what is on trial, once the daemon is ready.
pub async fn at_start(daemon: Arc<Daemon>) {
    let mut stages = daemon.life.watch();
    while *stages.borrow_and_update() != Stage::Ready {
        if stages.changed().await.is_err() {
            return;
        }
    }
    look(&daemon);
}

async fn try_out(daemon: Arc<Daemon>, turn: OwnedMutexGuard<()>) {
    if let Err(error) = trial(&daemon).await {
        tracing::error!(%error, "the update on trial is not tried");
    }
    daemon.updates.job().take();
    match show(&daemon).await {
        Ok(shown) => shown.problems.iter().for_each(|problem| tracing::warn!("update passed over: {problem}")),
        Err(error) => tracing::warn!(%error, "updates are not known"),
    }
    drop(turn);
}

async fn trial(daemon: &Arc<Daemon>) -> Result<(), Error> {
    if read(daemon).await?.trial.is_none() {
        return Ok(());
    }
    let model = daemon.ready_model()?;
    hashed(daemon, &model).await?;
    // The try is spent on disk before the tables are used, so that a daemon which they bring down does not try for ever.
    let begun = program::run(daemon, &["begin".to_owned()], None).await?;
    let Some(slot) = begun["slot"].as_str().and_then(|slot| slot.parse::<SlotName>().ok()) else {
        tracing::warn!(reason = begun["given_up"].as_str(), "no update is on trial any more");
        return model.tables.follow_update(None).await;
    };
    model.tables.follow_update(Some(slot.clone())).await?;
    let outcome = measure(daemon).await?;
    let name = slot.to_string();
    match outcome {
        probation::Outcome::Good(found) => {
            program::run(daemon, &["commit".into(), name.clone()], None).await?;
            tracing::info!(slot = name, "the update is in force: {found}");
        }
        probation::Outcome::Bad(reason) => {
            program::run(daemon, &["fail".into(), name.clone(), "--reason".into(), reason.clone()], None).await?;
            tracing::warn!(slot = name, "the update is given up, and the tables before are back: {reason}");
        }
        probation::Outcome::Unknown => tracing::info!(slot = name, "the update stays on trial until the next start"),
    }
    model.tables.follow_update(None).await
}

/// The digest of the weights, once they are hashed: tables are for some.
async fn hashed(daemon: &Daemon, model: &Model) -> Result<String, Error> {
    loop {
        if let Some(digest) = model.tables.checkpoint_hash() {
            return Ok(digest);
        }
        tokio::time::sleep(LOOK).await;
        daemon.ready_model()?;
    }
}

/// Measures the tables on trial, as a job that waits for its turn among others.
async fn measure(daemon: &Arc<Daemon>) -> Result<probation::Outcome, Error> {
    let job = loop {
        match jobs::begin(daemon, "probation") {
            Err(error) if error.kind == ErrorKind::Busy => tokio::time::sleep(LOOK).await,
            other => break other?,
        }
        daemon.ready_model()?;
    };
    daemon.updates.job().replace(job.clone());
    // For those who look meanwhile.
    show(daemon).await?;
    let on_thread = daemon.clone();
    let measured = tokio::task::spawn_blocking(move || probation::run(&on_thread, &job)).await;
    measured.map_err(|panic| Error::new(ErrorKind::Internal, format!("measuring the update failed: {panic}")))
}

/// What the program answered, as a text.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
