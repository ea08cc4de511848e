//! The client: one API over two transports.

use crate::address;
use crate::builder::{Chat, RequestBuilder, Text};
use crate::bus::Bus;
use crate::generation::Generation;
use crate::http::Socket;
use crate::patience::Patience;
use crate::protocol::error::{Error, ErrorKind};
use crate::protocol::names;
use crate::protocol::{
    Activity, ApplyProfile, ApplyUpdate, ChatMessage, ChatRequest, CompletionRequest, GenerationOptions, JobList, JobStatus, ModelList,
    Phase, PhaseTable, PinPrefix, Prefix, PrefixList, ProfileShow, Prompt, Selector, SetTable, SetTableOptions, StartJob, Status,
    StreamOptions, TableShow, TierList, TokenizeRequest, TokenizeResponse, UpdateShow,
};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;

/// A connection to a daemon. Cheap to clone; all methods take `&self`. It stays good when the daemon is started again: over the socket each request
/// opens its own connection, and on a bus the daemon is called by its name.
///
/// Nobody waits for ever for a daemon that hangs: see [`with_timeout`](Self::with_timeout).
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
}

#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Socket(Socket),
    Bus(Bus),
}

impl Client {
    /// Finds the socket: `SKIPD_SOCKET`, else `/run/skipd/skipd.sock`, else `$XDG_RUNTIME_DIR/skipd.sock`.
    ///
    /// # Errors
    /// `Unreachable` names every path tried.
    pub async fn connect() -> Result<Self, Error> {
        let path = address::find(address::candidates(address::process_env)).await?;
        Ok(Self::over(Transport::Socket(Socket::new(path))))
    }

    /// The daemon at a given socket.
    ///
    /// # Errors
    /// `Unreachable` where nothing listens there.
    pub async fn connect_socket(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = address::find(vec![path.into()]).await?;
        Ok(Self::over(Transport::Socket(Socket::new(path))))
    }

    /// The daemon on a bus: `system`, `session`, or a D-Bus address (`unix:path=…`).
    ///
    /// # Errors
    /// `Unreachable` where there is no bus, or nobody owns the daemon's name.
    pub async fn connect_bus(address: &str) -> Result<Self, Error> {
        Ok(Self::over(Transport::Bus(Bus::connect(address).await?)))
    }

    pub(crate) fn over(transport: Transport) -> Self {
        Self { transport }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// How long a call waits for its answer, and a request for being taken, before it is `Unreachable`: 30 seconds where nothing is said, and None
    /// is for ever. What takes as long as it takes (an answer's events, a pin, a drain) is waited for as long as the daemon lives: after each
    /// such time of silence it is asked for something else, and given up where that is not answered in time either. A request with a deadline
    /// ends with `Deadline` five seconds after it, whatever the daemon does.
    pub fn with_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let patience = Patience::new(timeout.into());
        Self::over(match self.transport {
            Transport::Socket(socket) => Transport::Socket(socket.with_patience(patience)),
            Transport::Bus(bus) => Transport::Bus(bus.with_patience(patience)),
        })
    }

    /// Where the daemon was found, for messages.
    pub fn address(&self) -> String {
        match &self.transport {
            Transport::Socket(socket) => socket.path().display().to_string(),
            Transport::Bus(bus) => bus.address().to_owned(),
        }
    }

