//! Waiting for a daemon: one that loads, one that is not there yet, and one that is being started again.

use crate::client::{Client, Transport};
use crate::http::refusal;
use crate::patience::{after, silent};
use crate::protocol::error::{Error, ErrorKind};
use crate::protocol::{Ready, State, names};
use crate::{address, http::Socket};
use bytes::Bytes;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Between two looks at a daemon that is not ready.
const POLL: Duration = Duration::from_millis(50);

impl Client {
    /// Finds the socket as [`connect`](Self::connect) does, for a daemon that may not be there yet, and waits until it is ready.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
    pub async fn connect_wait(timeout: Duration) -> Result<Self, Error> {
        Self::wait_for(address::candidates(address::process_env), timeout).await
    }

    /// The same at a given socket.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
    pub async fn connect_socket_wait(path: impl Into<PathBuf>, timeout: Duration) -> Result<Self, Error> {
        Self::wait_for(vec![path.into()], timeout).await
    }

    async fn wait_for(candidates: Vec<PathBuf>, timeout: Duration) -> Result<Self, Error> {
        let give_up = after(timeout);
        let path = loop {
            match address::find(candidates.clone()).await {
                Ok(path) => break path,
                Err(error) if Instant::now() >= give_up => return Err(error),
                Err(_) => pause(give_up).await,
            }
        };
        let client = Self::over(Transport::Socket(Socket::new(path)));
        client.wait_until(give_up, timeout).await?;
        Ok(client)
    }

    /// Whether the daemon is ready, and how far it is.
    pub async fn ready(&self) -> Result<Ready, Error> {
        match self.transport() {
            Transport::Socket(socket) => {
                let (status, body) = socket.raw("GET", names::READY, Bytes::new()).await?;
                // 503 has a state too; other refusals have none.
                serde_json::from_slice(&body).map_err(|error| match status {
                    200 => Error::new(ErrorKind::Protocol, format!("the answer is not understood: {error}")),
                    _ => refusal(status, &body),
                })
            }
            Transport::Bus(bus) => {
                let status = bus.status().await?;
                Ok(Ready { state: status.state, progress: status.load_progress, reason: status.availability.reason })
            }
        }
    }

    /// Waits until the daemon is ready: also for one that is not there, hangs, or drains because it is about to be started again. Whoever was
    /// refused or cut off by a daemon that went [away](ErrorKind::is_away) waits here and sends again; the client stays the same.
    ///
    /// # Errors
    /// After `timeout`, what stood in the way: `NotReady` while it loads, `Draining`, `Unreachable` where nobody answers, `Disconnected`, `Busy`.
    /// At once: `NotReady` where it has failed, and whatever waiting does not mend (`AccessDenied`).
    pub async fn wait_ready(&self, timeout: Duration) -> Result<(), Error> {
        self.wait_until(after(timeout), timeout).await
    }

    async fn wait_until(&self, give_up: Instant, timeout: Duration) -> Result<(), Error> {
        loop {
            // A daemon that is ready has a moment to say so, however short the timeout.
            let answer_by = give_up.max(Instant::now() + POLL);
            let in_the_way = match timeout_at(answer_by, self.ready()).await.unwrap_or_else(|_| Err(silent(timeout))) {
                Ok(ready) => match ready.state {
                    State::Ready => return Ok(()),
                    State::Failed => return Err(Error::new(ErrorKind::NotReady, format!("the daemon has failed: {}", ready.reason))),
                    State::Draining => Error::new(ErrorKind::Draining, format!("the daemon still drains after {timeout:?}")),
                    State::Starting | State::Loading => {
                        let percent = ready.progress * 100.0;
                        Error::new(ErrorKind::NotReady, format!("still {} after {timeout:?} ({percent:.0} %)", ready.state))
                    }
                },
                Err(error) if error.kind.is_away() || error.kind == ErrorKind::Busy => error,
                Err(error) => return Err(error),
            };
            if Instant::now() >= give_up {
                return Err(in_the_way);
            }
            pause(give_up).await;
        }
    }
}

/// Until the next look, or until the wait is over.
async fn pause(give_up: Instant) {
    sleep(POLL.min(give_up.saturating_duration_since(Instant::now()))).await;
}
