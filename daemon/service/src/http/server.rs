//! Accepts connections, says who is at the other end of each, and ends them in good order.

use super::arrival::Arrival;
use super::door::{Door, Guard, Tcp};
use super::follow;
use super::reply::Refusal;
use crate::peer::Peer;
use crate::request_id::RequestId;
use crate::socket::{Break, Stall, StallGuard};
use crate::state::Daemon;
use axum::Router;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::response::IntoResponse;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use skip_client::protocol::names::REQUEST_ID_HEADER;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// How long a peer may keep its connection waiting.
#[derive(Clone, Copy)]
struct Patience {
    /// A request's head must be there within this, and an idle connection is closed after it.
    head: Duration,
    /// Over TCP: a request with the key must have come within this.
    stranger: Duration,
    /// A peer that takes nothing for this long loses its request, or, where it reads no stream, its connection.
    stall: Duration,
    /// It may come back for the end of its stream within this, then it loses its connection too.
    grace: Duration,
}

const PATIENCE: Patience = Patience {
    head: Duration::from_secs(30),
    stranger: Duration::from_secs(5),
    stall: Duration::from_secs(30),
    grace: Duration::from_secs(30),
};
/// At a stop, requests on their way in have this long to arrive; then only answers are waited for.
const ARRIVAL: Duration = Duration::from_millis(200);
/// So many clients at once are told that there is no room, the others just closed.
const TURNED_AWAY: usize = 64;
/// Bytes that are read of what such a client sends.
const MAX_UNWANTED: u64 = 1 << 20;
/// Request heads are small.
const MAX_HEAD: usize = 32 * 1024;

/// Serves until `stop` turns true; then no connection is accepted, and each one ends after the answer it is giving, or soon if it is giving none.
/// Returns when all have ended.
pub async fn serve(daemon: Arc<Daemon>, socket: UnixListener, tcp: Option<Tcp>, router: Router, stop: watch::Receiver<bool>) {
    serve_within(PATIENCE, daemon, socket, tcp, router, stop).await;
}

async fn serve_within(
    patience: Patience,
    daemon: Arc<Daemon>,
    socket: UnixListener,
    tcp: Option<Tcp>,
    router: Router,
    stop: watch::Receiver<bool>,
) {
    let seats = Seats::new(daemon.config.max_connections);
    let by_tcp = async {
        if let Some(tcp) = tcp {
            admit(patience, &daemon, tcp, &seats, &router, stop.clone()).await;
        }
    };
    tokio::join!(admit(patience, &daemon, socket, &seats, &router, stop.clone()), by_tcp);
}

/// The same for one door.
async fn admit<D: Door>(patience: Patience, daemon: &Daemon, door: D, seats: &Seats, router: &Router, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = door.accept() => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors, most likely: some will come free.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let peer = match D::peer(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "a connection without credentials is closed");
                continue;
            }
        };
        let administrator = daemon.authority.is_administrator(&peer);
        match seats.take(peer.id(), administrator) {
            Some(seat) => {
                connections.spawn(connection(patience, stream, peer, door.guard(), router.clone(), stop.clone(), seat));
            }
            None => {
                tracing::debug!(user = peer.id(), "no room for a connection");
                // Each of these takes a descriptor and a second at most.
                if let Ok(turn) = seats.turned_away.clone().try_acquire_owned() {
                    connections.spawn(turn_away(stream, turn));
                }
            }
        }
    }
    drop(door);
    while connections.join_next().await.is_some() {}
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender lives as long as the process; an error would mean the same.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    patience: Patience,
    stream: impl AsyncRead + AsyncWrite + Break + Unpin,
    peer: Peer,
    guard: Option<Arc<Guard>>,
    router: Router,
    mut stop: watch::Receiver<bool>,
    _seat: Seat,
) {
    let peer = Arc::new(peer);
    let arrival = Arrival::default();
    let following = arrival.clone();
    let stall = Stall::default();
    let io = TokioIo::new(StallGuard::new(stream, patience.stall, patience.grace, stall.clone()));
    let known = Arc::new(AtomicBool::new(guard.is_none()));
    let knowing = known.clone();
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = following.follow(request);
        // The answer before this one has been told.
        stall.clear();
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(stall.clone());
        let refused = guard.as_ref().and_then(|guard| guard.check(&request).err());
        knowing.fetch_or(refused.is_none(), Ordering::AcqRel);
        let router = router.clone();
        async move {
            match refused {
                Some(error) => Ok(turn_out(&request, error)),
                None => router.oneshot(request).await,
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_header_size(MAX_HEAD)
        .serve_connection(io, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = unknown(patience.stranger, &known) => return,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(ARRIVAL, connection.as_mut()).await {
                Ok(ended) => ended,
                Err(_) if arrival.is_whole() => connection.await,
                // Half a head or half a body: whoever sends it has nothing coming.
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        // A client that left, or that sent no HTTP: its own affair.
        tracing::debug!(%error, "connection ended early");
    }
}

/// Returns when a peer has not shown within `time` that it has the key.
async fn unknown(time: Duration, known: &AtomicBool) {
    tokio::time::sleep(time).await;
    if known.load(Ordering::Acquire) {
        std::future::pending().await
    }
}

/// The answer to a request that its door's guard refuses, the last on its connection: who has no key holds no place.
fn turn_out<B>(request: &hyper::Request<B>, error: skip_client::Error) -> axum::response::Response {
    let id = follow::wanted(request);
    tracing::debug!(id = id.name(), code = error.kind.code(), "refused at the door");
    let mut response = Refusal(error).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    follow::tell(&mut response, &id);
    response
}

/// Tells a client that there is no room, whatever it wants.
async fn turn_away(mut stream: impl AsyncRead + AsyncWrite + Unpin, _turn: OwnedSemaphorePermit) {
    const HEAD: &str = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n";
    const BODY: &str = "{\"error\":{\"message\":\"too many connections\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"busy\",\"details\":{\"retry_after_s\":1}}}";
    // What it wants to be called is not read.
    let answer = format!("{HEAD}{REQUEST_ID_HEADER}: {}\r\n\r\n{BODY}", RequestId::new(None).name());
    let tell = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // A socket that is closed with something unread resets, and its client sees that instead of the answer.
        tokio::io::copy(&mut stream.take(MAX_UNWANTED), &mut tokio::io::sink()).await
    };
    // Whoever does not take it in time is not told.
    let _ = tokio::time::timeout(Duration::from_secs(1), tell).await;
}

/// Room for connections: so many in all, and for one ordinary user a quarter of them, so that no user locks out the others.
struct Seats {
    all: Arc<Semaphore>,
    turned_away: Arc<Semaphore>,
    per_user: usize,
    taken: Arc<Mutex<HashMap<u32, usize>>>,
}

/// One connection's room, given back when dropped.
struct Seat {
    uid: u32,
    taken: Arc<Mutex<HashMap<u32, usize>>>,
    _permit: tokio::sync::OwnedSemaphorePermit,
}

impl Seats {
    fn new(all: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            turned_away: Arc::new(Semaphore::new(TURNED_AWAY)),
            per_user: all.div_ceil(4),
            taken: Arc::default(),
        }
    }

    fn take(&self, uid: u32, administrator: bool) -> Option<Seat> {
        let permit = self.all.clone().try_acquire_owned().ok()?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(uid).or_default();
        if *count >= self.per_user && !administrator {
            return None;
        }
        *count += 1;
        Some(Seat { uid, taken: self.taken.clone(), _permit: permit })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests;
