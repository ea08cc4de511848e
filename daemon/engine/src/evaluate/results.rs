//! What a run of `evaluate` keeps (`--save-results`) and what a later one compares itself with (`--baseline`).

use super::items::read::bounded;
use super::statistics::{Gate, ItemScore};
use crate::regular::{Cancelled, NEVER, json};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::Path;

/// The format; another is refused.
pub const FORMAT: u32 = 1;
const MAX_FILE: u64 = 256 << 20;

/// Which phases run with their tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// Neither.
    Dense,
    /// The prefill.
    Prefill,
    /// The decode.
    Decode,
    /// Both.
    Both,
}

impl Arm {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }
}

/// What scores must have in common to be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Digest of the checkpoint.
    pub checkpoint: String,
    /// Seed of the items.
    pub seed: u64,
    /// Longest prompt with its answer, in tokens.
    pub max_context: usize,
    /// [`super::items::digest`] of the items.
    pub items: String,
    /// [`super::corpus::Corpus::digest`] of the haystacks' text; None where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus: Option<String>,
}

/// The scores of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmScores {
    /// Which.
    pub arm: Arm,
    /// Digests of the tables in force, prefill then decode; None where dense.
    #[serde(default)]
    pub tables: [Option<String>; 2],
    /// In the order of the items.
    pub scores: Vec<ItemScore>,
    /// Against dense; None for dense itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
}

/// A run's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// What the user calls it.
    #[serde(default)]
    pub label: String,
    /// What it ran on.
    #[serde(flatten)]
    pub identity: Identity,
    /// What it ran.
    pub arms: Vec<ArmScores>,
}

/// Why results cannot be read or used.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// Unreadable, too large, or not such a file.
    #[error("{path}: {detail}")]
    Malformed {
        /// Which file.
        path: String,
        /// Why.
        detail: String,
    },
    /// Of something else.
    #[error("the baseline is of another {what}: {baseline}, and this run's is {this}")]
    Other {
        /// Of what: checkpoint, seed, context, corpus, set of items.
        what: &'static str,
        /// The baseline's.
        baseline: String,
        /// This run's.
        this: String,
    },
    /// It has no dense scores.
    #[error("the baseline has no dense scores (it has {0})")]
    NoDense(String),
}

impl Results {
    /// Reads a file that [`Results::to_json`] gave.
    ///
    /// # Errors
    /// [`ResultsError::Malformed`]: unreadable, above 256 MiB, no such JSON, another format, a score that is none, an item twice.
    pub fn open(path: &Path, cancelled: Cancelled<'_>) -> Result<Self, ResultsError> {
        let name = path.display().to_string();
        let bytes = bounded(path, MAX_FILE, cancelled).map_err(|detail| ResultsError::Malformed { path: name.clone(), detail })?;
        Self::parse_until(&bytes, cancelled).map_err(|detail| ResultsError::Malformed { path: name, detail })
    }

