//! Running requests as objects: `<prefix>/<sender>/<handle_token>`, a path that a client can compute and watch before it calls.

use super::caller;
use super::failure::Failure;
use super::polkit::Action;
use super::stream::{self, Wish};
use crate::generation::{Ask, Outcome};
use crate::peer::Right;
use crate::request_id::RequestId;
use crate::state::Daemon;
use skip_client::protocol::names::REQUEST_PATH_PREFIX;
use skip_client::{Error, ErrorKind, variant};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tracing::Instrument;
use zbus::message::Header;
use zbus::names::{OwnedUniqueName, UniqueName};
use zbus::object_server::SignalEmitter;
use zbus::wire::{OwnedObjectPath, Variant};
use zbus::{Connection, OwnedFd, interface};

/// Requests one client may have on the bus at once: each holds a pipe.
const PER_SENDER: usize = 64;
/// Longest handle_token.
const MAX_TOKEN: usize = 64;

/// The requests of one bus connection.
#[derive(Default)]
pub struct Requests {
    running: Mutex<HashMap<OwnedObjectPath, Entry>>,
    count: watch::Sender<usize>,
    unnamed: AtomicU64,
}

struct Entry {
    sender: OwnedUniqueName,
    wish: watch::Sender<Wish>,
}

/// A place among the requests, given up when dropped.
struct Place {
    requests: Arc<Requests>,
    path: OwnedObjectPath,
    wish: watch::Receiver<Wish>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.requests.lock();
        running.remove(&self.path);
        self.requests.count.send_replace(running.len());
    }
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, HashMap<OwnedObjectPath, Entry>> {
        // The map is whole after every operation, so a panic elsewhere leaves it usable.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a request for the sender of a call: object first, then the generation, so that nothing of it can be missed.
    pub async fn start<F>(
        self: &Arc<Self>,
        daemon: &Arc<Daemon>,
        connection: &Connection,
        header: &Header<'_>,
        token: Option<String>,
        ask: impl FnOnce(RequestId) -> F,
    ) -> Result<(OwnedObjectPath, OwnedFd), Failure>
    where
        F: Future<Output = Result<Ask, Error>>,
    {
        let sender = caller::sender(header)?;
        // The place is taken before the bus is asked who the sender is: had it left already, the bus would not know it; if it leaves later, the
        // place hears of it.
        let place = self.reserve(&sender, token)?;
        let id = RequestId::new(place.path.as_str().strip_prefix(REQUEST_PATH_PREFIX).map(|end| end.trim_start_matches('/')));
        let span = tracing::info_span!("request", id = id.name());
        let starting = async {
            // Before a long prompt is read for somebody who may not have it answered.
            let peer = caller::authorised(daemon, connection, header, Action::Generate).await?;
            Ok::<_, Failure>(crate::generation::start(daemon, &peer, ask(id).await?).await?)
        };
        let running = starting.instrument(span).await?;
        let (ours, theirs) = stream::pair().map_err(|e| Failure::internal(format!("no pipe for the answer: {e}")))?;
        let path = place.path.clone();
        let object = Request { requests: self.clone(), daemon: daemon.clone(), path: path.clone() };
        connection.object_server().at(&path, object).await.map_err(Failure::internal)?;
        let connection = connection.clone();
        tokio::spawn(async move {
            let outcome = stream::pump(running, ours, place.wish.clone()).await;
            let told = outcome.filter(|_| *place.wish.borrow() != Wish::Gone);
            finish(&connection, &sender, &place.path, told).await;
            drop(place);
        });
        Ok((path, OwnedFd::from(theirs)))
    }

    fn reserve(self: &Arc<Self>, sender: &UniqueName<'_>, token: Option<String>) -> Result<Place, Error> {
        let token = match token {
            Some(token) => check_token(token)?,
            None => format!("r{}", self.unnamed.fetch_add(1, Ordering::Relaxed)),
        };
        let path = path(sender, &token)?;
        let mut running = self.lock();
        if running.contains_key(&path) {
            return Err(Error::invalid("handle_token", format!("a request {token:?} of yours is still running")));
        }
        if running.values().filter(|entry| entry.sender.as_str() == sender.as_str()).count() >= PER_SENDER {
            return Err(Error::new(ErrorKind::Busy, format!("{PER_SENDER} requests of one client are running")).with("retry_after_s", 1));
        }
        let (wish, wished) = watch::channel(Wish::Answer);
        running.insert(path.clone(), Entry { sender: sender.to_owned().into(), wish });
        self.count.send_replace(running.len());
        Ok(Place { requests: self.clone(), path, wish: wished })
    }

    /// A client left the bus: its requests end.
    pub fn sender_left(&self, name: &str) {
        for entry in self.lock().values().filter(|entry| entry.sender.as_str() == name) {
            entry.wish.send_replace(Wish::Gone);
        }
    }

    /// The bus is gone: so is everybody on it.
    pub fn all_left(&self) {
        for entry in self.lock().values() {
            entry.wish.send_replace(Wish::Gone);
        }
    }

    /// Returns when no request runs.
    pub async fn idle(&self) {
        // The sender is a field of self: the wait cannot fail.
        let _ = self.count.subscribe().wait_for(|n| *n == 0).await;
    }
}

