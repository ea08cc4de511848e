//! The tables of the loaded model: which are in force and why, and how they are changed while it runs.
//! [`Tables`] is the handle for every interface; reading takes the last published snapshot, changing goes to one owner task.

mod files;
mod owner;
mod store;
#[cfg(test)]
mod tests;
mod view;

pub use files::Paths;
pub use owner::OnDrift;

use owner::{Command, Owner};
use skip_client::protocol::{Phase, PhaseTable, Selector, SetTableOptions, TableShow, TierList};
use skip_client::{Error, ErrorKind};
use skip_engine::EngineHandle;
use skip_engine::handle::{NamedTable, TableSet};
use skip_tables::Alarm;
use skip_updates::SlotName;
use std::sync::Arc;
use store::Store;
use tokio::sync::{mpsc, oneshot, watch};
use view::Snapshot;

/// Commands that may wait for the owner.
const COMMANDS: usize = 32;

/// The tables of the loaded model; cheap to clone.
#[derive(Clone, Debug)]
pub struct Tables {
    snapshot: watch::Receiver<Arc<Snapshot>>,
    commands: mpsc::Sender<Command>,
    engine: Option<EngineHandle>,
}

/// Tables read from their files, before there is an engine to use them.
#[derive(Debug)]
pub struct Opened {
    snapshot: Snapshot,
}

impl Opened {
    /// Reads the files of a model; what cannot be used is passed over with a notice.
    pub fn read(paths: Paths) -> Self {
        Self { snapshot: Snapshot::new(Store::open(paths)) }
    }

    /// No files: dense until somebody sets bare rows.
    pub fn empty() -> Self {
        Self { snapshot: Snapshot::new(Store::empty()) }
    }

    /// What the engine is to be started with. Tables recorded for certain weights follow when these are hashed.
    pub fn in_force(&self) -> TableSet {
        self.snapshot.set.clone()
    }

    /// Serves them over an engine started with [`Self::in_force`]. Must be called inside a tokio runtime.
    pub fn serve(self, engine: EngineHandle, on_drift: OnDrift) -> Tables {
        let paths = self.snapshot.store.paths().clone();
        let hashing = (!paths.checkpoint.as_os_str().is_empty()).then(|| tokio::task::spawn_blocking(move || paths.digest()));
        view::log(&self.snapshot, Phase::ALL);
        let (publish, snapshot) = watch::channel(Arc::new(self.snapshot));
        let (commands, inbox) = mpsc::channel(COMMANDS);
        tokio::spawn(Owner::new(engine.clone(), publish, hashing, on_drift).run(inbox));
        Tables { snapshot, commands, engine: Some(engine) }
    }
}

impl Default for Tables {
    /// Dense, and nobody to change it: for what has no engine.
    fn default() -> Self {
        let (_, snapshot) = watch::channel(Arc::new(Snapshot::new(Store::empty())));
        let (commands, _) = mpsc::channel(1);
        Self { snapshot, commands, engine: None }
    }
}

impl Tables {
    /// What new requests start with.
    pub fn in_force(&self) -> TableSet {
        self.snapshot.borrow().set.clone()
    }

    /// Where the files lie.
    pub fn paths(&self) -> Paths {
        self.snapshot.borrow().store.paths().clone()
    }

    /// SHA-256 over the checkpoint's weights, once computed.
    pub fn checkpoint_hash(&self) -> Option<String> {
        self.snapshot.borrow().store.digest().map(|digest| digest.to_string())
    }

    /// The table a selector names, for one request; None is dense, and `auto` what is in force.
    pub fn resolve(&self, phase: Phase, selector: &Selector) -> Result<Option<Arc<NamedTable>>, Error> {
        let snapshot = self.snapshot.borrow().clone();
        Ok(match snapshot.store.understand(phase, selector, false)? {
            (_, Some(decision)) => store::named(&decision, Some("request")),
            (_, None) => snapshot.set.phase(phase).cloned(),
        })
    }

    /// Both phases.
    pub fn show(&self) -> TableShow {
        // The snapshot is cloned out so that the lock on it is not held while the engine is asked.
        let snapshot = self.snapshot.borrow().clone();
        snapshot.show(self.engine.as_ref())
    }

    /// The checkpoint's ladders.
    pub fn tiers(&self) -> TierList {
        self.snapshot.borrow().tiers()
    }

    /// What is wrong with the table files: passed over, or with keys that are not read.
    pub fn warnings(&self) -> Vec<String> {
        self.snapshot.borrow().store.warnings()
    }

    /// Drift alarms that stand.
    pub fn alarms(&self) -> Vec<(Phase, Alarm)> {
        let alarms = self.snapshot.borrow().alarms;
        Phase::ALL.into_iter().filter_map(|phase| Some((phase, alarms[phase]?))).collect()
    }

    /// Returns after the next change of anything that [`Self::show`] tells, measured shares apart; false: there will be none.
    pub async fn changed(&mut self) -> bool {
        self.snapshot.changed().await.is_ok()
    }

    /// Puts a table in force; returns when new requests start with it.
    pub async fn set(&self, phase: Phase, selector: Selector, options: SetTableOptions) -> Result<PhaseTable, Error> {
        self.ask(|reply| Command::Set { phase, selector, options, reply }).await?;
        Ok(self.show().phase(phase).clone())
    }

    /// Keeps what is pending.
    pub async fn confirm(&self) -> Result<TableShow, Error> {
        self.ask(Command::Confirm).await?;
        Ok(self.show())
    }

    /// Takes back what is pending.
    pub async fn revert(&self) -> Result<TableShow, Error> {
        self.ask(Command::Revert).await?;
        Ok(self.show())
    }

    /// Reads all table files again.
    pub async fn reload(&self) -> Result<TableShow, Error> {
        self.ask(Command::Reload).await?;
        Ok(self.show())
    }

    /// Uses the update on trial of this name, or else the committed one; returns when new requests start with it.
    pub async fn follow_update(&self, begun: Option<SlotName>) -> Result<(), Error> {
        self.ask(|reply| Command::FollowUpdate { begun, reply }).await
    }

    /// The update's tables as they would be used if nothing had precedence over them, or why they would not.
    pub fn of_update(&self) -> Result<TableSet, String> {
        let decisions = self.snapshot.borrow().store.update_alone();
        let set = store::table_set(&decisions, &TableSet::default());
        if set.prefill.is_some() || set.decode.is_some() {
            return Ok(set);
        }
        let why = Phase::ALL.into_iter().flat_map(|phase| &decisions[phase].notices).map(ToString::to_string).next();
        Err(why.unwrap_or_else(|| "its tables are dense".into()))
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> Command) -> Result<(), Error> {
        let ended = || Error::new(ErrorKind::Shutdown, "the daemon is ending: tables are not changed any more");
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}
