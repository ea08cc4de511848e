//! `org.skipd.Skipd1.Profile`: the board's clocks, and pinning them.

use super::answer::{Answer, answer};
use super::caller;
use super::failure::Failure;
use super::polkit::Action;
use crate::profile;
use crate::state::Daemon;
use skip_client::protocol::ClockStatus;
use std::sync::Arc;
use zbus::message::Header;
use zbus::wire::Variant;
use zbus::{Connection, interface};

/// The interface's object.
pub struct ProfileControl {
    daemon: Arc<Daemon>,
}

impl ProfileControl {
    /// Serves the clocks of a daemon's board.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }

    fn properties(&self) -> Properties {
        Properties::of(self.daemon.clocks.status().as_ref())
    }
}

#[interface(name = "org.skipd.Skipd1.Profile", introspection_docs = false)]
impl ProfileControl {
    /// Pins the clocks of a profile; answers when they are read back.
    async fn apply(
        &self,
        name: String,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), Failure> {
        caller::authorised(&self.daemon, connection, &header, Action::Profile).await?;
        profile::apply(&self.daemon, &name).await?;
        Ok(())
    }

    /// Puts the clocks back as they were.
    async fn release(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        caller::authorised(&self.daemon, connection, &header, Action::Profile).await?;
        profile::release(&self.daemon).await?;
        Ok(())
    }

    /// The board, its clocks and its profiles, as the socket shows them.
    #[zbus(out_args("profiles"))]
    async fn list(&self) -> Result<Answer, Failure> {
        answer(&profile::show(&self.daemon).await?)
    }

    /// The profile that is applied; empty: none.
    #[zbus(property)]
    fn active(&self) -> String {
        self.properties().active
    }

    /// unpinned, pinned, throttled or uncontrolled; empty until the clocks were looked at.
    #[zbus(property)]
    fn state(&self) -> String {
        self.properties().state
    }
}

/// The interface's properties at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    active: String,
    state: String,
}

impl Properties {
    /// Those of the clocks as they were last looked at.
    pub fn of(clocks: Option<&ClockStatus>) -> Self {
        let Some(clocks) = clocks else { return Self::default() };
        Self { active: clocks.profile.clone().unwrap_or_default(), state: clocks.state.name().to_owned() }
    }

    /// By name.
    pub fn dict(&self) -> Vec<(&'static str, Variant<'static>)> {
        vec![("Active", Variant::new(self.active.clone())), ("State", Variant::new(self.state.clone()))]
    }
}
