//! What calibration writes beside a table, so that a reader can tell whether the table fits its kernels and its weights.

use crate::{Digest, Phase, Tier};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Which row maximum a tile's scores are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Maximum {
    /// The maximum over the keys seen so far, in ascending order.
    Running,
    /// The maximum over all keys (scan, then gather).
    True,
}

/// Which query heads must agree before a tile is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Voting {
    /// Each head for itself.
    Head,
    /// All heads of a GQA group together.
    Group,
}

/// Who votes together: S means something only with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Query rows a vote (decode: 1).
    pub rows: u32,
    /// Keys a vote.
    pub keys: u32,
    /// The maximum that votes.
    pub maximum: Maximum,
    /// The heads that vote together.
    pub voting: Voting,
}

impl Geometry {
    /// The reference documentation's: 128×128 prefill tiles, decode per 128-key page, both with the running maximum.
    /// A table without a record is taken to be of this geometry.
    pub const fn reference(phase: Phase) -> Self {
        match phase {
            Phase::Prefill => Self { rows: 128, keys: 128, maximum: Maximum::Running, voting: Voting::Head },
            Phase::Decode => Self { rows: 1, keys: 128, maximum: Maximum::Running, voting: Voting::Group },
        }
    }

    /// The CPU's and portable CUDA's: 128×128 prefill tiles, decode in runs of 32 keys under the true maximum.
    pub const fn portable(phase: Phase) -> Self {
        match phase {
            Phase::Prefill => Self::reference(Phase::Prefill),
            Phase::Decode => Self { rows: 1, keys: 32, maximum: Maximum::True, voting: Voting::Group },
        }
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let maximum = match self.maximum {
            Maximum::Running => "running",
            Maximum::True => "true",
        };
        let voting = match self.voting {
            Voting::Head => "head",
            Voting::Group => "group",
        };
        write!(f, "{}×{} votes a {voting}, {maximum} maximum", self.rows, self.keys)
    }
}

/// A tier, or a bin of it, that no λ < 1 reaches; its rows have S 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unreached {
    /// The tier.
    pub tier: Tier,
    /// First length of the bin; None: no bin reaches the tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_length: Option<u32>,
    /// Share of tiles skipped as λ → 1, 0 to 1.
    pub share: f64,
}

/// The value of `skip_softmax_<phase>_calibration`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Votes the tables were measured with.
    pub geometry: Geometry,
    /// Kernels they were measured with: `cpu`, `portable`, `hopper`, `blackwell`, or another tool's name.
    pub kernel_family: String,
    /// Shortest calibrated length, in keys.
    pub min_length: u32,
    /// Longest calibrated length, in keys; beyond it attention is dense.
    pub max_length: u32,
    /// The weights: [`Digest::of_checkpoint`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_sha256: Option<Digest>,
    /// The text it was measured on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus_sha256: Option<Digest>,
    /// The deployed table as written: [`crate::ScaleTable::digest`]; null where none was deployed.
    /// A deployed table that differs was edited by hand, and wins.
    pub table_sha256: Option<Digest>,
    /// Tiers and bins that were not reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<Unreached>,
    /// Tool and version that wrote it.
    pub tool: String,
    /// When, ISO 8601.
    pub date: String,
    /// What later versions add; carried along.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Calibration {
    /// The largest share recorded for a tier that was not reached, in any bin.
    pub fn best_share(&self, tier: Tier) -> Option<f64> {
        self.unreached.iter().filter(|u| u.tier == tier).map(|u| u.share).max_by(f64::total_cmp)
    }

    /// The share reached where `tier` is recorded as unreached in every bin.
    pub fn never_reached(&self, tier: Tier) -> Option<f64> {
        self.unreached.iter().find(|u| u.tier == tier && u.first_length.is_none()).map(|u| u.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_what_it_does_not_know() {
        let text = r#"{"geometry":{"rows":1,"keys":32,"maximum":"true","voting":"group"},"kernel_family":"cpu","min_length":1024,"max_length":8192,
            "table_sha256":null,"unreached":[{"tier":0.75,"share":0.69}],"tool":"skipctl 0.1.0","date":"2026-11-30","mood":"calm"}"#;
        let record: Calibration = serde_json::from_str(text).unwrap();
        assert_eq!(record.geometry, Geometry::portable(Phase::Decode));
        assert_eq!(record.never_reached("75%".parse().unwrap()), Some(0.69));
        let back = serde_json::to_value(&record).unwrap();
        assert_eq!(back["mood"], "calm");
        assert_eq!(serde_json::from_value::<Calibration>(back).unwrap(), record);
    }
}
