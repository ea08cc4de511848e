//! Scale tables: which threshold an attention kernel uses at which length, where a table came from, and which one is in force.
//! A table is rows `[first_length, S]`; at a sequence of L keys λ = S / L, and a tile is skipped when its scores lie more than −ln λ nats under the running maximum.

mod admit;
mod atomic;
mod digest;
mod drift;
mod edit;
mod export;
mod file;
mod json;
mod modelopt;
mod per_phase;
mod record;
mod reference;
mod resolve;
mod retarget;
mod scale_table;
mod tier;
mod unread;

pub use admit::{Notice, Refusal, Target, Weights, admit};
pub use atomic::replace_file;
pub use digest::{Digest, DigestError};
pub use drift::{Alarm, Drift, DriftRules};
pub use edit::{EditError, set_keys};
pub use export::{ExportError, Exported, Override, export};
pub use file::{Deployed, Document, FileError, MAX_TIERS, PhaseTables, TableFile};
pub use json::{JsonError, MAX_BYTES, parse as parse_json};
pub use modelopt::{Modelopt, ModeloptError};
pub use per_phase::PerPhase;
pub use record::{Calibration, Geometry, Maximum, Unreached, Voting};
pub use resolve::{Decision, Origin, Selection, Setting, Source, Sources, check, is_reached, resolve};
pub use retarget::{NothingPending, Retarget, ToPersist, Trial};
pub use scale_table::{Row, ScaleTable, TableError};
pub use tier::{Tier, TierError};
pub use unread::Unread;

use serde::{Deserialize, Serialize};

/// The two phases of generation; each has its own table, and nothing without a phase is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The prompt: many query rows at once.
    Prefill,
    /// One query row per sequence and step.
    Decode,
}

impl Phase {
    /// Both phases, in the order they run.
    pub const ALL: [Phase; 2] = [Phase::Prefill, Phase::Decode];

    /// The name in keys, options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
