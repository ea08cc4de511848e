//! `org.skipd.Skipd1.Manager`: generation, and what the daemon is and does.

use super::answer::{Answer, answer};
use super::caller;
use super::failure::{Failure, wants_details};
use super::polkit::Action;
use super::prompt;
use super::requests::Requests;
use crate::activity;
use crate::generation::{Ask, Input};
use crate::lifecycle::Stage;
use crate::peer::Right;
use crate::state::Daemon;
use crate::status;
use serde_json::{Map, Value};
use skip_client::protocol::names::ERROR_DETAILS;
use skip_client::protocol::{ChatMessage, GenerationOptions, Prompt, Status, words};
use skip_client::{Error, ErrorKind, variant};
use std::collections::HashMap;
use std::sync::Arc;
use zbus::message::Header;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Variant};
use zbus::{Connection, OwnedFd, interface};

/// Options as they come: `a{sv}`.
type Options = HashMap<String, OwnedVariant>;

/// The interface's object.
pub struct Manager {
    daemon: Arc<Daemon>,
    requests: Arc<Requests>,
}

impl Manager {
    /// Serves a daemon.
    pub fn new(daemon: Arc<Daemon>, requests: Arc<Requests>) -> Self {
        Self { daemon, requests }
    }

    fn properties(&self) -> Properties {
        Properties::of(&status::report(&self.daemon))
    }

    async fn start(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        options: Options,
        input: impl Future<Output = Result<Input, Error>>,
    ) -> Result<(OwnedObjectPath, OwnedFd), Failure> {
        let detailed = wants_details(&options);
        let started = async {
            let Asked { token, model, options } = Asked::read(&options)?;
            let ask = |id| async move { Ok(Ask { id, model, input: input.await?, options }) };
            self.requests.start(&self.daemon, connection, header, token, ask).await
        };
        started.await.map_err(|failure| failure.detailed(detailed))
    }
}

/// What the `a{sv}` of a generating method says.
struct Asked {
    token: Option<String>,
    model: Option<String>,
    options: GenerationOptions,
}

impl Asked {
    fn read(options: &Options) -> Result<Self, Error> {
        let mut keys = variant::from_dict(options)?;
        if keys.shift_remove(ERROR_DETAILS).is_some_and(|value| !value.is_boolean()) {
            return Err(Error::invalid(ERROR_DETAILS, "must be true or false"));
        }
        let token = text(&mut keys, "handle_token")?;
        let model = text(&mut keys, "model")?;
        Ok(Self { token, model, options: GenerationOptions::from_bus(keys)? })
    }
}

fn text(keys: &mut Map<String, Value>, key: &str) -> Result<Option<String>, Error> {
    match keys.shift_remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::invalid(key, "must be a string")),
    }
}