    /// Reads such bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        Self::parse_until(bytes, NEVER)
    }

    fn parse_until(bytes: &[u8], cancelled: Cancelled<'_>) -> Result<Self, String> {
        let results: Self = json(bytes, cancelled).map_err(|e| e.to_string())?;
        if results.format != FORMAT {
            return Err(format!("format {}, and this version reads {FORMAT}", results.format));
        }
        for arm in &results.arms {
            let mut ids = HashSet::new();
            for score in &arm.scores {
                if !(0.0..=1.0).contains(&score.score) {
                    return Err(format!("{}: the score of `{}` is {}, not from 0 to 1", arm.arm.name(), score.id, score.score));
                }
                if !ids.insert(&score.id) {
                    return Err(format!("{}: `{}` twice", arm.arm.name(), score.id));
                }
            }
        }
        Ok(results)
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        // Neither maps with keys that are no strings nor numbers that are not finite: scores are checked where they are made.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// One arm's scores.
    pub fn arm(&self, arm: Arm) -> Option<&ArmScores> {
        self.arms.iter().find(|scores| scores.arm == arm)
    }

    /// The dense scores, as a baseline for a run.
    ///
    /// # Errors
    /// It is of another checkpoint, seed, context, corpus or set of items, or has no dense scores.
    pub fn baseline(&self, this: &Identity) -> Result<&[ItemScore], ResultsError> {
        let theirs = &self.identity;
        let text = |corpus: &Option<String>| corpus.clone().unwrap_or_else(|| "none".into());
        // Items last: whatever else differs makes them differ too, and names the reason better.
        let compared = [
            ("checkpoint", theirs.checkpoint.clone(), this.checkpoint.clone()),
            ("seed", theirs.seed.to_string(), this.seed.to_string()),
            ("context", theirs.max_context.to_string(), this.max_context.to_string()),
            ("corpus", text(&theirs.corpus), text(&this.corpus)),
            ("set of items", theirs.items.clone(), this.items.clone()),
        ];
        if let Some((what, baseline, this)) = compared.into_iter().find(|(_, theirs, ours)| theirs != ours) {
            return Err(ResultsError::Other { what, baseline, this });
        }
        let has = || self.arms.iter().map(|scores| scores.arm.name()).collect::<Vec<_>>().join(", ");
        self.arm(Arm::Dense).map(|scores| scores.scores.as_slice()).ok_or_else(|| ResultsError::NoDense(has()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::statistics::{MAX_DROP, gate};

    fn results() -> Results {
        let score = |id: &str, score| ItemScore { id: id.into(), task: "ruler/vt".into(), score };
        let dense = vec![score("a", 1.0), score("b", 0.25)];
        let gate = gate(&dense, &dense, MAX_DROP).unwrap();
        let identity = Identity { checkpoint: "c0".into(), seed: 7, max_context: 4096, items: "i0".into(), corpus: Some("t0".into()) };
        Results {
            format: FORMAT,
            label: "75%".into(),
            identity,
            arms: vec![
                ArmScores { arm: Arm::Dense, tables: [None, None], scores: dense.clone(), gate: None },
                ArmScores { arm: Arm::Prefill, tables: [Some("d".into()), None], scores: dense, gate: Some(gate) },
            ],
        }
    }

    #[test]
    fn results_come_back_as_they_were_saved() {
        let results = results();
        assert_eq!(Results::parse(results.to_json().as_bytes()).unwrap(), results);
    }

    #[test]
    fn a_baseline_of_something_else_is_refused_by_name() {
        let results = results();
        let this = &results.identity;
        assert_eq!(results.baseline(this).unwrap().len(), 2);
        let cases = [
            (
                Identity { checkpoint: "c1".into(), items: "i1".into(), ..this.clone() },
                "the baseline is of another checkpoint: c0, and this run's is c1",
            ),
            (Identity { seed: 8, items: "i1".into(), ..this.clone() }, "the baseline is of another seed: 7, and this run's is 8"),
            (Identity { max_context: 8192, ..this.clone() }, "the baseline is of another context: 4096, and this run's is 8192"),
            (Identity { corpus: None, ..this.clone() }, "the baseline is of another corpus: t0, and this run's is none"),
            (Identity { items: "i1".into(), ..this.clone() }, "the baseline is of another set of items: i0, and this run's is i1"),
        ];
        for (other, wanted) in cases {
            assert_eq!(results.baseline(&other).unwrap_err().to_string(), wanted);
        }
        let arms = results.arms[1..].to_vec();
        let error = Results { arms, ..results.clone() }.baseline(this).unwrap_err();
        assert_eq!(error, ResultsError::NoDense("prefill".into()));
    }

    #[test]
    fn files_that_are_no_results_are_refused() {
        let text = results().to_json();
        for (from, to, wanted) in [
            ("\"format\": 1", "\"format\": 2", "format 2, and this version reads 1"),
            ("\"score\": 0.25", "\"score\": 1.5", "dense: the score of `b` is 1.5, not from 0 to 1"),
            ("\"id\": \"b\"", "\"id\": \"a\"", "dense: `a` twice"),
            ("\"seed\": 7", "\"seed\": \"x\"", "invalid type"),
        ] {
            let error = Results::parse(text.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!(Results::open(Path::new("/dev/null"), NEVER).is_err());
    }
}
