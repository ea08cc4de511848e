//! The daemon on a bus: method calls, and the stream of events that comes through a file descriptor.

use crate::generation::Generation;
use crate::lines::Lines;
use crate::patience::Patience;
use crate::protocol::error::{Error, ErrorKind};
use crate::protocol::{
    Activity, ChatMessage, GenerationOptions, JobList, JobStatus, Phase, PinPrefix, Prefix, PrefixList, ProfileShow, Selector,
    SetTableOptions, Status, StreamEvent, TableShow, TierList, UpdateShow, names,
};
use crate::variant;
use rustix::fs::{FileType, MemfdFlags, SealFlags};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use zbus::wire::{DynamicDeserialize, DynamicType, OwnedObjectPath, OwnedVariant, Variant};
use zbus::{Connection, Message};

/// Longer prompts go in a sealed memory file: buses limit messages, and this one is not copied through the bus daemon.
const LONG_PROMPT: usize = 64 << 10;
/// What every connection on a bus answers, with its method `Ping`.
const PEER_INTERFACE: &str = "org.freedesktop.DBus.Peer";

/// A connection to a bus on which somebody owned the daemon's name.
#[derive(Clone, Debug)]
pub(crate) struct Bus {
    connection: Connection,
    address: String,
    patience: Patience,
}

