//! The fd of a request: a pipe that carries newline-delimited JSON events, then exactly one terminal event.

use crate::generation::{Event, Outcome, Running};
use skip_client::protocol::StreamEvent;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// How long a client that no longer wants its answer may take to read the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a client has done to its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: it wants the answer.
    #[default]
    Answer,
    /// Called Close: the end, and its counts, at the next step.
    Close,
    /// Left the bus.
    Gone,
}

/// Our end of the pipe and the client's.
pub fn pair() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (theirs, ours) = io::pipe()?;
    Ok((pipe::Sender::from_owned_fd(ours.into())?, theirs.into()))
}

/// Writes a generation to its client until the end. A client that does not read holds back its own request, which the engine then ends; one that hangs
/// up, closes or leaves the bus has its request cancelled. The end is written all the same: who left the bus may still hold the stream.
pub async fn pump(mut running: Running, stream: pipe::Sender, mut wish: watch::Receiver<Wish>) -> Option<Outcome> {
    let mut open = true;
    loop {
        tokio::select! {
            () = changed(&mut wish) => running.cancel(),
            () = hung_up(&stream), if open => {
                open = false;
                running.cancel();
            }
            event = running.next() => {
                let event = event?;
                let outcome = match &event {
                    Event::End(outcome) => Some(outcome.clone()),
                    Event::Text { .. } | Event::Call(_) => None,
                };
                if open && !write_wanted(&stream, &wish, event).await {
                    open = false;
                    running.cancel();
                }
                if outcome.is_some() {
                    return outcome;
                }
            }
        }
    }
}

/// Writes an event; false where the client is not there to read it.
async fn write_wanted(stream: &pipe::Sender, wish: &watch::Receiver<Wish>, event: Event) -> bool {
    // Events are plain structures: they always serialise.
    let mut line = serde_json::to_vec(&StreamEvent::from(event)).unwrap_or_default();
    line.push(b'\n');
    let writing = write_all(stream, &line);
    tokio::pin!(writing);
    tokio::select! {
        biased;
        written = &mut writing => written.is_ok(),
        () = unwanted(wish) => within(LAST_WORDS, writing).await,
    }
}

async fn within(time: Duration, writing: impl Future<Output = io::Result<()>>) -> bool {
    matches!(tokio::time::timeout(time, writing).await, Ok(Ok(())))
}

async fn write_all(stream: &pipe::Sender, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Returns when nobody holds the reading end any more.
async fn hung_up(stream: &pipe::Sender) {
    // An error of the wait itself is an end too.
    let _ = stream.ready(Interest::ERROR).await;
}

/// The next wish; a request whose entry was dropped has nobody to wish any more.
async fn changed(wish: &mut watch::Receiver<Wish>) {
    if wish.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Returns once the client no longer wants the answer; does not consume the wish.
async fn unwanted(wish: &watch::Receiver<Wish>) {
    let mut wish = wish.clone();
    if wish.wait_for(|wish| *wish != Wish::Answer).await.is_err() {
        std::future::pending().await
    }
}
