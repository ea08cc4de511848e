//! What systemd says of the units, over the system bus.

use std::collections::HashMap;
use std::time::Duration;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Variant};
use zbus::{Connection, Proxy};

/// How long the bus is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
const SYSTEMD: &str = "org.freedesktop.systemd1";

/// A unit, as `systemctl show` names its properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// `loaded`, `not-found`, `masked`, …
    pub load: String,
    /// `active`, `inactive`, `failed`, …
    pub active: String,
    /// `running`, `listening`, …
    pub sub: String,
    /// Why it ended: `success`, `exit-code`, `watchdog`, …
    pub result: String,
    /// How often it was started again by itself.
    pub restarts: u32,
}

impl Unit {
    /// Whether there is such a unit.
    pub fn is_there(&self) -> bool {
        !matches!(self.load.as_str(), "" | "not-found")
    }
}

/// The units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// skipd.service.
    pub service: Unit,
    /// skipd.socket.
    pub socket: Unit,
}

/// What the system bus tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// What systemd says; why it says nothing.
    pub units: Result<Units, String>,
    /// Whether the clock is synchronised; None: nobody says.
    pub synchronized: Option<bool>,
}

impl Told {
    /// Where nobody is asked.
    pub fn nothing(why: &str) -> Self {
        Self { units: Err(why.to_owned()), synchronized: None }
    }

    /// Asks.
    pub async fn ask() -> Self {
        let builder = zbus::connection::Builder::system();
        match tokio::time::timeout(PATIENCE, async { builder.build().await.map_err(|error| error.to_string()) }).await {
            Ok(Ok(bus)) => {
                let (units, synchronized) = tokio::join!(within(units(&bus)), within(synchronized(&bus)));
                Self { units, synchronized: synchronized.ok() }
            }
            Ok(Err(error)) => Self::nothing(&format!("no system bus: {error}")),
            Err(_) => Self::nothing("the system bus does not answer"),
        }
    }
}

async fn within<T>(asking: impl Future<Output = zbus::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(told) => told.map_err(|error| error.to_string()),
        Err(_) => Err("no answer over the system bus".into()),
    }
}

async fn units(bus: &Connection) -> zbus::Result<Units> {
    let manager = Proxy::new(bus, SYSTEMD, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager").await?;
    Ok(Units { service: unit(bus, &manager, "skipd.service").await?, socket: unit(bus, &manager, "skipd.socket").await? })
}

async fn unit(bus: &Connection, manager: &Proxy<'_>, name: &str) -> zbus::Result<Unit> {
    let path: OwnedObjectPath = manager.call("LoadUnit", &(name,)).await?;
    let all = properties(bus, SYSTEMD, path.as_str(), "").await?;
    let text = |key: &str| match all.get(key).map(|value| &**value) {
        Some(Variant::Str(text)) => text.to_string(),
        _ => String::new(),
    };
    let restarts = match all.get("NRestarts").map(|value| &**value) {
        Some(Variant::U32(number)) => *number,
        _ => 0,
    };
    Ok(Unit { load: text("LoadState"), active: text("ActiveState"), sub: text("SubState"), result: text("Result"), restarts })
}

async fn synchronized(bus: &Connection) -> zbus::Result<bool> {
    let all = properties(bus, "org.freedesktop.timedate1", "/org/freedesktop/timedate1", "org.freedesktop.timedate1").await?;
    match all.get("NTPSynchronized").map(|value| &**value) {
        Some(Variant::Bool(said)) => Ok(*said),
        _ => Err(zbus::Error::Failure("NTPSynchronized is not told".into())),
    }
}

/// All properties of an object; an empty interface is every interface, as systemd has it.
async fn properties(bus: &Connection, name: &str, path: &str, interface: &str) -> zbus::Result<HashMap<String, OwnedVariant>> {
    let proxy = Proxy::new(bus, name, path, "org.freedesktop.DBus.Properties").await?;
    proxy.call("GetAll", &(interface,)).await
}
