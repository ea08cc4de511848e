//! Which key blocks a query group reads, chosen by attention mass: a fixed budget, or an omitted-mass budget a head.

/// Sorted indices of exactly `min(budget, blocks)` blocks.
///
/// `mass` is `[heads of the group][blocks]`. A block ranks by its largest mass over the heads (what is not a number counts as 0); the
/// last block, the current one, is always in. The threshold comes from 16 bisection steps on [0, 2]; slots that remain are filled from the
/// boundary band, then from below it, in ascending index: no sort, so a device does the same.
pub fn select_blocks(mass: &[f64], blocks: usize, budget: usize) -> Vec<usize> {
    let Some(last) = blocks.checked_sub(1) else { return Vec::new() };
    let mut rank = vec![f64::MIN; blocks];
    for head in mass.chunks_exact(blocks) {
        for (rank, &m) in rank.iter_mut().zip(head) {
            *rank = rank.max(if m.is_nan() { 0.0 } else { m.clamp(f64::MIN, f64::MAX) });
        }
    }
    rank[last] = 2.0;
    let n = budget.min(blocks);
    let (mut low, mut high) = (0.0, 2.0);
    for _ in 0..16 {
        let middle = (low + high) / 2.0;
        if rank.iter().filter(|&&r| r > middle).count() > n {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut chosen: Vec<bool> = rank.iter().map(|&r| r > high).collect();
    chosen[last] |= n > 0;
    let mut free = n.saturating_sub(chosen.iter().filter(|&&c| c).count());
    for in_band in [true, false] {
        for b in 0..blocks {
            let here = rank[b] <= high && (rank[b] > low) == in_band;
            if free > 0 && here && !chosen[b] {
                chosen[b] = true;
                free -= 1;
            }
        }
    }
    indices(&chosen)
}

/// Sorted indices of the union over heads of every block with mass ≥ max(θ_τ, θ_c), and the current (last) block.
///
/// θ_τ is the largest block mass such that all blocks below it together hold at most `tau[head]`; θ_c the `cap[head]`-th largest
/// block mass (`cap` ≥ 1). `mass` is `[heads of the group][blocks]`, finite.
pub fn select_tail(mass: &[f64], blocks: usize, tau: &[f64], cap: &[usize]) -> Vec<usize> {
    let Some(last) = blocks.checked_sub(1) else { return Vec::new() };
    let mut chosen = vec![false; blocks];
    chosen[last] = true;
    for ((head, &tau), &cap) in mass.chunks_exact(blocks).zip(tau).zip(cap) {
        let mut sorted = head.to_vec();
        sorted.sort_by(f64::total_cmp);
        let mut below = 0.0;
        let mut theta = sorted[0];
        for &m in &sorted {
            if below <= tau {
                theta = m;
            }
            below += m;
        }
        let theta = theta.max(sorted[blocks.saturating_sub(cap).min(last)]);
        for (chosen, &m) in chosen.iter_mut().zip(head) {
            *chosen |= m >= theta;
        }
    }
    indices(&chosen)
}

fn indices(chosen: &[bool]) -> Vec<usize> {
    (0..chosen.len()).filter(|&b| chosen[b]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_current_block_is_in_and_ties_fill_in_ascending_order() {
        let mass = [0.1, 0.3, 0.1, 0.1, 0.1, 0.0];
        assert_eq!(select_blocks(&mass, 6, 3), [0, 1, 5]);
        assert_eq!(select_blocks(&mass, 6, 1), [5]);
        assert_eq!(select_blocks(&mass, 6, 99), [0, 1, 2, 3, 4, 5]);
        assert_eq!(select_blocks(&[f64::NAN, 0.2, 0.1], 3, 2), [1, 2]);
        assert_eq!(select_blocks(&[], 0, 2), [0usize; 0]);
    }

    #[test]
    fn a_tail_budget_drops_blocks_that_together_stay_below_it() {
        let mass = [0.05, 0.5, 0.04, 0.4, 0.01];
        assert_eq!(select_tail(&mass, 5, &[0.1], &[5]), [1, 3, 4]);
        assert_eq!(select_tail(&mass, 5, &[0.06], &[5]), [0, 1, 3, 4]);
        assert_eq!(select_tail(&mass, 5, &[0.0], &[1]), [1, 4], "the cap binds");
    }

    proptest! {
        #[test]
        fn exactly_the_budget_and_no_better_block_left_out(
            mass in prop::collection::vec(0.0f64..1.0, 1..200), budget in 0usize..220,
        ) {
            let blocks = mass.len();
            let chosen = select_blocks(&mass, blocks, budget);
            prop_assert_eq!(chosen.len(), budget.min(blocks));
            prop_assert!(chosen.windows(2).all(|w| w[0] < w[1]));
            let worst = chosen.iter().filter(|&&b| b + 1 < blocks).map(|&b| mass[b]).fold(1.0, f64::min);
            // one bisection cell is 2 / 2¹⁶ wide: inside it the order is by index
            let left_out = (0..blocks).filter(|b| !chosen.contains(b)).map(|b| mass[b]).fold(0.0, f64::max);
            prop_assert!(chosen.len() <= 1 || left_out <= worst + 2.0 / 65536.0);
        }
    }
}