    /// Begins a chat request.
    pub fn chat(&self) -> RequestBuilder<'_, Chat> {
        RequestBuilder::chat(self)
    }

    /// Begins a text completion of `prompt` (text or token ids).
    pub fn complete(&self, prompt: impl Into<Prompt>) -> RequestBuilder<'_, Text> {
        RequestBuilder::text(self, prompt.into())
    }

    pub(crate) async fn send_chat(&self, messages: Vec<ChatMessage>, mut options: GenerationOptions) -> Result<Generation, Error> {
        // Here too: JSON has no NaN, and would carry one as a field that was not set.
        options.check()?;
        let deadline = deadline(&options);
        match &self.transport {
            Transport::Socket(socket) => {
                stream_with_usage(&mut options);
                socket.until(deadline).stream(names::CHAT_COMPLETIONS, &ChatRequest { options, ..ChatRequest::new(messages) }).await
            }
            Transport::Bus(bus) => bus.until(deadline).chat(&messages, &options).await,
        }
    }

    pub(crate) async fn send_text(&self, prompt: Prompt, mut options: GenerationOptions) -> Result<Generation, Error> {
        options.check()?;
        let deadline = deadline(&options);
        match &self.transport {
            Transport::Socket(socket) => {
                stream_with_usage(&mut options);
                socket.until(deadline).stream(names::COMPLETIONS, &CompletionRequest { options, ..CompletionRequest::new(prompt) }).await
            }
            Transport::Bus(bus) => match prompt {
                Prompt::Text(text) => bus.until(deadline).generate(&text, &options).await,
                Prompt::Tokens(ids) => bus.until(deadline).generate_tokens(&ids, &options).await,
            },
        }
    }

    /// What the daemon is and does.
    pub async fn status(&self) -> Result<Status, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::STATUS, NO_BODY).await,
            Transport::Bus(bus) => bus.status().await,
        }
    }

    /// The requests under way: the caller's own, an administrator's view of all.
    pub async fn activity(&self) -> Result<Activity, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::REQUESTS, NO_BODY).await,
            Transport::Bus(bus) => bus.activity().await,
        }
    }

    /// The loaded model, as OpenAI lists it. Over the socket only.
    pub async fn models(&self) -> Result<ModelList, Error> {
        self.socket("the model list")?.call("GET", names::MODELS, NO_BODY).await
    }

    /// Prometheus text. Over the socket only.
    pub async fn metrics(&self) -> Result<String, Error> {
        let (status, body) = self.socket("metrics")?.raw("GET", names::METRICS, Bytes::new()).await?;
        match (status, String::from_utf8(body.to_vec())) {
            (200, Ok(text)) => Ok(text),
            _ => Err(Error::new(ErrorKind::from_http_status(status), format!("the daemon answered with status {status}"))),
        }
    }

    /// Token ids of a text, as it is.
    pub async fn tokenize(&self, text: impl Into<String>) -> Result<Vec<u32>, Error> {
        let request = TokenizeRequest { text: text.into() };
        match &self.transport {
            Transport::Socket(socket) => Ok(socket.call::<TokenizeResponse>("POST", names::TOKENIZE, Some(&request)).await?.tokens),
            Transport::Bus(bus) => bus.tokenize(&request.text).await,
        }
    }

    /// The tables in force, and why.
    pub async fn tables(&self) -> Result<TableShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::TABLES, NO_BODY).await,
            Transport::Bus(bus) => bus.tables().await,
        }
    }

    /// The checkpoint's ladders.
    pub async fn tiers(&self) -> Result<TierList, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::TIERS, NO_BODY).await,
            Transport::Bus(bus) => bus.tiers().await,
        }
    }

    /// Puts a table in force for new requests; answers when it is.
    ///
    /// # Errors
    /// `TableRefused` with the reason (the old table stays), `AccessDenied`.
    pub async fn set_table(&self, phase: Phase, selector: Selector, options: SetTableOptions) -> Result<PhaseTable, Error> {
        match &self.transport {
            Transport::Socket(socket) => {
                let route = format!("{}/{phase}", names::TABLES);
                socket.call("PUT", &route, Some(&SetTable::from_parts(selector, options))).await
            }
            Transport::Bus(bus) => {
                bus.set_table(phase, &selector, &options).await?;
                Ok(bus.tables().await?.phase(phase).clone())
            }
        }
    }

    /// Keeps the pending tables.
    pub async fn confirm(&self) -> Result<TableShow, Error> {
        self.change("Confirm", names::TABLES_CONFIRM).await
    }

    /// Goes back to the tables before the pending ones.
    pub async fn revert(&self) -> Result<TableShow, Error> {
        self.change("Revert", names::TABLES_REVERT).await
    }

    /// Reads all table files again.
    pub async fn reload(&self) -> Result<TableShow, Error> {
        self.change("Reload", names::TABLES_RELOAD).await
    }

    async fn change(&self, method: &str, route: &str) -> Result<TableShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("POST", route, NO_BODY).await,
            Transport::Bus(bus) => {
                bus.change_tables(method).await?;
                bus.tables().await
            }
        }
    }

    /// The pinned prefixes.
    pub async fn prefixes(&self) -> Result<PrefixList, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::PREFIXES, NO_BODY).await,
            Transport::Bus(bus) => bus.prefixes().await,
        }
    }

    /// Pins a prefix; answers when it is computed.
    ///
    /// # Errors
    /// `CacheTooSmall` with the numbers where the pinned prefixes would take more than they may, `AccessDenied`.
    pub async fn pin_prefix(&self, prefix: &PinPrefix) -> Result<Prefix, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.outcome("POST", names::PREFIXES, Some(prefix)).await,
            Transport::Bus(bus) => bus.pin_prefix(prefix).await,
        }
    }

    /// Drops a pinned prefix, and gives what it was.
    ///
    /// # Errors
    /// `NotFound`, `AccessDenied`.
    pub async fn drop_prefix(&self, name: &str) -> Result<Prefix, Error> {
        match &self.transport {
            // A name with a slash or a question mark would be another route.
            Transport::Socket(_) if !PinPrefix::is_name(name) => Err(Prefix::unknown(name)),
            Transport::Socket(socket) => socket.call("DELETE", &format!("{}/{name}", names::PREFIXES), NO_BODY).await,
            Transport::Bus(bus) => bus.drop_prefix(name).await,
        }
    }

    /// What updates over the air brought.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn update(&self) -> Result<UpdateShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::UPDATE, NO_BODY).await,
            Transport::Bus(bus) => bus.update().await,
        }
    }

    /// Has a bundle verified and put on trial; `bundle` is a path that the daemon can read. Over the socket only: the bus's `Apply` takes a descriptor.
    ///
    /// # Errors
    /// `TableRefused`, whose `details` name the failed `check`; `AccessDenied`; `Busy` while another update is on trial.
    pub async fn apply_update(&self, bundle: &ApplyUpdate) -> Result<UpdateShow, Error> {
        self.socket("applying an update by its path")?.outcome("POST", names::UPDATE_APPLY, Some(bundle)).await
    }

    /// The same with the archive itself.
    ///
    /// # Errors
    /// Likewise.
    pub async fn apply_update_archive(&self, archive: Vec<u8>) -> Result<UpdateShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.outcome_of_bytes(names::UPDATE_APPLY, archive).await,
            Transport::Bus(bus) => bus.apply_update(archive).await,
        }
    }

    /// Ends the trial of an update, or goes back to the update before, or to none.
    ///
    /// # Errors
    /// `NothingPending` where no update is in force, `AccessDenied`.
    pub async fn roll_back_update(&self) -> Result<UpdateShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.outcome("POST", names::UPDATE_ROLLBACK, NO_BODY).await,
            Transport::Bus(bus) => bus.roll_back_update().await,
        }
    }

    /// The board, its clocks and its clock profiles.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn profiles(&self) -> Result<ProfileShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::PROFILE, NO_BODY).await,
            Transport::Bus(bus) => bus.profiles().await,
        }
    }

    /// Pins the clocks of a profile; answers when they are read back, and tells what refused.
    ///
    /// # Errors
    /// `NotFound` for a profile there is not, `InvalidRequest` for one that is wrong or for another board or power mode, `AccessDenied`;
    /// `Internal` where nothing could be pinned.
    pub async fn apply_profile(&self, name: &str) -> Result<ProfileShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.outcome("POST", names::PROFILE_APPLY, Some(&ApplyProfile { name: name.to_owned() })).await,
            Transport::Bus(bus) => bus.apply_profile(name).await,
        }
    }

    /// Puts the clocks back as they were; where no profile is applied there is nothing to do.
    ///
    /// # Errors
    /// `AccessDenied`; `Internal` where a node refuses.
    pub async fn release_profile(&self) -> Result<ProfileShow, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.outcome("POST", names::PROFILE_RELEASE, NO_BODY).await,
            Transport::Bus(bus) => bus.release_profile().await,
        }
    }

    /// Lets running requests finish and takes no new ones; answers when idle.
    pub async fn drain(&self) -> Result<(), Error> {
        match &self.transport {
            Transport::Socket(socket) => {
                socket.outcome::<serde::de::IgnoredAny>("POST", names::DRAIN, NO_BODY).await?;
                Ok(())
            }
            Transport::Bus(bus) => bus.drain().await,
        }
    }

    /// Starts a job.
    ///
    /// # Errors
    /// `AccessDenied`, `Busy` while another runs, or the kind is not known.
    pub async fn start_job(&self, kind: &str, options: Map<String, Value>) -> Result<JobStatus, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("POST", names::JOBS, Some(&StartJob { kind: kind.to_owned(), options })).await,
            Transport::Bus(bus) => {
                let id = bus.start_job(kind, &options).await?;
                bus.job(&id).await
            }
        }
    }

    /// The jobs that are remembered, the oldest first.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn jobs(&self) -> Result<JobList, Error> {
        match &self.transport {
            Transport::Socket(socket) => socket.call("GET", names::JOBS, NO_BODY).await,
            Transport::Bus(bus) => bus.jobs().await,
        }
    }

    /// How far a job is.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn job(&self, id: &str) -> Result<JobStatus, Error> {
        match &self.transport {
            // An id with a slash or a question mark would be another route.
            Transport::Socket(_) if !JobStatus::is_id(id) => Err(JobStatus::unknown(id)),
            Transport::Socket(socket) => socket.call("GET", &format!("{}/{id}", names::JOBS), NO_BODY).await,
            Transport::Bus(bus) => bus.job(id).await,
        }
    }

    /// Ends a job at the next chance.
    ///
    /// # Errors
    /// `AccessDenied`, `NotFound`.
    pub async fn cancel_job(&self, id: &str) -> Result<(), Error> {
        match &self.transport {
            Transport::Socket(_) if !JobStatus::is_id(id) => Err(JobStatus::unknown(id)),
            Transport::Socket(socket) => socket.call::<JobStatus>("POST", &format!("{}/{id}/cancel", names::JOBS), NO_BODY).await.map(drop),
            Transport::Bus(bus) => bus.cancel_job(id).await,
        }
    }

    fn socket(&self, what: &str) -> Result<&Socket, Error> {
        match &self.transport {
            Transport::Socket(socket) => Ok(socket),
            Transport::Bus(_) => Err(Error::new(ErrorKind::Unsupported, format!("{what} is on the socket, not on the bus"))),
        }
    }
}

const NO_BODY: Option<&()> = None;

fn deadline(options: &GenerationOptions) -> Option<Duration> {
    options.skipd.as_ref()?.deadline_ms.map(Duration::from_millis)
}

fn stream_with_usage(options: &mut GenerationOptions) {
    options.stream = true;
    options.stream_options = Some(StreamOptions { include_usage: true });
}
