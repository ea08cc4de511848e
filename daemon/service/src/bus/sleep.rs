//! logind's sleep: the steps under way are finished before the machine sleeps, and none is started until it wakes and the device has answered.
//! Requests stay where they are.

use crate::state::Daemon;
use skip_engine::engine::Pause;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::StreamExt as _;
use zbus::{Connection, OwnedFd, Proxy};

const NAME: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const INTERFACE: &str = "org.freedesktop.login1.Manager";
/// Less than logind waits for who delays it (`InhibitDelayMaxSec`, five seconds unless configured).
const PATIENCE: Duration = Duration::from_secs(4);

/// Follows the machine's sleep; returns where nobody tells of it.
pub async fn follow(daemon: Arc<Daemon>, connection: Connection) {
    if let Err(error) = attend(&daemon, &connection).await {
        tracing::debug!("nobody tells of the machine's sleep: {error}");
    }
}

async fn attend(daemon: &Daemon, connection: &Connection) -> zbus::Result<()> {
    let logind = Proxy::new(connection, NAME, PATH, INTERFACE).await?;
    let mut signals = logind.receive_signal("PrepareForSleep").await?;
    let mut delay = Some(inhibit(&logind).await?);
    let mut paused = None;
    while let Some(signal) = signals.next().await {
        if signal.body().deserialize::<bool>()? {
            paused = pause(daemon).await;
            // The machine may sleep now.
            drop(delay.take());
        } else {
            tracing::info!("the machine is awake again");
            drop(paused.take());
            delay = Some(inhibit(&logind).await?);
        }
    }
    Ok(())
}

/// While it is held, logind waits.
async fn inhibit(logind: &Proxy<'_>) -> zbus::Result<OwnedFd> {
    logind.call("Inhibit", &("sleep", "skipd", "a step on the device is finished first", "delay")).await
}

async fn pause(daemon: &Daemon) -> Option<Pause> {
    let engine = &daemon.model()?.engine;
    tracing::info!("the machine goes to sleep: no step is started");
    let paused = tokio::time::timeout(PATIENCE, engine.pause()).await;
    paused.unwrap_or_else(|_| {
        tracing::warn!("the machine goes to sleep within a step, which did not end within {PATIENCE:?}");
        None
    })
}