impl Bus {
    pub(crate) async fn connect(address: &str) -> Result<Self, Error> {
        let builder = match address {
            "system" => zbus::connection::Builder::system(),
            "session" => zbus::connection::Builder::session(),
            other => zbus::connection::Builder::address(other),
        };
        let no_bus = |error: zbus::Error| Error::new(ErrorKind::Unreachable, format!("no bus at {address}: {error}"));
        let patience = Patience::default();
        let connection = patience.answer(async { builder.build().await.map_err(no_bus) }).await?;
        let bus = Self { connection, address: address.to_owned(), patience };
        // A call starts the daemon where it can be activated, and tells whether there is one.
        bus.status().await.map_err(|error| match error.kind {
            ErrorKind::Unreachable => {
                Error::new(ErrorKind::Unreachable, format!("nobody owns {} on the bus {address}: {}", names::BUS_NAME, error.message))
            }
            _ => error,
        })?;
        Ok(bus)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// For one request with a deadline, which begins now.
    pub(crate) fn until(&self, deadline: Option<Duration>) -> Self {
        self.clone().with_patience(self.patience.until(deadline))
    }

    async fn ask<B: serde::Serialize + DynamicType>(&self, path: &str, interface: &str, method: &str, body: &B) -> Result<Message, Error> {
        self.connection.call_method(Some(names::BUS_NAME), path, Some(interface), method, body).await.map_err(from_bus)
    }

    /// Waits until the daemon has answered anything at all.
    async fn look(&self) {
        // What it answers, or that it cannot, is for the call beside this one to find out.
        let _ = self.ask(names::OBJECT_PATH, PEER_INTERFACE, "Ping", &()).await;
    }

    async fn message<B: serde::Serialize + DynamicType>(&self, interface: &str, method: &str, body: &B) -> Result<Message, Error> {
        self.patience.answer(self.ask(names::OBJECT_PATH, interface, method, body)).await
    }

    /// The same where the answer is the end of long work.
    async fn outcome<B: serde::Serialize + DynamicType>(&self, interface: &str, method: &str, body: &B) -> Result<Message, Error> {
        self.patience.outcome(self.ask(names::OBJECT_PATH, interface, method, body), || self.look()).await
    }

    async fn call<B, R>(&self, interface: &str, method: &str, body: &B) -> Result<R, Error>
    where
        B: serde::Serialize + DynamicType,
        R: for<'d> DynamicDeserialize<'d>,
    {
        self.message(interface, method, body).await?.body().deserialize().map_err(from_bus)
    }

    pub(crate) async fn status(&self) -> Result<Status, Error> {
        self.dict(names::MANAGER_INTERFACE, "Status").await
    }

    pub(crate) async fn activity(&self) -> Result<Activity, Error> {
        self.dict(names::MANAGER_INTERFACE, "Requests").await
    }

    pub(crate) async fn chat(&self, messages: &[ChatMessage], options: &GenerationOptions) -> Result<Generation, Error> {
        let messages = serde_json::to_string(messages).map_err(|error| Error::invalid("messages", error.to_string()))?;
        self.start("Chat", &(messages.as_str(), detailed(&options.to_bus()))).await
    }

    pub(crate) async fn generate_tokens(&self, prompt: &[u32], options: &GenerationOptions) -> Result<Generation, Error> {
        self.start("GenerateTokens", &(prompt, detailed(&options.to_bus()))).await
    }

    pub(crate) async fn generate(&self, prompt: &str, options: &GenerationOptions) -> Result<Generation, Error> {
        let options = detailed(&options.to_bus());
        if prompt.len() < LONG_PROMPT {
            return self.start("Generate", &(prompt, options)).await;
        }
        let file = memory_file(prompt.as_bytes())
            .map_err(|error| Error::new(ErrorKind::Internal, format!("no memory file for the prompt: {error}")))?;
        self.start("GenerateFd", &(zbus::Fd::from(file), options)).await
    }

    async fn start<B: serde::Serialize + DynamicType>(&self, method: &str, body: &B) -> Result<Generation, Error> {
        let (_request, stream): (OwnedObjectPath, zbus::OwnedFd) = self.call(names::MANAGER_INTERFACE, method, body).await?;
        // Whoever leaves the bus has its requests cancelled: a generation keeps its client there.
        let bus = self.clone();
        let look = move || {
            let bus = bus.clone();
            async move { bus.look().await }
        };
        Ok(Generation::new(self.patience.events(events(Reader::new(stream.into())?), look)))
    }

    pub(crate) async fn tokenize(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.call(names::MANAGER_INTERFACE, "Tokenize", &(text,)).await
    }

    pub(crate) async fn update(&self) -> Result<UpdateShow, Error> {
        self.dict(names::UPDATE_INTERFACE, "Show").await
    }

    pub(crate) async fn apply_update(&self, archive: Vec<u8>) -> Result<UpdateShow, Error> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Internal, format!("no memory file for the bundle: {error}"));
        let file = memory_file(&archive).map_err(failed)?;
        self.outcome(names::UPDATE_INTERFACE, "Apply", &(zbus::OwnedFd::from(file),)).await?;
        self.update().await
    }

    pub(crate) async fn roll_back_update(&self) -> Result<UpdateShow, Error> {
        self.outcome(names::UPDATE_INTERFACE, "Rollback", &()).await?;
        self.update().await
    }

    pub(crate) async fn profiles(&self) -> Result<ProfileShow, Error> {
        self.dict(names::PROFILE_INTERFACE, "List").await
    }

    pub(crate) async fn apply_profile(&self, name: &str) -> Result<ProfileShow, Error> {
        self.outcome(names::PROFILE_INTERFACE, "Apply", &(name,)).await?;
        self.profiles().await
    }

    pub(crate) async fn release_profile(&self) -> Result<ProfileShow, Error> {
        self.outcome(names::PROFILE_INTERFACE, "Release", &()).await?;
        self.profiles().await
    }

    pub(crate) async fn drain(&self) -> Result<(), Error> {
        self.outcome(names::MANAGER_INTERFACE, "Drain", &()).await.map(drop)
    }

    pub(crate) async fn set_table(&self, phase: Phase, selector: &Selector, options: &SetTableOptions) -> Result<(), Error> {
        let options = match serde_json::to_value(options) {
            Ok(Value::Object(options)) => detailed(&options),
            // A struct of plain fields always serialises to an object.
            _ => HashMap::new(),
        };
        self.message(names::TABLES_INTERFACE, "SetTable", &(phase.name(), selector.to_string(), options)).await.map(drop)
    }

    /// `Confirm`, `Revert` or `Reload`.
    pub(crate) async fn change_tables(&self, method: &str) -> Result<(), Error> {
        self.message(names::TABLES_INTERFACE, method, &()).await.map(drop)
    }

    pub(crate) async fn tables(&self) -> Result<TableShow, Error> {
        self.dict(names::TABLES_INTERFACE, "Show").await
    }

    pub(crate) async fn tiers(&self) -> Result<TierList, Error> {
        self.dict(names::TABLES_INTERFACE, "Tiers").await
    }

    pub(crate) async fn prefixes(&self) -> Result<PrefixList, Error> {
        self.dict(names::PREFIXES_INTERFACE, "List").await
    }

    pub(crate) async fn pin_prefix(&self, prefix: &PinPrefix) -> Result<Prefix, Error> {
        read(&self.outcome(names::PREFIXES_INTERFACE, "Pin", &(detailed(&prefix.to_bus()),)).await?, "Pin")
    }

    pub(crate) async fn drop_prefix(&self, name: &str) -> Result<Prefix, Error> {
        read(&self.message(names::PREFIXES_INTERFACE, "Drop", &(name,)).await?, "Drop")
    }

    /// Starts a job; gives its id.
    pub(crate) async fn start_job(&self, kind: &str, options: &Map<String, Value>) -> Result<String, Error> {
        let path: OwnedObjectPath = self.call(names::JOBS_INTERFACE, "Start", &(kind, variant::to_dict(options))).await?;
        Ok(path.as_str().rsplit('/').next().unwrap_or_default().to_owned())
    }

    pub(crate) async fn jobs(&self) -> Result<JobList, Error> {
        self.dict(names::JOBS_INTERFACE, "List").await
    }

    pub(crate) async fn job(&self, id: &str) -> Result<JobStatus, Error> {
        let found = self.jobs().await?.jobs.into_iter().find(|job| job.id == id);
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no job {id}")).at("id"))
    }

    pub(crate) async fn cancel_job(&self, id: &str) -> Result<(), Error> {
        self.call(names::JOBS_INTERFACE, "Cancel", &(id,)).await
    }

    async fn dict<T: DeserializeOwned>(&self, interface: &str, method: &str) -> Result<T, Error> {
        self.dict_at(names::OBJECT_PATH, interface, method).await
    }

    async fn dict_at<T: DeserializeOwned>(&self, path: &str, interface: &str, method: &str) -> Result<T, Error> {
        read(&self.patience.answer(self.ask(path, interface, method, &())).await?, method)
    }
}