fn check_token(token: String) -> Result<String, Error> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if token.is_empty() || token.len() > MAX_TOKEN || !token.chars().all(letters) {
        return Err(Error::invalid("handle_token", format!("must be 1 to {MAX_TOKEN} of A-Z, a-z, 0-9 and _")));
    }
    Ok(token)
}

/// `:1.42` becomes `1_42` in the path.
fn path(sender: &UniqueName<'_>, token: &str) -> Result<OwnedObjectPath, Error> {
    let sender: String = sender.trim_start_matches(':').chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    OwnedObjectPath::try_from(format!("{REQUEST_PATH_PREFIX}/{sender}/{token}"))
        .map_err(|_| Error::new(ErrorKind::Internal, "no object path can be made of the sender's name"))
}

/// Tells the sender, and takes the object away.
async fn finish(connection: &Connection, sender: &UniqueName<'_>, path: &OwnedObjectPath, outcome: Option<Outcome>) {
    if let Some(outcome) = outcome {
        let usage = match serde_json::to_value(&outcome.usage) {
            Ok(serde_json::Value::Object(usage)) => variant::to_dict(&usage),
            // A structure always serialises to an object.
            _ => HashMap::new(),
        };
        let emitter = SignalEmitter::from_parts(connection.clone(), path.as_ref()).set_destination(sender.into());
        if let Err(error) = Request::finished(&emitter, outcome.reason.name(), usage).await {
            tracing::debug!(%error, "a client was not told of the end of its request");
        }
    }
    if let Err(error) = connection.object_server().remove::<Request, _>(path.as_ref()).await {
        tracing::debug!(%error, "a request's object was gone already");
    }
}

/// The object of one running request.
pub struct Request {
    requests: Arc<Requests>,
    daemon: Arc<Daemon>,
    path: OwnedObjectPath,
}

#[interface(name = "org.skipd.Skipd1.Request", introspection_docs = false)]
impl Request {
    /// Cancels the request; its stream and `Finished` then say so. For its sender and administrators.
    async fn close(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        let caller = caller::sender(&header)?;
        let owner = self.requests.lock().get(&self.path).map(|entry| entry.sender.clone());
        if owner.as_ref().is_none_or(|owner| owner.as_str() != caller.as_str()) {
            self.daemon.authority.check(&caller::peer(connection, &caller).await?, Right::Control)?;
        }
        if let Some(entry) = self.requests.lock().get(&self.path) {
            entry.wish.send_if_modified(|wish| {
                let first = *wish == Wish::Answer;
                if first {
                    *wish = Wish::Close;
                }
                first
            });
        }
        Ok(())
    }

    /// The end, to the request's sender alone.
    #[zbus(signal)]
    async fn finished(emitter: &SignalEmitter<'_>, reason: &str, usage: HashMap<String, Variant<'_>>) -> zbus::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> UniqueName<'_> {
        UniqueName::try_from(text).unwrap()
    }

    #[test]
    fn a_path_can_be_computed_by_the_client() {
        let path = path(&name(":1.42"), "mine_1").unwrap();
        assert_eq!(path.as_str(), "/org/skipd/Skipd1/request/1_42/mine_1");
    }

    #[test]
    fn tokens_are_path_elements() {
        for token in ["", "a/b", "a-b", "ä", &"x".repeat(65)] {
            assert_eq!(check_token(token.into()).unwrap_err().param.as_deref(), Some("handle_token"), "{token}");
        }
    }

    #[test]
    fn a_token_is_free_again_when_its_request_ended_and_a_client_has_so_many_places() {
        let requests = Arc::new(Requests::default());
        let place = requests.reserve(&name(":1.1"), Some("a".into())).unwrap();
        assert!(requests.reserve(&name(":1.1"), Some("a".into())).is_err());
        assert!(requests.reserve(&name(":1.2"), Some("a".into())).is_ok());
        drop(place);
        let places: Vec<_> = (0..PER_SENDER).map(|_| requests.reserve(&name(":1.1"), None).unwrap_or_else(|e| panic!("{e}"))).collect();
        assert_eq!(requests.reserve(&name(":1.1"), None).err().map(|e| e.kind), Some(ErrorKind::Busy));
        requests.sender_left(":1.1");
        assert!(places.iter().all(|place| *place.wish.borrow() == Wish::Gone));
    }
}
