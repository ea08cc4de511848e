//! The same client for threads: every call waits for its answer, and a running request is an iterator of events.
//!
//! ```no_run
//! let client = skip_client::blocking::Client::connect()?;
//! for event in client.chat().user("Why is the sky blue?").max_tokens(64).send()? {
//!     if let skip_client::StreamEvent::Text { text, .. } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), skip_client::Error>(())
//! ```
//!
//! A client keeps one thread of its own, named `skip-client`, on which connections are served; it ends with the client and its last generation.
//! Calls may come from any thread, also from one that belongs to an async runtime (which they hold up, as any blocking call does).

mod background;
mod generation;

pub use generation::{Canceller, Generation};

use crate::builder::{Chat, RequestBuilder, Text};
use crate::protocol::error::Error;
use crate::protocol::{
    Activity, ApplyUpdate, JobList, JobStatus, ModelList, Phase, PhaseTable, PinPrefix, Prefix, PrefixList, ProfileShow, Prompt, Ready,
    Selector, SetTableOptions, Status, TableShow, TierList, UpdateShow,
};
use background::Background;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A connection to a daemon. Cheap to clone; all methods take `&self` and may be called from several threads at once. It stays good when the
/// daemon is started again, as [the async one](crate::Client) does.
#[derive(Clone, Debug)]
pub struct Client {
    inner: crate::Client,
    background: Arc<Background>,
}

impl Client {
    /// Finds the socket: `SKIPD_SOCKET`, else `/run/skipd/skipd.sock`, else `$XDG_RUNTIME_DIR/skipd.sock`.
    ///
    /// # Errors
    /// `Unreachable` names every path tried; `Internal` where the system gives no thread.
    pub fn connect() -> Result<Self, Error> {
        Self::on_background(crate::Client::connect())
    }

    /// The daemon at a given socket.
    ///
    /// # Errors
    /// `Unreachable` where nothing listens there.
    pub fn connect_socket(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::on_background(crate::Client::connect_socket(path))
    }

    /// The daemon on a bus: `system`, `session`, or a D-Bus address (`unix:path=…`).
    ///
    /// # Errors
    /// `Unreachable` where there is no bus, or nobody owns the daemon's name.
    pub fn connect_bus(address: &str) -> Result<Self, Error> {
        Self::on_background(crate::Client::connect_bus(address))
    }

    /// Finds the socket as [`connect`](Self::connect) does, for a daemon that may not be there yet, and waits until it is ready.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
    pub fn connect_wait(timeout: Duration) -> Result<Self, Error> {
        Self::on_background(crate::Client::connect_wait(timeout))
    }

    /// The same at a given socket.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
    pub fn connect_socket_wait(path: impl Into<PathBuf>, timeout: Duration) -> Result<Self, Error> {
        Self::on_background(crate::Client::connect_socket_wait(path, timeout))
    }

