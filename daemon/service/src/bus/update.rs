//! `org.skipd.Skipd1.Update`: signed updates of tables.

use super::answer::{Answer, answer};
use super::caller;
use super::failure::Failure;
use super::polkit::Action;
use crate::state::Daemon;
use crate::update::{self, Bundle, MAX_ARCHIVE};
use skip_client::protocol::UpdateShow;
use skip_client::{Error, ErrorKind};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd as StdFd;
use std::sync::Arc;
use zbus::message::Header;
use zbus::wire::Variant;
use zbus::{Connection, OwnedFd, interface};

/// The interface's object.
pub struct UpdateControl {
    daemon: Arc<Daemon>,
}

impl UpdateControl {
    /// Serves a daemon's updates.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }

    async fn check(&self, header: &Header<'_>, connection: &Connection) -> Result<(), Failure> {
        caller::authorised(&self.daemon, connection, header, Action::Update).await?;
        Ok(())
    }

    fn properties(&self) -> Properties {
        Properties::of(&self.daemon.updates.shown())
    }
}

/// Reads an archive from the beginning of the file.
fn read(fd: OwnedFd) -> Result<Vec<u8>, Error> {
    let unreadable = |error: std::io::Error| Error::invalid("bundle", format!("the descriptor cannot be read: {error}"));
    let mut file = File::from(StdFd::from(fd));
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(Error::invalid("bundle", "the descriptor must be of a memory file or a regular file"));
    }
    file.rewind().map_err(unreadable)?;
    let mut archive = Vec::new();
    file.take(MAX_ARCHIVE as u64 + 1).read_to_end(&mut archive).map_err(unreadable)?;
    if archive.len() > MAX_ARCHIVE {
        return Err(Error::new(ErrorKind::TooLarge, format!("the bundle is larger than {MAX_ARCHIVE} bytes")).at("bundle"));
    }
    Ok(archive)
}

#[interface(name = "org.skipd.Skipd1.Update", introspection_docs = false)]
impl UpdateControl {
    /// Verifies a bundle, an archive in a regular or memory file, and puts it on trial; answers when the trial begins.
    async fn apply(
        &self,
        bundle: OwnedFd,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), Failure> {
        self.check(&header, connection).await?;
        let reading = tokio::task::spawn_blocking(move || read(bundle));
        let archive = reading.await.map_err(|_| Error::new(ErrorKind::Internal, "reading the bundle failed"))??;
        update::apply(&self.daemon, Bundle::Archive(archive)).await?;
        Ok(())
    }

    /// Ends the trial, or goes back to the update before, or to none.
    async fn rollback(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        self.check(&header, connection).await?;
        update::roll_back(&self.daemon).await?;
        Ok(())
    }

    /// What updates brought, as the socket shows it.
    #[zbus(out_args("update"))]
    async fn show(&self) -> Result<Answer, Failure> {
        answer(&update::show(&self.daemon).await?)
    }

    /// Version of the update in force; 0: none.
    #[zbus(property)]
    fn version(&self) -> u64 {
        self.properties().version
    }

    /// Version that a rollback returns to; 0: none.
    #[zbus(property)]
    fn previous(&self) -> u64 {
        self.properties().previous
    }

    /// Version on trial; 0: none.
    #[zbus(property)]
    fn probation(&self) -> u64 {
        self.properties().probation
    }
}

/// The interface's properties at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Properties {
    version: u64,
    previous: u64,
    probation: u64,
}

impl Properties {
    /// Those of what is shown.
    pub fn of(shown: &UpdateShow) -> Self {
        let version = |slot: &Option<skip_client::protocol::UpdateSlot>| slot.as_ref().map_or(0, |slot| slot.version);
        let probation = shown.probation.as_ref().map_or(0, |probation| probation.slot.version);
        Self { version: version(&shown.active), previous: version(&shown.previous), probation }
    }

    /// By name.
    pub fn dict(&self) -> Vec<(&'static str, Variant<'static>)> {
        vec![
            ("Version", Variant::new(self.version)),
            ("Previous", Variant::new(self.previous)),
            ("Probation", Variant::new(self.probation)),
        ]
    }
}
