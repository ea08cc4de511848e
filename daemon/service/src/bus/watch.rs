//! PropertiesChanged for the interfaces that have properties: one signal a change, at most a few a second.

use super::{control, manager, profile, update};
use crate::state::Daemon;
use crate::status;
use crate::tables::Tables;
use skip_client::protocol::names::{MANAGER_INTERFACE, OBJECT_PATH, PROFILE_INTERFACE, TABLES_INTERFACE, UPDATE_INTERFACE};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use zbus::Connection;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;
use zbus::wire::Variant;

/// Least time between two signals: loading and measuring change all the time.
const GAP: Duration = Duration::from_millis(100);
/// How often what has no notice of its own (measured shares, a full queue) is looked at.
const LOOK: Duration = Duration::from_secs(1);

type Dict = Vec<(&'static str, Variant<'static>)>;

/// Publishes changes for as long as the connection lives.
pub async fn publish(daemon: Arc<Daemon>, connection: Connection) {
    let mut stage = daemon.life.watch();
    let mut tables: Option<Tables> = None;
    let mut last = read(&daemon);
    loop {
        if tables.is_none() {
            tables = daemon.model().map(|model| model.tables.clone());
        }
        tokio::select! {
            // The daemon, which owns the sender, is held here: the wait cannot fail.
            _ = stage.changed() => {}
            () = next(&mut tables) => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = read(&daemon);
        let interfaces = [MANAGER_INTERFACE, TABLES_INTERFACE, UPDATE_INTERFACE, PROFILE_INTERFACE];
        for (interface, (before, after)) in interfaces.into_iter().zip(last.iter().zip(&now)) {
            if let Err(error) = emit(&connection, interface, before, after).await {
                tracing::debug!(%error, "a change of properties was not published");
            }
        }
        last = now;
        tokio::time::sleep(GAP).await;
    }
}

fn read(daemon: &Daemon) -> [Dict; 4] {
    let tables = daemon.show_tables().ok();
    [
        manager::Properties::of(&status::report(daemon)).dict(),
        control::Properties::of(tables.as_ref()).dict(),
        update::Properties::of(&daemon.updates.shown()).dict(),
        profile::Properties::of(daemon.clocks.status().as_ref()).dict(),
    ]
}

/// The next change of tables; none without any.
async fn next(tables: &mut Option<Tables>) {
    let more = match tables {
        Some(tables) => tables.changed().await,
        None => false,
    };
    if !more {
        std::future::pending::<()>().await;
    }
}

async fn emit(connection: &Connection, interface: &'static str, before: &Dict, after: &Dict) -> zbus::Result<()> {
    let pairs = after.iter().zip(before).filter(|(now, then)| now.1 != then.1);
    let changed: HashMap<&str, Variant<'_>> = pairs.map(|((name, value), _)| (*name, value.clone())).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let emitter = SignalEmitter::new(connection, OBJECT_PATH)?;
    let interface = InterfaceName::try_from(interface)?;
    zbus::fdo::Properties::properties_changed(&emitter, interface, changed, Cow::Borrowed(&[])).await
}