#[interface(name = "org.skipd.Skipd1.Manager", introspection_docs = false)]
impl Manager {
    /// Continues a prompt.
    #[zbus(out_args("request", "stream"))]
    async fn generate(
        &self,
        prompt: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(OwnedObjectPath, OwnedFd), Failure> {
        self.start(connection, &header, options, async { Ok(Input::Raw(Prompt::Text(prompt))) }).await
    }

    /// Continues a prompt of token ids, taken as they are.
    #[zbus(out_args("request", "stream"))]
    async fn generate_tokens(
        &self,
        prompt: Vec<u32>,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(OwnedObjectPath, OwnedFd), Failure> {
        self.start(connection, &header, options, async { Ok(Input::Raw(Prompt::Tokens(prompt))) }).await
    }

    /// Continues a prompt that lies in a sealed memory file or a regular file.
    #[zbus(out_args("request", "stream"))]
    async fn generate_fd(
        &self,
        prompt: OwnedFd,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(OwnedObjectPath, OwnedFd), Failure> {
        let limit = self.daemon.config.max_body;
        let input = async move {
            let reading = tokio::task::spawn_blocking(move || prompt::read(prompt.into(), limit));
            let text = reading.await.map_err(|_| Error::new(ErrorKind::Internal, "reading the prompt failed"))??;
            Ok(Input::Raw(Prompt::Text(text)))
        };
        self.start(connection, &header, options, input).await
    }

    /// Answers a conversation: the JSON of OpenAI's `messages`.
    #[zbus(out_args("request", "stream"))]
    async fn chat(
        &self,
        messages_json: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(OwnedObjectPath, OwnedFd), Failure> {
        let input = async move {
            let messages = serde_json::from_str(&messages_json).map_err(|e| Error::invalid("messages", words(&e)))?;
            Ok(Input::Chat(ChatMessage::list(messages)?))
        };
        self.start(connection, &header, options, input).await
    }

    /// The token ids of a text.
    #[zbus(out_args("tokens"))]
    async fn tokenize(
        &self,
        text: String,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<Vec<u32>, Failure> {
        caller::authorised(&self.daemon, connection, &header, Action::Generate).await?;
        let model = self.daemon.ready_model()?.text.clone();
        let encoding = tokio::task::spawn_blocking(move || model.encode(&text));
        Ok(encoding.await.map_err(|_| Failure::internal("the tokenizer failed"))??)
    }

    /// All that the socket's status tells; the properties are the part of it that changes seldom.
    #[zbus(out_args("status"))]
    fn status(&self) -> Result<Answer, Failure> {
        answer(&status::report(&self.daemon))
    }

    /// The requests under way, as far as the caller may see them.
    #[zbus(out_args("requests"))]
    async fn requests(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<Answer, Failure> {
        let peer = caller::peer(connection, &caller::sender(&header)?).await?;
        answer(&activity::report(&self.daemon, &peer).await?)
    }

    /// Takes no new requests from now on; answers when the running ones have ended.
    async fn drain(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        let peer = caller::peer(connection, &caller::sender(&header)?).await?;
        self.daemon.authority.check(&peer, Right::Control)?;
        tracing::info!("draining by request");
        self.daemon.life.advance(Stage::Draining);
        if let Some(model) = self.daemon.model() {
            // An engine that has ended is as idle as one can be.
            model.engine.drain().await;
        }
        Ok(())
    }

    /// skipd's version.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> String {
        self.properties().version
    }

    /// starting, loading, ready, draining or failed.
    #[zbus(property)]
    fn state(&self) -> String {
        self.properties().state
    }

    /// (available, degraded or unavailable; the reason).
    #[zbus(property)]
    fn availability(&self) -> (String, String) {
        self.properties().availability
    }

    /// The name requests use; empty until it is known.
    #[zbus(property)]
    fn model(&self) -> String {
        self.properties().model
    }

    /// Longest prompt and answer together, tokens; 0 until it is known.
    #[zbus(property)]
    fn context_length(&self) -> u32 {
        self.properties().context_length
    }

    /// cpu or cuda; empty until it is chosen.
    #[zbus(property)]
    fn backend(&self) -> String {
        self.properties().backend
    }

    /// Kernels in use.
    #[zbus(property)]
    fn kernel_set(&self) -> String {
        self.properties().kernel_set
    }

    /// Share of the model loaded, 0 to 1.
    #[zbus(property)]
    fn load_progress(&self) -> f64 {
        self.properties().load_progress
    }

    /// (prefill, decode), each 0 to 1, or −1 where nothing was voted on.
    #[zbus(property)]
    fn measured_sparsity(&self) -> (f64, f64) {
        self.properties().measured_sparsity
    }
}

/// The interface's properties at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    version: String,
    state: String,
    availability: (String, String),
    model: String,
    context_length: u32,
    backend: String,
    kernel_set: String,
    load_progress: f64,
    measured_sparsity: (f64, f64),
}

impl Properties {
    /// Those of a status.
    pub fn of(status: &Status) -> Self {
        let backend = status.backend.as_ref();
        let model = status.model.as_ref();
        let share = |share: Option<f64>| share.unwrap_or(-1.0);
        Self {
            version: status.version.clone(),
            state: status.state.name().to_owned(),
            availability: (name(status.availability.state), status.availability.reason.clone()),
            model: model.map(|m| m.name.clone()).unwrap_or_default(),
            context_length: model.map_or(0, |m| m.context_length),
            backend: backend.map(|b| b.name.clone()).unwrap_or_default(),
            kernel_set: backend.map(|b| b.kernel_set.clone()).unwrap_or_default(),
            load_progress: status.load_progress,
            measured_sparsity: (share(status.measured_sparsity.prefill), share(status.measured_sparsity.decode)),
        }
    }

    /// By name.
    pub fn dict(&self) -> Vec<(&'static str, Variant<'static>)> {
        vec![
            ("Version", Variant::new(self.version.clone())),
            ("State", Variant::new(self.state.clone())),
            ("Availability", Variant::new(self.availability.clone())),
            ("Model", Variant::new(self.model.clone())),
            ("ContextLength", Variant::new(self.context_length)),
            ("Backend", Variant::new(self.backend.clone())),
            ("KernelSet", Variant::new(self.kernel_set.clone())),
            ("LoadProgress", Variant::new(self.load_progress)),
            ("MeasuredSparsity", Variant::new(self.measured_sparsity)),
        ]
    }
}

/// The word a state has on the wire.
fn name(state: impl serde::Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(Value::String(word)) => word,
        // Unit variants always serialise to their word.
        _ => String::new(),
    }
}
