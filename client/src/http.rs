//! HTTP/1.1 over the Unix socket: one connection a request, closed as soon as its body is dropped.

use crate::address;
use crate::generation::Generation;
use crate::patience::Patience;
use crate::protocol::error::{Error, ErrorBody, ErrorKind};
use crate::protocol::names;
use crate::sse::SseParser;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// Largest body of an answer that is not a stream.
const MAX_BODY: usize = 32 << 20;

/// The daemon's socket.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    patience: Patience,
}

/// Ends the connection's task, and so the connection, when dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A body under way; dropping it closes the connection, which cancels the request.
struct Body {
    incoming: Incoming,
    _connection: Connection,
}

impl Socket {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), patience: Patience::default() }
    }

    pub(crate) fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// For one request with a deadline, which begins now.
    pub(crate) fn until(&self, deadline: Option<Duration>) -> Self {
        self.clone().with_patience(self.patience.until(deadline))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    async fn exchange(&self, method: Method, route: &str, body: Bytes) -> Result<(u16, Body), Error> {
        let stream = UnixStream::connect(&self.path).await.map_err(|error| address::unreachable_at(&self.path, error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = Connection(tokio::spawn(async move {
            // A failure shows in the request or its body.
            let _ = connection.await;
        }));
        let request = Request::builder()
            .method(method)
            .uri(route)
            .header(HOST, "skipd")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))?;
        let response: Response<Incoming> = sender.send_request(request).await.map_err(broken)?;
        Ok((response.status().as_u16(), Body { incoming: response.into_body(), _connection: connection }))
    }

    async fn ask(&self, method: &str, route: &str, body: Bytes) -> Result<(u16, Bytes), Error> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))?;
        let (status, body) = self.exchange(method, route, body).await?;
        Ok((status, body.whole().await?))
    }

    /// Waits until the daemon has answered anything at all.
    async fn look(&self) {
        // What it answers, or that it cannot, is for the request beside this one to find out.
        let _ = self.ask("GET", names::READY, Bytes::new()).await;
    }

    /// Sends a request and reads the whole answer, whatever its status.
    pub(crate) async fn raw(&self, method: &str, route: &str, body: Bytes) -> Result<(u16, Bytes), Error> {
        self.patience.answer(self.ask(method, route, body)).await
    }

    /// Sends a request and reads a JSON answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, method: &str, route: &str, body: Option<&impl Serialize>) -> Result<T, Error> {
        understood(self.raw(method, route, encoded(body)?).await?)
    }

    /// The same where the answer is the end of long work.
    pub(crate) async fn outcome<T: DeserializeOwned>(&self, method: &str, route: &str, body: Option<&impl Serialize>) -> Result<T, Error> {
        understood(self.patience.outcome(self.ask(method, route, encoded(body)?), || self.look()).await?)
    }

    /// The same with a body that is no JSON.
    pub(crate) async fn outcome_of_bytes<T: DeserializeOwned>(&self, route: &str, body: Vec<u8>) -> Result<T, Error> {
        understood(self.patience.outcome(self.ask("POST", route, body.into()), || self.look()).await?)
    }

    /// Sends a request that is answered by server-sent events.
    pub(crate) async fn stream(&self, route: &str, body: &impl Serialize) -> Result<Generation, Error> {
        let sent = encode(body)?;
        let taken = async {
            let (status, body) = self.exchange(Method::POST, route, sent).await?;
            if status != 200 {
                return Err(refusal(status, &body.whole().await?));
            }
            Ok(body)
        };
        let body = self.patience.answer(taken).await?;
        let socket = self.clone();
        let look = move || {
            let socket = socket.clone();
            async move { socket.look().await }
        };
        Ok(Generation::new(self.patience.events(events(body), look)))
    }
}

fn events(body: Body) -> impl futures_util::Stream<Item = Result<crate::StreamEvent, Error>> + Send {
    futures_util::stream::try_unfold((body, SseParser::default()), |(mut body, mut parser)| async move {
        loop {
            if let Some(event) = parser.next_event()? {
                return Ok(Some((event, (body, parser))));
            }
            match body.incoming.frame().await {
                Some(frame) => parser.push(frame.map_err(broken)?.data_ref().map_or(&[], |data| data)),
                None => return Ok(None),
            }
        }
    })
}

impl Body {
    async fn whole(self) -> Result<Bytes, Error> {
        let collected = Limited::new(self.incoming, MAX_BODY).collect().await;
        Ok(collected.map_err(|error| Error::new(ErrorKind::Disconnected, format!("the answer broke off: {error}")))?.to_bytes())
    }
}

fn broken(error: hyper::Error) -> Error {
    if error.is_parse() {
        Error::new(ErrorKind::Protocol, format!("the answer is not HTTP: {error}"))
    } else {
        Error::new(ErrorKind::Disconnected, format!("the daemon closed the connection: {error}"))
    }
}

fn encoded(body: Option<&impl Serialize>) -> Result<Bytes, Error> {
    body.map_or(Ok(Bytes::new()), encode)
}

fn encode(body: &impl Serialize) -> Result<Bytes, Error> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Error::new(ErrorKind::InvalidRequest, error.to_string()))
}

/// The JSON of a good answer, or the error that another one is.
fn understood<T: DeserializeOwned>((status, answer): (u16, Bytes)) -> Result<T, Error> {
    if !(200..300).contains(&status) {
        return Err(refusal(status, &answer));
    }
    decode(&answer)
}

fn decode<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Error> {
    // An empty answer stands for null, so that a route may answer nothing.
    let answer = if answer.is_empty() { b"null" } else { answer };
    serde_json::from_slice(answer).map_err(|error| Error::new(ErrorKind::Protocol, format!("the answer is not understood: {error}")))
}

/// The error in a body, or what the status alone says.
pub(crate) fn refusal(status: u16, answer: &[u8]) -> Error {
    match serde_json::from_slice::<ErrorBody>(answer) {
        Ok(body) => body.into_error(status),
        Err(_) => Error::new(ErrorKind::from_http_status(status), format!("the daemon answered with status {status}")),
    }
}