    /// How long a call waits for its answer, and a request for being taken, before it is `Unreachable`: 30 seconds where nothing is said, and None
    /// is for ever. See [the async one](crate::Client::with_timeout), also for what takes as long as it takes.
    pub fn with_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { inner: self.inner.with_timeout(timeout), background: self.background }
    }

    fn on_background(connecting: impl Future<Output = Result<crate::Client, Error>>) -> Result<Self, Error> {
        let background = Arc::new(Background::start()?);
        let inner = background.wait(connecting)?;
        Ok(Self { inner, background })
    }

    /// Where the daemon was found, for messages.
    pub fn address(&self) -> String {
        self.inner.address()
    }

    /// Begins a chat request.
    pub fn chat(&self) -> RequestBuilder<'_, Chat, Self> {
        RequestBuilder::chat(self)
    }

    /// Begins a text completion of `prompt` (text or token ids).
    pub fn complete(&self, prompt: impl Into<Prompt>) -> RequestBuilder<'_, Text, Self> {
        RequestBuilder::text(self, prompt.into())
    }

    /// What the daemon is and does.
    pub fn status(&self) -> Result<Status, Error> {
        self.background.wait(self.inner.status())
    }

    /// The loaded model, as OpenAI lists it. Over the socket only.
    pub fn models(&self) -> Result<ModelList, Error> {
        self.background.wait(self.inner.models())
    }

    /// Prometheus text. Over the socket only.
    pub fn metrics(&self) -> Result<String, Error> {
        self.background.wait(self.inner.metrics())
    }

    /// Whether the daemon is ready, and how far it is.
    pub fn ready(&self) -> Result<Ready, Error> {
        self.background.wait(self.inner.ready())
    }

    /// Waits until the daemon is ready: also for one that is not there, hangs, or drains because it is about to be started again.
    ///
    /// # Errors
    /// As in [the async client](crate::Client::wait_ready): after `timeout` what stood in the way, at once `NotReady` where the daemon has failed.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), Error> {
        self.background.wait(self.inner.wait_ready(timeout))
    }

    /// Token ids of a text, as it is.
    pub fn tokenize(&self, text: impl Into<String>) -> Result<Vec<u32>, Error> {
        self.background.wait(self.inner.tokenize(text))
    }

    /// The tables in force, and why.
    pub fn tables(&self) -> Result<TableShow, Error> {
        self.background.wait(self.inner.tables())
    }

    /// The checkpoint's ladders.
    pub fn tiers(&self) -> Result<TierList, Error> {
        self.background.wait(self.inner.tiers())
    }

    /// Puts a table in force for new requests; answers when it is.
    ///
    /// # Errors
    /// `TableRefused` with the reason (the old table stays), `AccessDenied`.
    pub fn set_table(&self, phase: Phase, selector: Selector, options: SetTableOptions) -> Result<PhaseTable, Error> {
        self.background.wait(self.inner.set_table(phase, selector, options))
    }

    /// Keeps the pending tables.
    pub fn confirm(&self) -> Result<TableShow, Error> {
        self.background.wait(self.inner.confirm())
    }

    /// Goes back to the tables before the pending ones.
    pub fn revert(&self) -> Result<TableShow, Error> {
        self.background.wait(self.inner.revert())
    }

    /// Reads all table files again.
    pub fn reload(&self) -> Result<TableShow, Error> {
        self.background.wait(self.inner.reload())
    }

    /// The board, its clocks and its clock profiles.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn profiles(&self) -> Result<ProfileShow, Error> {
        self.background.wait(self.inner.profiles())
    }

    /// Pins the clocks of a profile; answers when they are read back, and tells what refused.
    ///
    /// # Errors
    /// As in [the async client](crate::Client::apply_profile).
    pub fn apply_profile(&self, name: &str) -> Result<ProfileShow, Error> {
        self.background.wait(self.inner.apply_profile(name))
    }

    /// Puts the clocks back as they were; where no profile is applied there is nothing to do.
    ///
    /// # Errors
    /// `AccessDenied`; `Internal` where a node refuses.
    pub fn release_profile(&self) -> Result<ProfileShow, Error> {
        self.background.wait(self.inner.release_profile())
    }

    /// Lets running requests finish and takes no new ones; answers when idle.
    pub fn drain(&self) -> Result<(), Error> {
        self.background.wait(self.inner.drain())
    }

    /// The pinned prefixes.
    pub fn prefixes(&self) -> Result<PrefixList, Error> {
        self.background.wait(self.inner.prefixes())
    }

    /// Pins a prefix; answers when it is computed.
    ///
    /// # Errors
    /// `CacheTooSmall` with the numbers where the pinned prefixes would take more than they may, `AccessDenied`.
    pub fn pin_prefix(&self, prefix: &PinPrefix) -> Result<Prefix, Error> {
        self.background.wait(self.inner.pin_prefix(prefix))
    }

    /// Drops a pinned prefix, and gives what it was.
    ///
    /// # Errors
    /// `NotFound`, `AccessDenied`.
    pub fn drop_prefix(&self, name: &str) -> Result<Prefix, Error> {
        self.background.wait(self.inner.drop_prefix(name))
    }

    /// What updates over the air brought.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn update(&self) -> Result<UpdateShow, Error> {
        self.background.wait(self.inner.update())
    }

    /// Has a bundle verified and put on trial; `bundle` is a path that the daemon can read. Over the socket only.
    ///
    /// # Errors
    /// `TableRefused`, whose `details` name the failed `check`; `AccessDenied`; `Busy` while another update is on trial.
    pub fn apply_update(&self, bundle: &ApplyUpdate) -> Result<UpdateShow, Error> {
        self.background.wait(self.inner.apply_update(bundle))
    }

    /// The same with the archive itself.
    ///
    /// # Errors
    /// Likewise.
    pub fn apply_update_archive(&self, archive: Vec<u8>) -> Result<UpdateShow, Error> {
        self.background.wait(self.inner.apply_update_archive(archive))
    }

    /// Ends the trial of an update, or goes back to the update before, or to none.
    ///
    /// # Errors
    /// `NothingPending` where no update is in force, `AccessDenied`.
    pub fn roll_back_update(&self) -> Result<UpdateShow, Error> {
        self.background.wait(self.inner.roll_back_update())
    }

    /// What the daemon is doing now.
    pub fn activity(&self) -> Result<Activity, Error> {
        self.background.wait(self.inner.activity())
    }

    /// Starts a job.
    ///
    /// # Errors
    /// `AccessDenied`, `Busy` while another runs, or the kind is not known.
    pub fn start_job(&self, kind: &str, options: Map<String, Value>) -> Result<JobStatus, Error> {
        self.background.wait(self.inner.start_job(kind, options))
    }

    /// The jobs that are remembered, the oldest first.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn jobs(&self) -> Result<JobList, Error> {
        self.background.wait(self.inner.jobs())
    }

    /// How far a job is.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn job(&self, id: &str) -> Result<JobStatus, Error> {
        self.background.wait(self.inner.job(id))
    }

    /// Ends a job at the next chance.
    ///
    /// # Errors
    /// `AccessDenied`, `NotFound`.
    pub fn cancel_job(&self, id: &str) -> Result<(), Error> {
        self.background.wait(self.inner.cancel_job(id))
    }
}

impl RequestBuilder<'_, Chat, Client> {
    /// Sends the request; the answer streams. An error here means that nothing was started.
    pub fn send(self) -> Result<Generation, Error> {
        let client = self.client;
        let (messages, options) = self.into_chat();
        let started = client.background.wait(client.inner.send_chat(messages, options))?;
        Ok(Generation::new(client.background.clone(), started))
    }
}

impl RequestBuilder<'_, Text, Client> {
    /// Sends the request; the answer streams. An error here means that nothing was started.
    pub fn send(self) -> Result<Generation, Error> {
        let client = self.client;
        let (prompt, options) = self.into_text();
        let started = client.background.wait(client.inner.send_text(prompt, options))?;
        Ok(Generation::new(client.background.clone(), started))
    }
}
