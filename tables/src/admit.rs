//! Whether a table fits the kernels and the weights that would use it.

use crate::{Calibration, Digest, Geometry, ModeloptError, PerPhase, Phase, Tier, Unread};
use std::fmt;

/// What is known of the loaded weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Hashed.
    Known(Digest),
    /// Being hashed: a table recorded for some weights has to wait.
    Pending,
    /// Nobody hashes them (a check of files alone): any recorded digest will do.
    Unchecked,
}

/// What tables are checked against.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The loaded weights.
    pub weights: Weights,
    /// Votes of the kernels in use.
    pub geometry: PerPhase<Geometry>,
}

impl Target {
    /// The CPU's and portable CUDA's kernels.
    pub fn portable(weights: Weights) -> Self {
        Self { weights, geometry: PerPhase::from_fn(Geometry::portable) }
    }
}

/// Why a table is not used; the one before stays.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A tier without a ladder to find it in.
    #[error("{phase} has no ladder to find tier {tier} in")]
    NoLadder {
        /// Phase asked for.
        phase: Phase,
        /// Tier asked for.
        tier: Tier,
    },
    /// A tier the ladder lacks.
    #[error("the {phase} ladder has no tier {tier}; it reaches {}", names(available))]
    NoSuchTier {
        /// Phase asked for.
        phase: Phase,
        /// Tier asked for.
        tier: Tier,
        /// Tiers that can be had.
        available: Vec<Tier>,
    },
    /// A tier that no λ < 1 reached in any bin.
    #[error("{phase} never reached tier {tier}{}; the ladder reaches {}", reached(*share), names(available))]
    Unreached {
        /// Phase asked for.
        phase: Phase,
        /// Tier asked for.
        tier: Tier,
        /// Share that was reached, where recorded.
        share: Option<f64>,
        /// Tiers that can be had.
        available: Vec<Tier>,
    },
    /// A table file that says nothing of the phase.
    #[error("the table file holds nothing for {phase}")]
    Silent {
        /// Phase asked for.
        phase: Phase,
    },
    /// A table measured on other weights.
    #[error("the {phase} table belongs to another checkpoint (its weights {recorded}, loaded {loaded})")]
    OtherCheckpoint {
        /// Phase of the table.
        phase: Phase,
        /// Weights it was measured on.
        recorded: Digest,
        /// Weights that are loaded.
        loaded: Digest,
    },
    /// The weights are not hashed yet, so nobody knows whether the table is theirs.
    #[error("the weights are still being hashed, and the {phase} table is recorded for some")]
    NotHashedYet {
        /// Phase of the table.
        phase: Phase,
    },
    /// A decode table measured with other votes.
    #[error("the {phase} table was measured with {recorded}; these kernels take {used}")]
    OtherGeometry {
        /// Phase of the table.
        phase: Phase,
        /// Votes it was measured with.
        recorded: Geometry,
        /// Votes of the kernels in use.
        used: Geometry,
    },
    /// ModelOpt's word on the phase cannot be converted.
    #[error("{0}")]
    Modelopt(ModeloptError),
    /// A decode table without a record from outside, taken to be the reference documentation's geometry, under which it would skip far too much here.
    #[error("the {phase} table has no calibration record, so it counts as measured with {assumed}; these kernels take {used}")]
    Unrecorded {
        /// Phase of the table.
        phase: Phase,
        /// The reference documentation's votes.
        assumed: Geometry,
        /// Votes of the kernels in use.
        used: Geometry,
    },
}

impl Refusal {
    /// Whether `--force` overrules it.
    pub fn can_be_forced(&self) -> bool {
        matches!(self, Self::Unreached { .. } | Self::OtherCheckpoint { .. } | Self::OtherGeometry { .. } | Self::Unrecorded { .. })
    }
}

