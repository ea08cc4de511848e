//! `org.skipd.Skipd1.Tables`: which scale tables are in force, and putting others in force.

use super::answer::{Answer, answer};
use super::caller;
use super::failure::{Failure, wants_details};
use super::polkit::Action;
use crate::state::Daemon;
use crate::tables::Tables;
use crate::update;
use serde_json::{Map, Value};
use skip_client::protocol::names::ERROR_DETAILS;
use skip_client::protocol::{Phase, PhaseTable, Selector, SetTableOptions, TableShow};
use skip_client::{Error, ErrorKind, variant};
use std::collections::HashMap;
use std::sync::Arc;
use zbus::message::Header;
use zbus::wire::{OwnedVariant, Variant};
use zbus::{Connection, interface};

/// The interface's object.
pub struct TableControl {
    daemon: Arc<Daemon>,
}

impl TableControl {
    /// Serves a daemon's tables.
    pub fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }

    async fn administrator(&self, header: &Header<'_>, connection: &Connection) -> Result<&Tables, Failure> {
        caller::authorised(&self.daemon, connection, header, Action::SetTable).await?;
        Ok(self.daemon.tables()?)
    }

    async fn set(
        &self,
        phase: &str,
        selector: &str,
        options: &HashMap<String, OwnedVariant>,
        header: &Header<'_>,
        connection: &Connection,
    ) -> Result<(), Failure> {
        let tables = self.administrator(header, connection).await?;
        let phase = Phase::ALL
            .into_iter()
            .find(|p| p.name() == phase)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no phase `{phase}`: prefill and decode are")).at("phase"))?;
        let selector: Selector = selector.parse::<Selector>()?;
        let mut options = variant::from_dict(options)?;
        options.shift_remove(ERROR_DETAILS);
        tables.set(phase, selector, SetTableOptions::from_object(options)?).await?;
        Ok(())
    }

    fn properties(&self) -> Properties {
        Properties::of(self.daemon.show_tables().ok().as_ref())
    }
}

#[interface(name = "org.skipd.Skipd1.Tables", introspection_docs = false)]
impl TableControl {
    /// Puts a table in force; answers when new requests start with it.
    async fn set_table(
        &self,
        phase: String,
        selector: String,
        options: HashMap<String, OwnedVariant>,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), Failure> {
        let done = self.set(&phase, &selector, &options, &header, connection).await;
        done.map_err(|failure| failure.detailed(wants_details(&options)))
    }

    /// Keeps what is pending.
    async fn confirm(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        self.administrator(&header, connection).await?.confirm().await?;
        Ok(())
    }

    /// Takes back what is pending.
    async fn revert(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        self.administrator(&header, connection).await?.revert().await?;
        Ok(())
    }

    /// Reads all table files again.
    async fn reload(&self, #[zbus(header)] header: Header<'_>, #[zbus(connection)] connection: &Connection) -> Result<(), Failure> {
        self.administrator(&header, connection).await?.reload().await?;
        // The updater may have put one there.
        update::look(&self.daemon);
        Ok(())
    }

    /// Both phases, as the socket shows them.
    #[zbus(out_args("tables"))]
    fn show(&self) -> Result<Answer, Failure> {
        answer(&self.daemon.show_tables()?)
    }

    /// The checkpoint's ladders, as the socket shows them.
    #[zbus(out_args("tiers"))]
    fn tiers(&self) -> Result<Answer, Failure> {
        answer(&self.daemon.tables()?.tiers())
    }

    /// The tier of the table in force; empty where it is of none, or dense.
    #[zbus(property)]
    fn prefill_tier(&self) -> String {
        self.properties().prefill.tier
    }

    /// Its rows (first length, S); empty: dense.
    #[zbus(property)]
    fn prefill_table(&self) -> Vec<(u32, f64)> {
        self.properties().prefill.table
    }

    /// What decided: set-table, persisted, admin, update, checkpoint or default.
    #[zbus(property)]
    fn prefill_decided_by(&self) -> String {
        self.properties().prefill.decided_by
    }

    /// Changes of it since the start.
    #[zbus(property)]
    fn prefill_version(&self) -> u64 {
        self.properties().prefill.version
    }

    /// As `PrefillTier`.
    #[zbus(property)]
    fn decode_tier(&self) -> String {
        self.properties().decode.tier
    }

    /// As `PrefillTable`.
    #[zbus(property)]
    fn decode_table(&self) -> Vec<(u32, f64)> {
        self.properties().decode.table
    }

    /// As `PrefillDecidedBy`.
    #[zbus(property)]
    fn decode_decided_by(&self) -> String {
        self.properties().decode.decided_by
    }

    /// As `PrefillVersion`.
    #[zbus(property)]
    fn decode_version(&self) -> u64 {
        self.properties().decode.version
    }

    /// Tables on trial: empty, or `deadline_unix_ms` (t) and `phases` (as).
    #[zbus(property)]
    fn pending(&self) -> Answer {
        self.properties().pending()
    }
}

/// The interface's properties at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    prefill: Side,
    decode: Side,
    deadline: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Side {
    tier: String,
    table: Vec<(u32, f64)>,
    decided_by: String,
    version: u64,
    pending: bool,
}

impl Side {
    fn of(table: &PhaseTable) -> Self {
        Self {
            tier: table.tier.clone().unwrap_or_default(),
            table: table.rows.iter().flatten().map(|&(length, s)| (length, f64::from(s))).collect(),
            decided_by: table.decided_by.name().to_owned(),
            version: table.version,
            pending: table.pending.is_some(),
        }
    }
}

impl Properties {
    /// Those of the tables in force; None: no model is known.
    pub fn of(show: Option<&TableShow>) -> Self {
        let Some(show) = show else { return Self::default() };
        let deadline = |table: &PhaseTable| table.pending.as_ref().map(|p| p.deadline_unix_ms);
        Self {
            prefill: Side::of(&show.prefill),
            decode: Side::of(&show.decode),
            deadline: deadline(&show.prefill).or(deadline(&show.decode)),
        }
    }

    fn pending(&self) -> Answer {
        let Some(deadline) = self.deadline else { return HashMap::new() };
        let sides = [("prefill", &self.prefill), ("decode", &self.decode)];
        let phases: Vec<Value> = sides.into_iter().filter(|(_, side)| side.pending).map(|(name, _)| name.into()).collect();
        let pending = Map::from_iter([("deadline_unix_ms".to_owned(), deadline.into()), ("phases".to_owned(), phases.into())]);
        variant::to_dict(&pending)
    }

    /// By name.
    pub fn dict(&self) -> Vec<(&'static str, Variant<'static>)> {
        let side = |side: &Side| {
            let Side { tier, table, decided_by, version, .. } = side.clone();
            [Variant::new(tier), Variant::new(table), Variant::new(decided_by), Variant::new(version)]
        };
        let names = [
            "PrefillTier",
            "PrefillTable",
            "PrefillDecidedBy",
            "PrefillVersion",
            "DecodeTier",
            "DecodeTable",
            "DecodeDecidedBy",
            "DecodeVersion",
        ];
        let values = side(&self.prefill).into_iter().chain(side(&self.decode));
        let mut dict: Vec<_> = names.into_iter().zip(values).collect();
        dict.push(("Pending", Variant::new(self.pending())));
        dict
    }
}
