//! `skipd-profile@NAME.service` on the system bus. systemd asks polkit whether this user may, and the package's rule says that it may these units and
//! no other.

use super::units::Units;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use skip_client::{Error, ErrorKind};
use std::time::Duration;
use zbus::wire::OwnedObjectPath;
use zbus::{Connection, Proxy};

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
/// More than the unit's own limit (`TimeoutSec=`) three times: another's end, its own, and its start.
const PATIENCE: Duration = Duration::from_secs(120);

/// A unit as `ListUnitsByPatterns` tells of it: its name, and what is of no use here.
type Listed = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// systemd.
pub(super) struct Systemd;

impl Units for Systemd {
    fn pin<'a>(&'a self, profile: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(in_time(async move {
            let systemd = Manager::connect().await?;
            let wanted = unit(profile);
            for other in systemd.active().await?.iter().filter(|unit| **unit != wanted) {
                systemd.job("StopUnit", other).await?;
            }
            // One that is active would not be started again: what it pinned is put back and pinned anew.
            systemd.job("RestartUnit", &wanted).await
        }))
    }

    fn release<'a>(&'a self, applied: Option<&'a str>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(in_time(async move {
            let systemd = Manager::connect().await?;
            let mut active = systemd.active().await?;
            if let Some(wanted) = applied.map(unit).filter(|wanted| !active.contains(wanted)) {
                // Pinned by hand, or broken off: a unit takes it over, whether or not its start succeeds, and puts it back at its end.
                if let Err(error) = systemd.job("StartUnit", &wanted).await {
                    tracing::debug!(%error, "{wanted} did not start");
                }
                active.push(wanted);
            }
            for unit in &active {
                systemd.job("StopUnit", unit).await?;
            }
            Ok(())
        }))
    }
}

fn unit(profile: &str) -> String {
    // A profile's name is letters, digits, - and _: nothing to be escaped but what systemd leaves as it is in an instance's name.
    format!("skipd-profile@{profile}.service")
}

async fn in_time(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let slow = |_| Error::new(ErrorKind::Internal, format!("systemd has not done it within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|late| Err(slow(late)))
}

/// systemd's manager on the system bus.
struct Manager {
    proxy: Proxy<'static>,
}

impl Manager {
    async fn connect() -> Result<Self, Error> {
        let connection = Connection::system().await.map_err(|error| failed("the system bus", &error))?;
        let proxy = Proxy::new(&connection, NAME, PATH, INTERFACE).await.map_err(|error| failed(NAME, &error))?;
        // Without it, systemd tells nobody when a job has ended.
        proxy.call::<_, _, ()>("Subscribe", &()).await.map_err(|error| failed("Subscribe", &error))?;
        Ok(Self { proxy })
    }

    /// The profiles' units that are active.
    async fn active(&self) -> Result<Vec<String>, Error> {
        let question = (vec!["active", "activating", "reloading", "deactivating"], vec!["skipd-profile@*.service"]);
        let units: Vec<Listed> =
            self.proxy.call("ListUnitsByPatterns", &question).await.map_err(|error| failed("ListUnitsByPatterns", &error))?;
        Ok(units.into_iter().map(|unit| unit.0).collect())
    }

    /// Has a job done, and waits for its end.
    async fn job(&self, method: &str, unit: &str) -> Result<(), Error> {
        let what = format!("{method} {unit}");
        // Listened to before the job is there to end.
        let mut ended = self.proxy.receive_signal("JobRemoved").await.map_err(|error| failed(&what, &error))?;
        let job: OwnedObjectPath = self.proxy.call(method, &(unit, "replace")).await.map_err(|error| failed(&what, &error))?;
        while let Some(signal) = ended.next().await {
            let Ok((_, of, _, result)) = signal.body().deserialize::<(u32, OwnedObjectPath, String, String)>() else { continue };
            if of == job {
                return match result.as_str() {
                    "done" => Ok(()),
                    result => {
                        let message = format!("{what}: {result} (journalctl -u {unit} says why)");
                        Err(Error::new(ErrorKind::Internal, message).with("result", result))
                    }
                };
            }
        }
        Err(Error::new(ErrorKind::Internal, format!("{what}: the system bus went away")))
    }
}

fn failed(what: &str, error: &zbus::Error) -> Error {
    let hint = "root can do without the daemon: /usr/lib/skipd/skipd-profile apply NAME, /usr/lib/skipd/skipd-profile restore";
    Error::new(ErrorKind::Internal, format!("clocks are written by systemd, and {what} failed: {error} ({hint})"))
}
