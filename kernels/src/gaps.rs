//! Votes by gap: what measuring attention adds up, so that one run of a prompt tells share and mass of every threshold at once.
//!
//! A gap is how far the largest score of a tile (or run) lies under the row's maximum, the largest such difference over the voting rows.

use crate::attention::AttnGeometry;

/// Bins a nat.
pub const GAPS_PER_NAT: usize = 128;
/// Where the first bin begins, in nats; it holds all below as well.
pub const GAP_LOW: i32 = -16;
/// Bins: the last holds gaps of 0 and more, which no λ below 1 skips.
pub const GAP_BINS: usize = -GAP_LOW as usize * GAPS_PER_NAT + 1;

/// Votes and the softmax numerator of their tiles, relative to each row's final maximum, by gap.
#[derive(Clone, Debug, PartialEq)]
pub struct GapHistogram {
    /// Votes, one number a bin.
    pub votes: Vec<u64>,
    /// Numerator, likewise; 1 is a key that has its row's maximum.
    pub mass: Vec<f64>,
}

impl Default for GapHistogram {
    fn default() -> Self {
        Self { votes: vec![0; GAP_BINS], mass: vec![0.0; GAP_BINS] }
    }
}

impl GapHistogram {
    /// Adds a vote; `gap` is +∞ where there was no maximum yet.
    pub fn add(&mut self, gap: f64, mass: f64) {
        let at = (gap - f64::from(GAP_LOW)) * GAPS_PER_NAT as f64;
        // A cast saturates, and what is no number becomes 0.
        let bin = (at.max(0.0) as usize).min(GAP_BINS - 1);
        self.votes[bin] += 1;
        self.mass[bin] += mass;
    }

    /// Shares of votes and of mass that ln λ skips, exact where it is a bin's edge; `(0, 0)` where nothing was added.
    pub fn skipped(&self, ln_lambda: f64) -> (f64, f64) {
        let bins = ((ln_lambda - f64::from(GAP_LOW)) * GAPS_PER_NAT as f64).clamp(0.0, (GAP_BINS - 1) as f64) as usize;
        let (votes, mass): (u64, f64) = (self.votes.iter().sum(), self.mass.iter().sum());
        if votes == 0 {
            return (0.0, 0.0);
        }
        (self.votes[..bins].iter().sum::<u64>() as f64 / votes as f64, self.mass[..bins].iter().sum::<f64>() / mass)
    }
}

impl std::ops::AddAssign<&GapHistogram> for GapHistogram {
    fn add_assign(&mut self, other: &GapHistogram) {
        self.votes.iter_mut().zip(&other.votes).for_each(|(a, b)| *a += b);
        self.mass.iter_mut().zip(&other.mass).for_each(|(a, b)| *a += b);
    }
}

/// Histograms of one sequence: by this backend's votes and, of decode, by 128-key pages against a running maximum, which is how other
/// implementations vote and so what tables for them are made from.
pub type Gaps = [GapHistogram; 2];

/// Whether a layer can be measured: windowed ones never vote.
pub(crate) fn votes(geometry: &AttnGeometry) -> bool {
    geometry.window.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_at_an_edge_belong_to_the_bin_above() {
        let mut gaps = GapHistogram::default();
        for (gap, mass) in [(-20.0, 0.5), (-1.0, 0.25), (-1.0 - 1.0 / 256.0, 1.0), (0.0, 2.0), (f64::INFINITY, 0.25)] {
            gaps.add(gap, mass);
        }
        assert_eq!(gaps.skipped(-1.0), (2.0 / 5.0, 1.5 / 4.0));
        assert_eq!(gaps.skipped(-1.0 + 1.0 / 128.0), (3.0 / 5.0, 1.75 / 4.0));
        assert_eq!(gaps.skipped(5.0), (3.0 / 5.0, 1.75 / 4.0), "no threshold skips a tile that raises the maximum");
        assert_eq!(GapHistogram::default().skipped(-1.0), (0.0, 0.0));
    }

    #[test]
    fn histograms_add_up() {
        let mut one = GapHistogram::default();
        one.add(-3.0, 1.0);
        let mut two = one.clone();
        two += &one;
        assert_eq!(two.votes.iter().sum::<u64>(), 2);
        assert_eq!(two.mass.iter().sum::<f64>(), 2.0);
    }
}