/// Something a person should know of a table that is used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// Bare rows given to set-table: the caller's own word.
    CallersWord,
    /// ModelOpt's curve as a table: one S for all lengths.
    Converted {
        /// The S.
        s: f32,
        /// The share it was fitted for.
        target: Tier,
        /// Algorithms that the file asks for and that are not done here.
        left_out: Vec<String>,
    },
    /// No record: taken to be of the reference documentation's geometry.
    Unrecorded(Geometry),
    /// Measured with other votes, so the share will differ from the tier's.
    OtherGeometry {
        /// Votes it was measured with.
        recorded: Geometry,
        /// Votes of the kernels in use.
        used: Geometry,
    },
    /// Used although it would be refused.
    Forced(Refusal),
    /// The deployed table differs from what calibration wrote, and wins.
    EditedByHand,
    /// The deployed table that calibration wrote was taken out: dense.
    RemovedByHand,
    /// The target tier cannot be had; the deployed table is used instead.
    TargetPassedOver(Refusal),
    /// A source of higher precedence could not be used.
    PassedOver {
        /// Where it lies.
        place: String,
        /// Why not.
        reason: String,
    },
    /// A key that looks like a table's and is not read.
    Unread {
        /// The file.
        place: String,
        /// The key, and what it may be meant for.
        unread: Unread,
    },
    /// Bins that do not reach the tier run dense.
    DenseBins {
        /// First lengths of the bins.
        first_lengths: Vec<u32>,
    },
    /// Longer sequences run dense.
    DenseBeyond(u32),
    /// No length has a threshold.
    NeverSkips,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CallersWord => f.write_str("unrecorded: bare rows, the caller's own word"),
            Self::Converted { s, target, left_out } => {
                write!(
                    f,
                    "converted from ModelOpt's sparse_attention_config: S = {s} for {target} at every length; calibrate for a table by length"
                )?;
                if left_out.is_empty() { Ok(()) } else { write!(f, "; not done here: {}", left_out.join(", ")) }
            }
            Self::Unrecorded(assumed) => {
                write!(f, "unrecorded: taken to be measured with {assumed}; watch the measured share")
            }
            Self::OtherGeometry { recorded, used } => {
                write!(f, "measured with {recorded}, used with {used}: the share will differ from the tier's")
            }
            Self::Forced(refusal) => write!(f, "forced: {refusal}"),
            Self::EditedByHand => f.write_str("the deployed table differs from what calibration wrote: edited by hand, it wins"),
            Self::RemovedByHand => f.write_str("the deployed table that calibration wrote was removed by hand: dense"),
            Self::TargetPassedOver(refusal) => write!(f, "the deployed table is used: {refusal}"),
            Self::PassedOver { place, reason } => write!(f, "{place} is passed over: {reason}"),
            Self::Unread { place, unread } => write!(f, "{place}: {unread}"),
            Self::DenseBins { first_lengths } => {
                let lengths: Vec<_> = first_lengths.iter().map(u32::to_string).collect();
                write!(f, "dense in the bins from {} on, which do not reach the tier", lengths.join(", "))
            }
            Self::DenseBeyond(max) => write!(f, "dense beyond {max} tokens, the longest calibrated length"),
            Self::NeverSkips => f.write_str("no length has a threshold under this table: dense"),
        }
    }
}

/// Checks a table's record against what would use it.
///
/// # Errors
/// [`Refusal`], unless `force` overrules it.
pub fn admit(phase: Phase, record: Option<&Calibration>, target: &Target, force: bool) -> Result<Vec<Notice>, Refusal> {
    let used = target.geometry[phase];
    let mut notices = Vec::new();
    let mut refuse = |refusal: Refusal| {
        if !force {
            return Err(refusal);
        }
        notices.push(Notice::Forced(refusal));
        Ok(())
    };
    match record {
        None => {
            let assumed = Geometry::reference(phase);
            if phase == Phase::Decode && assumed != used {
                refuse(Refusal::Unrecorded { phase, assumed, used })?;
            } else {
                notices.push(Notice::Unrecorded(assumed));
            }
        }
        Some(record) => {
            match (record.checkpoint_sha256, target.weights) {
                (Some(recorded), Weights::Known(loaded)) if recorded != loaded => {
                    refuse(Refusal::OtherCheckpoint { phase, recorded, loaded })?;
                }
                (Some(_), Weights::Pending) if !force => return Err(Refusal::NotHashedYet { phase }),
                _ => {}
            }
            let recorded = record.geometry;
            if recorded != used {
                match phase {
                    Phase::Decode => refuse(Refusal::OtherGeometry { phase, recorded, used })?,
                    Phase::Prefill => notices.push(Notice::OtherGeometry { recorded, used }),
                }
            }
        }
    }
    Ok(notices)
}

fn names(tiers: &[Tier]) -> String {
    if tiers.is_empty() {
        return "none".into();
    }
    tiers.iter().map(Tier::to_string).collect::<Vec<_>>().join(", ")
}

fn reached(share: Option<f64>) -> String {
    share.map(|s| format!(" ({:.1} % as λ → 1)", s * 100.0)).unwrap_or_default()
}
