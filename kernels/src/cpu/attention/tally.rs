//! Votes added up by gap, the same on any number of threads: whatever is added is a whole number.

use super::bits;
use crate::gaps::{GAP_BINS, GAP_LOW, GAPS_PER_NAT, GapHistogram};

/// Masses count in 2⁻⁶⁴: a vote has at most 2¹⁴ (128 × 128 keys of a row's maximum each), so room is left for more votes than fit any memory.
const UNIT: f64 = (1u128 << 64) as f64;

/// The lower edges of all bins but the first, as the kernels compare them: a vote is counted below the edge just when they would skip it.
static EDGES: [f32; GAP_BINS - 1] = {
    let mut edges = [0.0; GAP_BINS - 1];
    let mut i = 0;
    while i < edges.len() {
        edges[i] = bits(GAP_LOW as f32 + (i + 1) as f32 / GAPS_PER_NAT as f32);
        i += 1;
    }
    edges
};

/// One vote.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vote {
    /// In bits; +∞ where there was no maximum yet.
    pub gap: f32,
    /// Softmax numerator of its keys, relative to each row's final maximum.
    pub mass: f64,
}

impl Vote {
    /// Before the first row has had its say.
    pub(super) const NONE: Self = Self { gap: f32::NEG_INFINITY, mass: 0.0 };
}

/// A histogram in the making.
#[derive(Default)]
pub(super) struct Tally {
    votes: Vec<u64>,
    mass: Vec<u128>,
}

impl Tally {
    pub(super) fn add(&mut self, votes: &[Vote]) {
        self.votes.resize(GAP_BINS, 0);
        self.mass.resize(GAP_BINS, 0);
        for vote in votes {
            let bin = EDGES.partition_point(|&edge| edge <= vote.gap);
            self.votes[bin] += 1;
            // A cast saturates, and what is no number becomes 0.
            self.mass[bin] = self.mass[bin].saturating_add((vote.mass * UNIT) as u128);
        }
    }

    pub(super) fn histogram(&self) -> GapHistogram {
        let mut gaps = GapHistogram::default();
        gaps.votes[..self.votes.len()].copy_from_slice(&self.votes);
        for (to, &mass) in gaps.mass.iter_mut().zip(&self.mass).filter(|(_, mass)| **mass > 0) {
            *to = mass as f64 / UNIT;
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_fall_where_thresholds_part_them_and_order_changes_no_sum() {
        let votes: Vec<Vote> = (0..5000u32)
            .map(|i| Vote { gap: bits(GAP_LOW as f32 + (i % 2300) as f32 / 128.0 - 0.5), mass: f64::from(i).sqrt() * 1e-9 })
            .chain([Vote { gap: f32::INFINITY, mass: 16384.0 }, Vote::NONE, Vote { gap: bits(-1.0), mass: f64::NAN }])
            .collect();
        let mut forward = Tally::default();
        forward.add(&votes);
        let mut backward = Tally::default();
        votes.rchunks(7).for_each(|part| backward.add(part));
        let gaps = forward.histogram();
        assert_eq!(gaps, backward.histogram());
        for bin in 1..GAP_BINS {
            let threshold = bits(GAP_LOW as f32 + bin as f32 / 128.0);
            let below = votes.iter().filter(|v| v.gap < threshold).count() as u64;
            assert_eq!(gaps.votes[..bin].iter().sum::<u64>(), below);
        }
        let mass: f64 = votes.iter().map(|v| v.mass).filter(|m| !m.is_nan()).sum();
        assert!((gaps.mass.iter().sum::<f64>() - mass).abs() < 1e-12 * mass);
        assert_eq!(Tally::default().histogram(), GapHistogram::default());
    }
}
