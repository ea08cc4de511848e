//! Shares of votes and of mass that a threshold skips, from one prompt's histogram.

use serde::{Deserialize, Serialize};
use skip_kernels::gaps::{GAP_BINS, GAP_LOW, GAPS_PER_NAT, GapHistogram};
use std::ops::AddAssign;

/// Votes and mass, of all and of those that a threshold skips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// Votes below the threshold.
    pub votes: f64,
    /// Softmax numerator of their tiles.
    pub mass: f64,
    /// All votes.
    pub all_votes: f64,
    /// All mass.
    pub all_mass: f64,
}

impl Skipped {
    /// s: the share of votes, 0 to 1; 0 where there were none.
    pub fn share(&self) -> f64 {
        ratio(self.votes, self.all_votes)
    }

    /// m: the share of mass, likewise.
    pub fn mass_share(&self) -> f64 {
        ratio(self.mass, self.all_mass)
    }
}

fn ratio(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

impl AddAssign for Skipped {
    fn add_assign(&mut self, other: Self) {
        self.votes += other.votes;
        self.mass += other.mass;
        self.all_votes += other.all_votes;
        self.all_mass += other.all_mass;
    }
}

/// One prompt's votes by gap, summed from the lowest on.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// L of its votes, in keys.
    pub length: usize,
    /// Votes and mass below each bin's lower edge, and all of them.
    below: Vec<(f64, f64)>,
}

impl Curve {
    /// The curve of a prompt of `length` keys.
    pub fn new(length: usize, gaps: &GapHistogram) -> Self {
        let mut sum = (0.0, 0.0);
        let mut below = Vec::with_capacity(GAP_BINS + 1);
        below.push(sum);
        for (&votes, &mass) in gaps.votes.iter().zip(&gaps.mass) {
            sum = (sum.0 + votes as f64, sum.1 + mass);
            below.push(sum);
        }
        Self { length, below }
    }

    /// What ln λ skips; between two edges of bins as if a bin's votes lay evenly in it. The last bin, of gaps of 0 and more, is never skipped, and the
    /// first, which holds all lower gaps too, as a whole.
    pub fn at(&self, ln_lambda: f64) -> Skipped {
        let last = GAP_BINS - 1;
        let place = ((ln_lambda - f64::from(GAP_LOW)) * GAPS_PER_NAT as f64).clamp(0.0, last as f64);
        let (bin, part) = (place as usize, place.fract());
        let (low, high) = (self.below[bin], self.below[(bin + 1).min(last)]);
        let all = self.below.last().copied().unwrap_or_default();
        let between = |low: f64, high: f64| low + part * (high - low);
        Skipped { votes: between(low.0, high.0), mass: between(low.1, high.1), all_votes: all.0, all_mass: all.1 }
    }

    /// What S skips: λ = S / L; nothing where S is not above 0, or not below L.
    pub fn at_scale(&self, s: f64) -> Skipped {
        if s > 0.0 && s < self.length as f64 { self.at((s / self.length as f64).ln()) } else { self.at(f64::NEG_INFINITY) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(length: usize, gaps: &[(f64, f64)]) -> Curve {
        let mut histogram = GapHistogram::default();
        for &(gap, mass) in gaps {
            histogram.add(gap, mass);
        }
        Curve::new(length, &histogram)
    }

    #[test]
    fn it_agrees_with_the_histogram_at_its_edges() {
        let gaps = [(-20.0, 0.5), (-3.25, 0.25), (-1.0, 0.125), (-1.0 / 256.0, 4.0), (0.0, 2.0), (f64::INFINITY, 8.0)];
        let mut histogram = GapHistogram::default();
        for (gap, mass) in gaps {
            histogram.add(gap, mass);
        }
        let curve = Curve::new(1000, &histogram);
        for eighths in -130..8 {
            let ln_lambda = f64::from(eighths) / 8.0;
            let found = curve.at(ln_lambda);
            assert_eq!((found.share(), found.mass_share()), histogram.skipped(ln_lambda), "{ln_lambda}");
        }
    }

    #[test]
    fn what_raises_the_maximum_is_never_skipped() {
        let curve = curve(100, &[(0.0, 1.0), (f64::INFINITY, 1.0), (-0.001, 2.0)]);
        assert_eq!(curve.at(10.0).votes, 1.0);
    }

    #[test]
    fn a_scale_of_the_length_or_more_is_dense() {
        let curve = curve(100, &[(-4.0, 1.0), (-1.0, 1.0), (0.0, 1.0)]);
        assert_eq!([0.0, -1.0, 100.0, 1e9].map(|s| curve.at_scale(s).votes), [0.0; 4]);
        assert_eq!(curve.at_scale(10.0).votes, 1.0, "ln 0.1 is -2.3");
        assert_eq!(curve.at_scale(99.0).votes, 2.0);
    }
}
