//! `org.skipd.Skipd1.Prefixes`: beginnings of prompts that stay in the cache and are shared between all users.

use super::answer::{Answer, answer};
use super::caller;
use super::failure::{Failure, wants_details};
use crate::peer::Peer;
use crate::prefixes;
use crate::request_id::RequestId;
use crate::state::Daemon;
use skip_client::protocol::PinPrefix;
use skip_client::variant;
use std::collections::HashMap;
use std::sync::Arc;
use zbus::message::Header;
use zbus::wire::OwnedVariant;
use zbus::{Connection, interface};

/// The interface's object.
pub struct PrefixControl {
    daemon: Arc<Daemon>,
}

impl PrefixControl {
    /// Serves a daemon's prefixes.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }
}

async fn peer(header: &Header<'_>, connection: &Connection) -> Result<Peer, Failure> {
    caller::peer(connection, &caller::sender(header)?).await
}

#[interface(name = "org.skipd.Skipd1.Prefixes", introspection_docs = false)]
impl PrefixControl {
    /// Pins a prefix: `prompt` (s or au), or `messages` and `tools` (s, JSON), and perhaps `name` (s). Answers when it is computed.
    #[zbus(out_args("prefix"))]
    async fn pin(
        &self,
        options: HashMap<String, OwnedVariant>,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<Answer, Failure> {
        let pinned = async {
            let peer = peer(&header, connection).await?;
            let wanted = PinPrefix::from_bus(variant::from_dict(&options)?)?;
            // A pin has no object, and so no path to be called by.
            answer(&prefixes::pin(&self.daemon, &peer, RequestId::new(None), wanted).await?)
        };
        pinned.await.map_err(|failure: Failure| failure.detailed(wants_details(&options)))
    }

    /// Drops one, and answers what it was.
    #[zbus(out_args("prefix"))]
    async fn drop(
        &self,
        name: String,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<Answer, Failure> {
        let peer = peer(&header, connection).await?;
        answer(&prefixes::drop_one(&self.daemon, &peer, &name).await?)
    }

    /// All of them, as the socket shows them.
    #[zbus(out_args("prefixes"))]
    async fn list(&self) -> Result<Answer, Failure> {
        answer(&prefixes::list(&self.daemon).await?)
    }
}
