//! The daemon on a message bus: `org.skipd.Skipd1` at `/org/skipd/Skipd1`.
//! Objects are registered before the name is requested; handlers hold no state of their own but talk to the daemon as the socket does.

mod answer;
mod caller;
mod control;
pub(crate) mod failure;
mod jobs;
mod manager;
mod polkit;
mod prefixes;
#[cfg(test)]
pub(crate) mod private;
mod profile;
mod prompt;
mod requests;
mod sleep;
mod stream;
#[cfg(test)]
mod tests;
mod update;
mod watch;

use crate::config::Bus;
use crate::state::Daemon;
use control::TableControl;
use jobs::JobControl;
use manager::Manager;
use prefixes::PrefixControl;
use profile::ProfileControl;
use requests::Requests;
use skip_client::protocol::names::{BUS_NAME, OBJECT_PATH};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use update::UpdateControl;
use zbus::Connection;
use zbus::fdo::{DBusProxy, NameOwnerChangedStream, RequestNameFlags};

/// Between attempts to join a bus that went away.
const RETRY: Duration = Duration::from_secs(1);

/// Why the daemon is on no bus.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Nobody listens there, or it turned us away.
    #[error("no {bus}: {source} (`--bus none` serves the socket alone)")]
    NoBus {
        /// Which.
        bus: String,
        /// Why not.
        source: zbus::Error,
    },
    /// Another skipd is on it.
    #[error("{BUS_NAME} is owned by another process on the {0}: is another skipd running? (`--bus none` serves the socket alone)")]
    NameTaken(String),
    /// Its policy does not let us have the name.
    #[error("the {bus} does not let this process own {BUS_NAME}: {source} (is org.skipd.Skipd1.conf installed?)")]
    NameRefused {
        /// Which.
        bus: String,
        /// The bus's words.
        source: zbus::Error,
    },
}

/// A daemon that answers on a bus.
pub struct Joined {
    daemon: Arc<Daemon>,
    connection: Connection,
    requests: Arc<Requests>,
    leaving: NameOwnerChangedStream,
}

/// Joins the configured bus; None where it is `none`.
///
/// # Errors
/// [`JoinError`].
pub async fn join(daemon: &Arc<Daemon>) -> Result<Option<Joined>, JoinError> {
    let (bus, builder) = match &daemon.config.bus {
        Bus::None => return Ok(None),
        Bus::System => ("system bus".to_owned(), zbus::connection::Builder::system()),
        Bus::Session => ("session bus".to_owned(), zbus::connection::Builder::session()),
        Bus::Address(address) => (format!("bus at {address}"), zbus::connection::Builder::address(address.as_str())),
    };
    let no_bus = |source| JoinError::NoBus { bus: bus.clone(), source };
    let requests = Arc::new(Requests::default());
    let connection = builder
        .serve_at(OBJECT_PATH, Manager::new(daemon.clone(), requests.clone()))
        .serve_at(OBJECT_PATH, TableControl::new(daemon.clone()))
        .serve_at(OBJECT_PATH, PrefixControl::new(daemon.clone()))
        .serve_at(OBJECT_PATH, JobControl::new(daemon.clone()))
        .serve_at(OBJECT_PATH, UpdateControl::new(daemon.clone()))
        .serve_at(OBJECT_PATH, ProfileControl::new(daemon.clone()))
        .build()
        .await
        .map_err(no_bus)?;
    // Watched before the first call can come in, so that no leaving is missed.
    let proxy = DBusProxy::new(&connection).await.map_err(no_bus)?;
    let leaving = proxy.receive_name_owner_changed().await.map_err(no_bus)?;
    // zbus would let another process replace us; a second daemon is to be told that there is one.
    connection.request_name_with_flags(BUS_NAME, RequestNameFlags::DO_NOT_QUEUE).await.map_err(|error| match error {
        zbus::Error::NameTaken => JoinError::NameTaken(bus.clone()),
        source => JoinError::NameRefused { bus: bus.clone(), source },
    })?;
    tracing::info!(name = BUS_NAME, "answering on the {bus}");
    Ok(Some(Joined { daemon: daemon.clone(), connection, requests, leaving }))
}

impl Joined {
    /// Answers until told to stop, and then until the running requests have ended; a bus that goes away is joined again when it comes back.
    pub async fn stay(self, mut stopping: channel::Receiver<bool>) {
        let mut joined = self;
        loop {
            let requests = joined.requests.clone();
            let connection = joined.connection.clone();
            let daemon = joined.daemon.clone();
            let mut tasks = JoinSet::new();
            tasks.spawn(watch::publish(daemon.clone(), connection.clone()));
            tasks.spawn(watch_leaving(joined.leaving, requests.clone()));
            if daemon.config.bus == Bus::System {
                tasks.spawn(sleep::follow(daemon.clone(), connection.clone()));
            }
            tokio::select! {
                () = stopped(&mut stopping) => {
                    requests.idle().await;
                    drop(tasks);
                    if let Err(error) = connection.close().await {
                        tracing::debug!(%error, "the bus was left without a word");
                    }
                    return;
                }
                () = connection.closed() => {}
            }
            requests.all_left();
            drop(tasks);
            tracing::error!("the bus went away; the socket goes on");
            joined = tokio::select! {
                () = stopped(&mut stopping) => return,
                joined = rejoin(&daemon) => joined,
            };
        }
    }
}

async fn rejoin(daemon: &Arc<Daemon>) -> Joined {
    loop {
        tokio::time::sleep(RETRY).await;
        match join(daemon).await {
            Ok(Some(joined)) => return joined,
            Ok(None) => std::future::pending().await,
            Err(error) => tracing::debug!(%error, "not back on the bus yet"),
        }
    }
}

/// Ends the requests of clients that leave.
async fn watch_leaving(mut leaving: NameOwnerChangedStream, requests: Arc<Requests>) {
    while let Some(signal) = leaving.next().await {
        let Ok(args) = signal.args() else { continue };
        if args.new_owner().is_none() && args.name().starts_with(':') {
            requests.sender_left(args.name());
        }
    }
}

async fn stopped(stopping: &mut channel::Receiver<bool>) {
    // A process that dropped the sender is stopping too.
    let _ = stopping.wait_for(|stop| *stop).await;
}