/// An answer that is an `a{sv}`.
fn read<T: DeserializeOwned>(reply: &Message, method: &str) -> Result<T, Error> {
    let dict: HashMap<String, OwnedVariant> = reply.body().deserialize().map_err(from_bus)?;
    let foreign = |error: String| Error::new(ErrorKind::Protocol, format!("the answer of {method} is not understood: {error}"));
    let object = variant::from_dict(&dict).map_err(|error| foreign(error.to_string()))?;
    serde_json::from_value(Value::Object(object)).map_err(|error| foreign(error.to_string()))
}

/// Options as an `a{sv}` that also asks for errors with their field and numbers.
fn detailed(options: &Map<String, Value>) -> HashMap<String, Variant<'static>> {
    let mut dict = variant::to_dict(options);
    dict.insert(names::ERROR_DETAILS.to_owned(), Variant::Bool(true));
    dict
}

/// A sealed memory file that holds `text`, at its beginning.
fn memory_file(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    let file = rustix::fs::memfd_create("skipd-prompt", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes)?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file.into())
}

/// The reading end of a request's stream, a pipe or a socket; closing it cancels the request.
struct Reader {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    lines: Lines,
}

impl Reader {
    fn new(fd: OwnedFd) -> Result<Self, Error> {
        let stream = open(fd).map_err(|error| Error::new(ErrorKind::Protocol, format!("the stream cannot be read: {error}")))?;
        Ok(Self { stream, lines: Lines::default() })
    }

