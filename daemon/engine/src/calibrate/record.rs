//! What one length bin was found to be: what a job keeps when it has measured a bin, to go on from after a restart, and what tables, advice and
//! reports are made from.

use super::bins::Bin;
use super::curve::{Curve, Skipped};
use super::grid::Grid;
use super::solve::{Solved, pooled, solve};
use crate::measured::Measured;
use serde::{Deserialize, Serialize};
use skip_kernels::gaps::GapHistogram;
use skip_tables::Tier;

/// A measured bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinRecord {
    /// Its first length, in keys.
    pub first: usize,
    /// Where the next begins.
    pub end: usize,
    /// The prompts it was measured on.
    pub prompts: Vec<PromptRecord>,
    /// Prefill, where it was wanted.
    pub prefill: Option<VotesRecord>,
    /// Decode by this backend's votes, likewise.
    pub decode: Option<VotesRecord>,
    /// Decode by the reference documentation's votes.
    pub decode_reference: Option<VotesRecord>,
    /// Seconds that the measured requests took, waiting for other requests among them.
    #[serde(default)]
    pub measuring_seconds: f64,
    /// With those under the tiers' rows, seconds in all; making the prompts is not in it.
    pub seconds: f64,
}

/// A prompt of a bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptRecord {
    /// Tokens.
    pub length: usize,
    /// What text it is of.
    pub source: String,
}

/// One phase and geometry of a bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VotesRecord {
    /// In the order of the settings.
    pub tiers: Vec<TierRecord>,
    /// What all prompts skip together, by S.
    pub grid: Grid,
}

/// A tier's row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierRecord {
    /// The share aimed at.
    pub tier: Tier,
    /// What was found, over all prompts and layers.
    #[serde(flatten)]
    pub solved: Solved,
    /// How much more of a prompt's votes its table skips than was foretold ([`settle`](super::settle)).
    #[serde(default)]
    pub bias: f64,
    /// The same of each prompt, layer by layer, at the row's S (where it was not reached, at the largest there is).
    pub prompts: Vec<Vec<Skipped>>,
}

impl BinRecord {
    /// The bin.
    pub fn bin(&self) -> Bin {
        Bin { first: self.first, end: self.end }
    }
}

/// Which of a request's histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Votes {
    /// Prefill's.
    Prefill,
    /// Decode's, by this backend's votes.
    Decode,
    /// Decode's, by 128-key pages against a running maximum.
    DecodeReference,
}

/// Solves a bin's tiers from what was measured of its prompts, `(L of the votes, votes by gap)` each.
pub fn votes_record(bin: Bin, measured: &[(usize, Measured)], votes: Votes, tiers: &[Tier]) -> VotesRecord {
    let layers: Vec<Vec<Curve>> =
        measured.iter().map(|(length, of)| of.layers.iter().map(|l| Curve::new(*length, l.of(votes))).collect()).collect();
    let whole: Vec<Curve> = measured.iter().map(|(length, of)| Curve::new(*length, &of.sum(votes))).collect();
    let tier_record = |&tier: &Tier| {
        let solved = solve(bin, &whole, tier.share());
        let s = solved.s.unwrap_or_else(|| bin.largest_scale());
        let prompts = layers.iter().map(|prompt| prompt.iter().map(|layer| pooled(std::slice::from_ref(layer), s)).collect()).collect();
        TierRecord { tier, solved, bias: 0.0, prompts }
    };
    VotesRecord { tiers: tiers.iter().map(tier_record).collect(), grid: Grid::of(&whole, bin.largest_scale()) }
}

impl crate::measured::LayerVotes {
    fn of(&self, votes: Votes) -> &GapHistogram {
        match votes {
            Votes::Prefill => &self.prefill,
            Votes::Decode => &self.decode[0],
            Votes::DecodeReference => &self.decode[1],
        }
    }
}

impl Measured {
    /// All layers together.
    pub fn sum(&self, votes: Votes) -> GapHistogram {
        let mut sum = GapHistogram::default();
        self.layers.iter().for_each(|layer| sum += layer.of(votes));
        sum
    }
}
