//! Rows from bins and their neighbours: a bin's few texts say as much of the lengths beside it, and what differs from text to text is most of what a
//! bin's own S would follow.

use super::grid::Grid;
use super::record::{BinRecord, TierRecord, VotesRecord};
use super::solve::{Solved, written};

/// Weight of a neighbour beside the bin's own.
const BESIDE: f64 = 0.5;
/// Bins on either side whose bias counts.
const ALIKE: usize = 2;

/// One bin of a tier.
struct Bin<'a> {
    record: &'a BinRecord,
    grid: &'a Grid,
    tier: &'a TierRecord,
    /// Its own and its neighbours' bias: their median, for two prompts may be odd ones.
    bias: f64,
}

/// The rows of tier number `tier`, one a bin.
pub fn rows(bins: &[(&BinRecord, &VotesRecord)], tier: usize) -> Vec<Solved> {
    let mut of: Vec<Bin<'_>> = bins
        .iter()
        .filter_map(|(record, votes)| Some(Bin { record, grid: &votes.grid, tier: votes.tiers.get(tier)?, bias: 0.0 }))
        .collect();
    let biases: Vec<f64> = (0..of.len()).map(|i| median_bias(&of, i)).collect();
    of.iter_mut().zip(biases).for_each(|(bin, bias)| bin.bias = bias);
    (0..of.len()).map(|i| row(&of, i)).collect()
}

/// Of the bins around one that reach the tier; 0 where none does.
fn median_bias(bins: &[Bin<'_>], i: usize) -> f64 {
    let around = &bins[i.saturating_sub(ALIKE)..(i + ALIKE + 1).min(bins.len())];
    let mut biases: Vec<f64> = around.iter().filter(|bin| bin.tier.solved.s.is_some()).map(|bin| bin.tier.bias).collect();
    biases.sort_by(f64::total_cmp);
    let middle = biases.len() / 2;
    match biases.len() {
        0 => 0.0,
        n if n % 2 == 1 => biases[middle],
        _ => 0.5 * (biases[middle - 1] + biases[middle]),
    }
}

fn row(bins: &[Bin<'_>], i: usize) -> Solved {
    let own = &bins[i];
    // A neighbour that does not reach the tier says nothing of where it is reached.
    let beside = |at: Option<usize>| at.and_then(|at| bins.get(at)).filter(|bin| bin.tier.solved.s.is_some()).map(|bin| (BESIDE, bin));
    let near: Vec<(f64, &Bin<'_>)> = [beside(i.checked_sub(1)), Some((1.0, own)), beside(Some(i + 1))].into_iter().flatten().collect();
    let weights: f64 = near.iter().map(|(weight, _)| weight).sum();
    // λ is what a length and S make: a neighbour's curve is read at its own λ for this S, as its prompts were.
    let share = |s: f64| near.iter().map(|(weight, bin)| weight * (bin.grid.at(s).share() + bin.bias)).sum::<f64>() / weights;
    let (target, largest) = (own.tier.tier.share(), own.record.bin().largest_scale());
    let told = |s: f64| {
        let mut skipped = own.grid.at(s);
        skipped.votes = (skipped.votes + own.bias).clamp(0.0, 1.0);
        skipped
    };
    // Where its own prompts do not reach it, their neighbours' do not count.
    if told(largest).share() < target || share(largest) < target {
        return Solved { s: None, skipped: told(largest) };
    }
    let (mut low, mut high) = (1e-6f64.ln(), largest.ln());
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if share(middle.exp()) < target { low = middle } else { high = middle }
    }
    let s = written(high.exp()).min(largest);
    Solved { s: Some(s), skipped: told(s) }
}

#[cfg(test)]
mod tests {
    use super::super::bins;
    use super::super::curve::Curve;
    use super::super::solve::solve;
    use super::*;
    use skip_kernels::gaps::GapHistogram;

    /// A bin whose gaps reach down to −`depth` nats, and a bias.
    fn bin(first: usize, depth: f64, bias: f64) -> (BinRecord, VotesRecord) {
        let of = bins::Bin { first, end: first + 2048 };
        let mut gaps = GapHistogram::default();
        for i in 0..4000 {
            let gap = -depth * f64::from(i) / 4000.0;
            gaps.add(gap, gap.exp());
        }
        let curves = [Curve::new(first + 1000, &gaps)];
        let tier = TierRecord { tier: "50%".parse().unwrap(), solved: solve(of, &curves, 0.5), bias, prompts: Vec::new() };
        let votes = VotesRecord { tiers: vec![tier], grid: Grid::of(&curves, of.largest_scale()) };
        let record = BinRecord {
            first,
            end: first + 2048,
            prompts: Vec::new(),
            prefill: None,
            decode: None,
            decode_reference: None,
            measuring_seconds: 0.0,
            seconds: 0.0,
        };
        (record, votes)
    }

    fn solved(bins: &[(BinRecord, VotesRecord)]) -> Vec<Solved> {
        rows(&bins.iter().map(|(record, votes)| (record, votes)).collect::<Vec<_>>(), 0)
    }

    #[test]
    fn an_odd_bin_is_drawn_to_its_neighbours() {
        let bins = [bin(4096, 8.0, 0.0), bin(6144, 10.0, 0.0), bin(8192, 8.0, 0.0)];
        let s: Vec<f64> = solved(&bins).iter().map(|row| row.s.unwrap()).collect();
        let own: Vec<f64> = bins.iter().map(|(_, votes)| votes.tiers[0].solved.s.unwrap()).collect();
        assert!(own[1] < s[1] && s[1] < s[0].max(s[2]), "{own:?} {s:?}");
        let alone = solved(&bins[..1]);
        assert!((alone[0].s.unwrap() / own[0] - 1.0).abs() < 0.01, "{alone:?} {own:?}");
    }

    #[test]
    fn what_tables_skip_less_than_foretold_is_made_up_for() {
        let (plain, biased) = (solved(&[bin(4096, 8.0, 0.0)]), solved(&[bin(4096, 8.0, -0.02)]));
        assert!(plain[0].s < biased[0].s);
        assert!((biased[0].skipped.share() - 0.5).abs() < 2e-3, "{biased:?}");
    }

    #[test]
    fn one_odd_bias_among_others_counts_for_nothing() {
        let bins = [bin(4096, 8.0, -0.02), bin(6144, 8.0, -0.1), bin(8192, 8.0, -0.02)];
        let even = [bin(4096, 8.0, -0.02), bin(6144, 8.0, -0.02), bin(8192, 8.0, -0.02)];
        assert_eq!(solved(&bins), solved(&even));
    }

    #[test]
    fn a_bin_that_does_not_reach_it_stays_so() {
        let rows = solved(&[bin(4096, 0.3, 0.0), bin(6144, 10.0, 0.0)]);
        assert!(rows[0].s.is_none() && rows[1].s.is_some(), "{rows:?}");
    }
}