    /// The next event; None at the end of the stream.
    async fn next(&mut self) -> Result<Option<StreamEvent>, Error> {
        loop {
            if let Some(line) = self.lines.next_line()? {
                let event = serde_json::from_str(&line);
                return event.map(Some).map_err(|error| Error::new(ErrorKind::Protocol, format!("an event is not understood: {error}")));
            }
            let mut buffer = [0u8; 16 << 10];
            match self.stream.read(&mut buffer).await {
                Ok(0) => return Ok(None),
                Ok(n) => self.lines.push(&buffer[..n]),
                Err(error) => return Err(Error::new(ErrorKind::Disconnected, format!("the stream broke off: {error}"))),
            }
        }
    }
}

fn open(fd: OwnedFd) -> std::io::Result<Box<dyn AsyncRead + Send + Unpin>> {
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == FileType::Fifo {
        return Ok(Box::new(pipe::Receiver::from_owned_fd(fd)?));
    }
    let socket = std::os::unix::net::UnixStream::from(fd);
    socket.set_nonblocking(true)?;
    Ok(Box::new(tokio::net::UnixStream::from_std(socket)?))
}

fn events(reader: Reader) -> impl futures_util::Stream<Item = Result<StreamEvent, Error>> + Send {
    futures_util::stream::try_unfold(reader, |mut reader| async move { Ok(reader.next().await?.map(|event| (event, reader))) })
}

fn from_bus(error: zbus::Error) -> Error {
    let (name, message, reply) = match &error {
        zbus::Error::MethodError(name, message, reply) => (name.to_string(), message.clone(), Some(reply)),
        zbus::Error::FDO(inner) => {
            use zbus::DBusError;
            (inner.name().to_string(), inner.description().map(str::to_owned), None)
        }
        zbus::Error::InputOutput(_) => return Error::new(ErrorKind::Disconnected, format!("the bus connection broke: {error}")),
        _ => return Error::new(ErrorKind::Protocol, error.to_string()),
    };
    let kind = ErrorKind::from_dbus_name(&name).unwrap_or(ErrorKind::Internal);
    let plain = Error::new(kind, message.unwrap_or(name));
    match reply.and_then(|reply| reply.body().deserialize::<(String, HashMap<String, OwnedVariant>)>().ok()) {
        Some((_, dict)) => plain.with_bus_fields(variant::from_dict(&dict).unwrap_or_default()),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FinishReason, Usage};
    use std::io::{Read, Write};

    #[test]
    fn the_memory_file_is_sealed_and_read_from_its_beginning() {
        let mut file = std::fs::File::from(memory_file(b"long").unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "long");
        assert!(file.write(b"x").is_err());
    }

    #[tokio::test]
    async fn events_come_out_of_a_socket_and_its_early_end_is_an_error() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut generation = Generation::new(events(Reader::new(ours.into()).unwrap()));
        theirs.write_all(b"{\"event\":\"text\",\"te").unwrap();
        theirs.write_all(b"xt\":\"a\"}\n").unwrap();
        assert_eq!(generation.next().await.unwrap().unwrap(), StreamEvent::Text { text: "a".into(), logprobs: vec![] });
        drop(theirs);
        assert_eq!(generation.next().await.unwrap().unwrap_err().kind, ErrorKind::Disconnected);
        assert!(generation.next().await.is_none());
    }

    #[tokio::test]
    async fn events_come_out_of_a_pipe() {
        let (ours, mut theirs) = std::io::pipe().unwrap();
        let generation = Generation::new(events(Reader::new(ours.into()).unwrap()));
        let end = StreamEvent::Finished { reason: FinishReason::Length, usage: Usage::default(), error: None };
        writeln!(theirs, "{{\"event\":\"text\",\"text\":\"a\"}}\n{}", serde_json::to_string(&end).unwrap()).unwrap();
        assert_eq!(generation.answer().await.unwrap().text, "a");
    }

    #[tokio::test]
    async fn dropping_the_generation_closes_the_stream() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(Generation::new(events(Reader::new(ours.into()).unwrap())));
        assert!(theirs.write_all(b"x").is_err());
    }
}
