//! What a bin's prompts skip together, by S: enough of their curves to solve it again beside its neighbours'.

use super::curve::{Curve, Skipped};
use super::solve::pooled;
use serde::{Deserialize, Serialize};

/// Points a factor of e in S.
const PER_E: f64 = 32.0;
/// Smallest S of a grid.
const LOWEST: f64 = 0.05;

/// Votes and mass that S skips, at even steps of ln S from .05 on; the last point is at the largest S of its bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    largest: f64,
    /// Shares of votes and of mass, 0 to 1.
    shares: Vec<[f64; 2]>,
}

impl Grid {
    /// Of prompts together, up to `largest`.
    pub fn of(curves: &[Curve], largest: f64) -> Self {
        let at = |s: f64| {
            let skipped = pooled(curves, s);
            [skipped.share(), skipped.mass_share()]
        };
        let count = steps(largest);
        let mut shares: Vec<[f64; 2]> = (0..=count).map(|i| at(LOWEST * (i as f64 / PER_E).exp())).collect();
        shares.push(at(largest));
        Self { largest, shares }
    }

    /// Shares of votes and mass that S skips; between two points as if they lay on a line.
    pub fn at(&self, s: f64) -> Skipped {
        let share = |of: [f64; 2]| Skipped { votes: of[0], mass: of[1], all_votes: 1.0, all_mass: 1.0 };
        let last = self.shares.len() - 1;
        let (Some(end), Some(before)) = (self.shares.last(), self.shares.get(last.saturating_sub(1))) else { return Skipped::default() };
        let place = (s.min(self.largest) / LOWEST).ln() * PER_E;
        if place.is_nan() || place <= 0.0 {
            return share([0.0; 2]);
        }
        let low = place as usize;
        if low + 1 < last {
            let part = place - low as f64;
            let mix = |i: usize| self.shares[low][i] + part * (self.shares[low + 1][i] - self.shares[low][i]);
            return share([mix(0), mix(1)]);
        }
        // The last step is shorter than the others.
        let (from, to) = (last.saturating_sub(1) as f64, (self.largest / LOWEST).ln() * PER_E);
        let part = if to > from { ((place - from) / (to - from)).clamp(0.0, 1.0) } else { 1.0 };
        share([0, 1].map(|i| before[i] + part * (end[i] - before[i])))
    }

    /// Whether it is one of prompts whose largest S is this: as many points as there are steps, each a share, none below the one before.
    pub(super) fn is_of(&self, largest: f64) -> bool {
        let share = |of: &[f64; 2]| of.iter().all(|share| (0.0..=1.0 + ROUNDING).contains(share));
        let grows = |pair: &[[f64; 2]]| (0..2).all(|i| pair[0][i] <= pair[1][i] + ROUNDING);
        (self.largest / largest - 1.0).abs() < ROUNDING
            && self.shares.len() == steps(largest) + 2
            && self.shares.iter().all(share)
            && self.shares.windows(2).all(grows)
    }

    /// The largest S.
    pub fn largest(&self) -> f64 {
        self.largest
    }
}

/// What sums and their way through JSON may be off by.
pub(super) const ROUNDING: f64 = 1e-9;

/// Even steps up to a largest S.
fn steps(largest: f64) -> usize {
    ((largest / LOWEST).ln() * PER_E).max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_kernels::gaps::GapHistogram;

    #[test]
    fn it_tells_what_the_curves_do() {
        let mut gaps = GapHistogram::default();
        for i in 0..5000 {
            let gap = -10.0 * f64::from(i) / 5000.0;
            gaps.add(gap, gap.exp());
        }
        let curves = [Curve::new(4200, &gaps), Curve::new(6000, &gaps)];
        let grid = Grid::of(&curves, 4095.0);
        for s in [0.2, 1.0, 3.3, 40.0, 700.0, 3900.0, 4090.0, 4095.0] {
            let (found, expected) = (grid.at(s), pooled(&curves, s));
            assert!((found.share() - expected.share()).abs() < 2e-3, "{s}: {found:?} for {expected:?}");
            assert!((found.mass_share() - expected.mass_share()).abs() < 5e-3, "{s}");
        }
        assert_eq!(grid.at(1e9), grid.at(4095.0));
        assert_eq!(grid.at(0.0).share(), 0.0);
    }
}
