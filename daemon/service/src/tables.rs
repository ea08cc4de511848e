//! The table store as the interfaces see it: which tables are in force, and how they are changed.
//! A placeholder that is always dense until the store behind it is there.

use skip_client::protocol::{DecidedBy, Phase, PhaseTable, Selector, SetTableOptions, TableShow, TierList};
use skip_client::{Error, ErrorKind};
use skip_engine::handle::{NamedTable, TableSet};
use std::sync::Arc;

/// The tables of the loaded model.
#[derive(Debug, Default)]
pub struct Tables {}

impl Tables {
    /// What new requests start with.
    pub fn in_force(&self) -> TableSet {
        TableSet::default()
    }

    /// SHA-256 over the checkpoint's weights, once computed.
    pub fn checkpoint_hash(&self) -> Option<String> {
        None
    }

    /// The table a selector names, for one request; None is dense.
    pub fn resolve(&self, phase: Phase, selector: &Selector) -> Result<Option<Arc<NamedTable>>, Error> {
        match selector {
            Selector::None => Ok(None),
            other => Err(Error::new(ErrorKind::TableRefused, format!("{phase}: no table {other} here"))),
        }
    }

    /// Both phases.
    pub fn show(&self) -> TableShow {
        let dense = |phase| PhaseTable {
            phase,
            tier: None,
            rows: None,
            max_length: None,
            decided_by: DecidedBy::Default,
            location: String::new(),
            hash: None,
            version: 0,
            notices: Vec::new(),
            pending: None,
            measured: None,
        };
        TableShow { prefill: dense(Phase::Prefill), decode: dense(Phase::Decode) }
    }

    /// The checkpoint's ladders.
    pub fn tiers(&self) -> TierList {
        TierList::default()
    }

    /// Puts a table in force; returns when new requests start with it.
    pub async fn set(&self, phase: Phase, selector: Selector, _options: SetTableOptions) -> Result<PhaseTable, Error> {
        self.resolve(phase, &selector)?;
        Ok(self.show().phase(phase).clone())
    }

    /// Keeps what is pending.
    pub async fn confirm(&self) -> Result<TableShow, Error> {
        Err(Error::new(ErrorKind::NothingPending, "no table is pending"))
    }

    /// Takes back what is pending.
    pub async fn revert(&self) -> Result<TableShow, Error> {
        Err(Error::new(ErrorKind::NothingPending, "no table is pending"))
    }

    /// Reads all table files again.
    pub async fn reload(&self) -> Result<TableShow, Error> {
        Ok(self.show())
    }
}
