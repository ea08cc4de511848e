//! `org.skipd.Skipd1.Jobs` starts jobs; each is an object with the interface `org.skipd.Skipd1.Job`.

use super::answer::{Answer, answer};
use super::caller;
use super::failure::{Failure, wants_details};
use super::polkit::Action;
use crate::jobs::{self, Job};
use crate::peer::Peer;
use crate::state::Daemon;
use serde_json::Value;
use skip_client::protocol::names::{ERROR_DETAILS, JOB_INTERFACE, JOB_PATH_PREFIX};
use skip_client::protocol::{JobState, JobStatus};
use skip_client::variant;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use zbus::message::Header;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Variant};
use zbus::{Connection, interface};

/// The interface's object.
pub struct JobControl {
    daemon: Arc<Daemon>,
    /// Ids of the jobs that have an object.
    shown: Mutex<Vec<String>>,
}

impl JobControl {
    /// Starts jobs of a daemon.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon, shown: Mutex::default() }
    }

    async fn begin(
        &self,
        kind: &str,
        options: &HashMap<String, OwnedVariant>,
        header: &Header<'_>,
        connection: &Connection,
    ) -> Result<OwnedObjectPath, Failure> {
        let peer = caller::authorised(&self.daemon, connection, header, Action::Job).await?;
        let mut options = variant::from_dict(options)?;
        options.shift_remove(ERROR_DETAILS);
        let job = jobs::start(&self.daemon, kind, &options, &peer)?;
        let id = job.status().id;
        let path = path(&id)?;
        connection
            .object_server()
            .at(&path, JobObject { daemon: self.daemon.clone(), job: job.clone() })
            .await
            .map_err(Failure::internal)?;
        for gone in self.forget(id) {
            connection.object_server().remove::<JobObject, _>(self::path(&gone)?).await.map_err(Failure::internal)?;
        }
        tokio::spawn(publish(job, connection.clone(), path.clone()));
        Ok(path)
    }

    /// Adds an id; gives those whose jobs the daemon has forgotten.
    fn forget(&self, id: String) -> Vec<String> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.push(id);
        let (known, gone) = shown.drain(..).partition(|id| self.daemon.jobs.find(id).is_ok());
        *shown = known;
        gone
    }
}

fn path(id: &str) -> Result<OwnedObjectPath, Failure> {
    OwnedObjectPath::try_from(format!("{JOB_PATH_PREFIX}/{id}")).map_err(Failure::internal)
}

#[interface(name = "org.skipd.Skipd1.Jobs", introspection_docs = false)]
impl JobControl {
    /// All that are remembered, however they were started, as the socket shows them.
    #[zbus(out_args("jobs"))]
    async fn list(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<Answer, Failure> {
        let peer = caller::peer(connection, &caller::sender(&header)?).await?;
        answer(&self.daemon.jobs.list(&self.daemon.authority, &peer))
    }

    /// Ends a job of this id at the next chance.
    async fn cancel(
        &self,
        id: String,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), Failure> {
        caller::authorised(&self.daemon, connection, &header, Action::Job).await?;
        self.daemon.jobs.find(&id)?.cancel();
        Ok(())
    }

    /// Starts a job: `qualify`, `calibrate`, `evaluate` or `price`.
    #[zbus(out_args("job"))]
    async fn start(
        &self,
        kind: String,
        options: HashMap<String, OwnedVariant>,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, Failure> {
        let done = self.begin(&kind, &options, &header, connection).await;
        done.map_err(|failure| failure.detailed(wants_details(&options)))
    }
}

/// One job's object.
pub struct JobObject {
    daemon: Arc<Daemon>,
    job: Arc<Job>,
}

#[interface(name = "org.skipd.Skipd1.Job", introspection_docs = false)]
impl JobObject {
    /// Ends it at the next chance.
    async fn cancel(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        caller::authorised(&self.daemon, connection, &header, Action::Job).await?;
        self.job.cancel();
        Ok(())
    }

    /// How far it is, as the socket shows it.
    #[zbus(out_args("status"))]
    async fn show(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<Answer, Failure> {
        answer(&self.seen_by(Some(&header), connection).await)
    }

    /// What it is at; empty for whoever may not see that.
    #[zbus(property(emits_changed_signal = "invalidates"))]
    async fn stage(&self, #[zbus(header)] header: Option<Header<'_>>, #[zbus(connection)] connection: &Connection) -> String {
        self.seen_by(header.as_ref(), connection).await.stage
    }

    /// 0 to 1.
    #[zbus(property)]
    fn progress(&self) -> f64 {
        self.job.status().progress
    }

    /// running, done, failed or cancelled.
    #[zbus(property)]
    fn state(&self) -> String {
        self.job.status().state.name().to_owned()
    }

    /// What it found; empty until it is done, and for whoever may not see that. A job that failed has `error` and `error_code` in it.
    #[zbus(property(emits_changed_signal = "invalidates"))]
    async fn result(&self, #[zbus(header)] header: Option<Header<'_>>, #[zbus(connection)] connection: &Connection) -> Answer {
        result(&self.seen_by(header.as_ref(), connection).await)
    }
}

impl JobObject {
    /// As far as the sender of a message may see it; what has no sender, or one that the bus does not know, sees least.
    async fn seen_by(&self, header: Option<&Header<'_>>, connection: &Connection) -> JobStatus {
        let peer = match header.map(caller::sender) {
            Some(Ok(sender)) => caller::peer(connection, &sender).await.unwrap_or(Peer::KeyHolder),
            _ => Peer::KeyHolder,
        };
        self.job.status_for(&self.daemon.authority, &peer)
    }
}

fn result(status: &JobStatus) -> Answer {
    if let Some(Value::Object(found)) = &status.result {
        return variant::to_dict(found);
    }
    let words = [("error", &status.error), ("error_code", &status.error_code)];
    words.into_iter().filter_map(|(name, word)| Some((name.to_owned(), Variant::new(word.clone()?)))).collect()
}

/// PropertiesChanged until the job has ended. Everybody on the bus gets these: of what not all may see they say that it is another.
async fn publish(job: Arc<Job>, connection: Connection, path: OwnedObjectPath) {
    let mut changes = job.watch();
    loop {
        let status = changes.borrow_and_update().clone();
        let changed = HashMap::from([("Progress", Variant::new(status.progress)), ("State", Variant::new(status.state.name().to_owned()))]);
        let others: &[&str] = if status.state == JobState::Running { &["Stage"] } else { &["Stage", "Result"] };
        if let Err(error) = emit(&connection, &path, changed, others).await {
            tracing::debug!(%error, "a job's progress was not published");
        }
        if status.state != JobState::Running || changes.changed().await.is_err() {
            return;
        }
    }
}

async fn emit(connection: &Connection, path: &OwnedObjectPath, changed: HashMap<&str, Variant<'_>>, others: &[&str]) -> zbus::Result<()> {
    let emitter = SignalEmitter::new(connection, path)?;
    let interface = InterfaceName::try_from(JOB_INTERFACE)?;
    zbus::fdo::Properties::properties_changed(&emitter, interface, changed, Cow::Borrowed(others)).await
}
