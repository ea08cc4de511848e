//! What one length bin was found to be: what a job keeps when it has measured a bin, to go on from after a restart, and what tables, advice and
//! reports are made from.

use super::bins::Bin;
use super::curve::{Curve, Skipped};
use super::grid::{Grid, ROUNDING};
use super::solve::{Solved, pooled, solve};
use crate::measured::Measured;
use serde::{Deserialize, Serialize};
use skip_kernels::gaps::GapHistogram;
use skip_tables::{Phase, Tier};

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

/// What a bin of a run must be, whoever measured it.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The bin.
    pub bin: Bin,
    /// Phases that are calibrated.
    pub phases: &'a [Phase],
    /// The ladder.
    pub tiers: &'a [Tier],
    /// Prompts.
    pub samples: usize,
    /// Layers of the checkpoint.
    pub layers: usize,
}

impl BinRecord {
    /// The bin.
    pub fn bin(&self) -> Bin {
        Bin { first: self.first, end: self.end }
    }

    /// Whether this is what measuring the plan's bin gives, in shape and in sense; a record from a disk may be anything.
    ///
    /// # Errors
    /// What it is not, in words.
    pub fn is_of(&self, plan: &Plan<'_>) -> Result<(), &'static str> {
        if self.bin() != plan.bin {
            return Err("of another bin");
        }
        if self.prompts.len() != plan.samples || !self.prompts.iter().all(|prompt| (self.first..self.end).contains(&prompt.length)) {
            return Err("of other prompts");
        }
        if ![self.measuring_seconds, self.seconds].iter().all(|seconds| (0.0..=YEAR).contains(seconds)) {
            return Err("measured in no time that there is");
        }
        let wants = |phase| plan.phases.contains(&phase);
        let phases =
            [(&self.prefill, wants(Phase::Prefill)), (&self.decode, wants(Phase::Decode)), (&self.decode_reference, wants(Phase::Decode))];
        if phases.iter().any(|(votes, wanted)| votes.is_some() != *wanted) {
            return Err("of other phases");
        }
        phases.into_iter().filter_map(|(votes, _)| votes.as_ref()).try_for_each(|votes| votes.is_of(plan))
    }
}

impl VotesRecord {
    fn is_of(&self, plan: &Plan<'_>) -> Result<(), &'static str> {
        if !self.tiers.iter().map(|found| found.tier).eq(plan.tiers.iter().copied()) {
            return Err("of other tiers");
        }
        let largest = plan.bin.largest_scale();
        if !self.grid.is_of(largest) {
            return Err("with a curve that is none");
        }
        for found in &self.tiers {
            if found.prompts.len() != plan.samples || found.prompts.iter().any(|layers| layers.len() != plan.layers) {
                return Err("of a model with other layers");
            }
            let scale = found.solved.s.is_none_or(|s| s > 0.0 && s <= largest);
            let all = found.prompts.iter().flatten().chain([&found.solved.skipped]);
            if !scale || !(-1.0..=1.0).contains(&found.bias) || !all.into_iter().all(Skipped::is_sound) {
                return Err("with numbers that nothing measures");
            }
        }
        Ok(())
    }
}

/// In seconds: no bin takes longer.
const YEAR: f64 = 366.0 * 86_400.0;
/// More votes than any prompt has: a million tokens squared, in a thousand layers of a thousand heads.
const MOST: f64 = 1e18;

impl Skipped {
    /// Parts are no larger than their whole, and nothing is below nothing.
    fn is_sound(&self) -> bool {
        let part = |part: f64, all: f64| (0.0..=MOST).contains(&all) && part >= 0.0 && part <= all * (1.0 + ROUNDING);
        part(self.votes, self.all_votes) && part(self.mass, self.all_mass)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::LayerVotes;

    const BIN: Bin = Bin { first: 4096, end: 6144 };

    fn tiers() -> Vec<Tier> {
        ["50%", "90%"].map(|tier| tier.parse().unwrap()).to_vec()
    }

    /// Two prompts of three layers, the last of which has a window.
    fn record() -> BinRecord {
        let mut layers = vec![LayerVotes::default(); 3];
        for i in 0..1000 {
            let gap = -8.0 * f64::from(i) / 1000.0;
            for layer in &mut layers[..2] {
                layer.prefill.add(gap, gap.exp());
                layer.decode[0].add(gap, gap.exp());
                layer.decode[1].add(0.5 * gap, gap.exp());
            }
        }
        let measured = [4200, 6000].map(|length| (length, Measured { layers: layers.clone() }));
        let of = |votes| Some(votes_record(BIN, &measured, votes, &tiers()));
        BinRecord {
            first: BIN.first,
            end: BIN.end,
            prompts: [4200, 6000].map(|length| PromptRecord { length, source: "a text".into() }).to_vec(),
            prefill: of(Votes::Prefill),
            decode: of(Votes::Decode),
            decode_reference: of(Votes::DecodeReference),
            measuring_seconds: 0.5,
            seconds: 1.0,
        }
    }

    #[test]
    fn what_was_measured_is_of_its_plan_behind_its_json_too() {
        let tiers = tiers();
        let plan = Plan { bin: BIN, phases: &Phase::ALL, tiers: &tiers, samples: 2, layers: 3 };
        let back: BinRecord = serde_json::from_str(&serde_json::to_string(&record()).unwrap()).unwrap();
        assert_eq!((record().is_of(&plan), back.is_of(&plan)), (Ok(()), Ok(())));
        for other in [
            Plan { bin: Bin { end: 5000, ..BIN }, ..plan },
            Plan { phases: &[Phase::Prefill], ..plan },
            Plan { tiers: &tiers[..1], ..plan },
            Plan { samples: 3, ..plan },
            Plan { layers: 4, ..plan },
        ] {
            assert!(record().is_of(&other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn what_nothing_measures_is_of_no_plan() {
        let tiers = tiers();
        let plan = Plan { bin: BIN, phases: &Phase::ALL, tiers: &tiers, samples: 2, layers: 3 };
        let spoils: [fn(&mut BinRecord); 12] = [
            |r| r.prompts[1].length = usize::MAX,
            |r| r.seconds = -1.0,
            |r| r.prefill = None,
            |r| r.decode_reference = None,
            |r| prefill(r).tiers.swap(0, 1),
            |r| prefill(r).tiers[0].solved.s = Some(1e9),
            |r| prefill(r).tiers[0].solved.s = Some(0.0),
            |r| prefill(r).tiers[0].bias = 7.0,
            |r| prefill(r).tiers[0].solved.skipped.votes = 1e30,
            |r| prefill(r).tiers[1].prompts[0][1].mass = -1.0,
            |r| prefill(r).tiers[1].prompts[1].truncate(2),
            |r| prefill(r).grid = Grid::of(&[], 20.0),
        ];
        for (i, spoil) in spoils.into_iter().enumerate() {
            let mut record = record();
            spoil(&mut record);
            assert!(record.is_of(&plan).is_err(), "{i}");
        }
    }

    fn prefill(record: &mut BinRecord) -> &mut VotesRecord {
        record.prefill.as_mut().unwrap()
    }
}
