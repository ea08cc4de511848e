//! The host sampler: from a row of logits to a token. It is the reference for one on a device.
//!
//! Order of the filters: edits of the logits, temperature, top-k, top-p (of what top-k left), min-p, then one draw that depends on
//! (seed, position) alone.

use std::cmp::Ordering;

use crate::sampling::{NO_TOKEN, Sampled, SamplingParams};

/// How many candidates top-p looks at first; it grows until they hold enough probability.
const FIRST_CANDIDATES: usize = 512;

/// Draws the token at absolute position `position` from `logits`. NaN counts as −∞ and +∞ as the largest finite number; ties go to the
/// lowest id; where every logit is −∞ there is no token.
pub fn sample(logits: &[f32], params: &SamplingParams, position: usize) -> Sampled {
    let edited = params.edits.as_ref().map(|edits| edits.applied(logits));
    let logits = edited.as_deref().unwrap_or(logits);
    let token = if params.temperature > 0.0 { draw(logits, params, position) } else { argmax(logits) };
    if value(logits, token) == f32::NEG_INFINITY {
        return Sampled { token: NO_TOKEN, ..Sampled::default() };
    }
    let Some(n) = params.logprobs else {
        return Sampled { token, ..Sampled::default() };
    };
    let lse = log_sum_exp(logits);
    let logprob = |id: u32| if lse == f64::NEG_INFINITY { f32::NEG_INFINITY } else { (f64::from(value(logits, id)) - lse) as f32 };
    let top = best(logits, usize::from(n));
    Sampled { token, logprob: Some(logprob(token)), top: top.into_iter().map(|id| (id, logprob(id))).collect() }
}

/// A uniform number in [0, 1) of (seed, position): SplitMix64's finaliser over a Weyl sequence started at a hash of the seed.
pub fn uniform(seed: u64, position: u64) -> f64 {
    const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let start = mix(seed.wrapping_add(WEYL));
    let bits = mix(start.wrapping_add(WEYL.wrapping_mul(position.wrapping_add(1))));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The logit as the sampler sees it: never NaN, never +∞.
fn clean(x: f32) -> f32 {
    if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) }
}

fn value(logits: &[f32], id: u32) -> f32 {
    logits.get(id as usize).map_or(f32::NEG_INFINITY, |&x| clean(x))
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &x) in logits.iter().enumerate() {
        let x = clean(x);
        if x > best.1 {
            best = (id as u32, x);
        }
    }
    best.0
}

/// Most likely first, then lowest id.
fn order(logits: &[f32]) -> impl Fn(&u32, &u32) -> Ordering {
    |&a, &b| value(logits, b).total_cmp(&value(logits, a)).then(a.cmp(&b))
}

/// The `n` most likely tokens, in order.
fn best(logits: &[f32], n: usize) -> Vec<u32> {
    if n == 0 {
        return Vec::new();
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if n < ids.len() {
        ids.select_nth_unstable_by(n, order(logits));
        ids.truncate(n);
    }
    ids.sort_unstable_by(order(logits));
    ids
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(value(logits, argmax(logits)));
    if max == f64::NEG_INFINITY {
        return max;
    }
    let sum: f64 = logits.iter().map(|&x| f64::from((f64::from(clean(x)) - max) as f32).exp()).sum();
    max + sum.ln()
}

fn draw(logits: &[f32], params: &SamplingParams, position: usize) -> u32 {
    let first = argmax(logits);
    let max = f64::from(value(logits, first));
    if max == f64::NEG_INFINITY {
        return first;
    }
    let temperature = f64::from(params.temperature);
    // Relative to the most likely token, which weighs 1.
    let weight = |id: u32| ((f64::from(value(logits, id)) - max) / temperature).exp();
    let top_k = if params.top_k == 0 { logits.len() } else { (params.top_k as usize).min(logits.len()) };
    let top_p = f64::from(params.top_p);

    let mut kept = if top_p < 1.0 {
        nucleus(logits, top_k, top_p, &weight)
    } else if top_k < logits.len() {
        best(logits, top_k)
    } else {
        (0..logits.len() as u32).collect()
    };
    if params.min_p > 0.0 {
        let floor = f64::from(params.min_p).min(1.0);
        kept.retain(|&id| weight(id) >= floor);
    }

    let total: f64 = kept.iter().map(|&id| weight(id)).sum();
    let mut left = uniform(params.seed, position as u64) * total;
    let mut last = first;
    for id in kept {
        let w = weight(id);
        if w > 0.0 {
            last = id;
            left -= w;
            if left < 0.0 {
                break;
            }
        }
    }
    last
}

/// The smallest set of the `top_k` most likely tokens whose share of those reaches `top_p`; never empty. Most likely first.
fn nucleus(logits: &[f32], top_k: usize, top_p: f64, weight: &dyn Fn(u32) -> f64) -> Vec<u32> {
    // With top-k its tokens are the whole; without, everything is, which need not be sorted to be summed.
    let whole = (top_k == logits.len()).then(|| (0..logits.len() as u32).map(weight).sum::<f64>());
    let mut candidates = if whole.is_some() { FIRST_CANDIDATES.min(top_k) } else { top_k };
    loop {
        let mut ids = best(logits, candidates);
        let goal = top_p * whole.unwrap_or_else(|| ids.iter().map(|&id| weight(id)).sum());
        let mut sum = 0.0;
        for (i, &id) in ids.iter().enumerate() {
            sum += weight(id);
            if sum >= goal {
                ids.truncate(i + 1);
                return ids;
            }
        }
        if candidates == top_k {
            return ids;
        }
        candidates = (candidates * 8).min(top_k);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::LogitEdits;
    use std::sync::Arc;

    fn params(temperature: f32) -> SamplingParams {
        SamplingParams { temperature, ..SamplingParams::default() }
    }

    /// Share of each token over many positions.
    fn shares(logits: &[f32], p: &SamplingParams) -> Vec<f64> {
        let n = 20_000;
        let mut counts = vec![0.0; logits.len()];
        for position in 0..n {
            counts[sample(logits, p, position).token as usize] += 1.0 / n as f64;
        }
        counts
    }

    #[test]
    fn greedy_ties_go_to_the_lowest_id() {
        assert_eq!(sample(&[1.0, 3.0, 3.0, 2.0], &params(0.0), 0).token, 1);
    }

    #[test]
    fn nan_and_infinities_never_panic_and_never_win_wrongly() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for t in [0.0, 1.0, 1e-30, f32::MAX] {
            for p in [
                params(t),
                SamplingParams { top_k: 2, ..params(t) },
                SamplingParams { top_p: 0.5, ..params(t) },
                SamplingParams { min_p: 0.5, ..params(t) },
            ] {
                let p = SamplingParams { logprobs: Some(3), ..p };
                assert_eq!(sample(&[nan, -inf, 2.0, nan], &p, 1).token, 2, "{p:?}");
                assert_eq!(sample(&[nan, nan], &p, 1).token, NO_TOKEN);
                assert_eq!(sample(&[-inf, -inf], &p, 1).token, NO_TOKEN);
                assert_eq!(sample(&[0.0, inf, 5.0], &p, 1).token, 1, "{p:?}");
                assert_eq!(sample(&[], &p, 1).token, NO_TOKEN);
            }
        }
        assert_eq!(sample(&[1.0, 2.0], &params(f32::NAN), 0).token, 1);
    }

    #[test]
    fn draws_follow_the_distribution_and_depend_on_seed_and_position_alone() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        let p = SamplingParams { seed: 7, ..params(1.0) };
        for (share, want) in shares(&logits, &p).iter().zip([0.5, 0.3, 0.2]) {
            assert!((share - want).abs() < 0.015, "{share} against {want}");
        }
        let a: Vec<u32> = (0..100).map(|i| sample(&logits, &p, i).token).collect();
        let b: Vec<u32> = (0..100).rev().map(|i| sample(&logits, &p, i).token).collect();
        assert!(a.iter().eq(b.iter().rev()));
        let other = SamplingParams { seed: 8, ..p };
        assert!((0..100).any(|i| sample(&logits, &other, i).token != a[i]));
    }

    #[test]
    fn temperature_sharpens() {
        let logits = [2.0f32, 1.0, 0.0];
        let z: f64 = [0.0f64, -2.0, -4.0].iter().map(|x| x.exp()).sum();
        assert!((shares(&logits, &params(0.5))[0] - 1.0 / z).abs() < 0.015);
    }

    #[test]
    fn each_filter_cuts_what_it_should() {
        let logits: Vec<f32> = [0.1f32, 0.5, 0.25, 0.15].iter().map(|p| p.ln()).collect();
        let cut = |p: SamplingParams| shares(&logits, &p).iter().map(|&s| s > 0.0).collect::<Vec<_>>();
        assert_eq!(cut(params(1.0)), [true; 4]);
        assert_eq!(cut(SamplingParams { top_k: 2, ..params(1.0) }), [false, true, true, false]);
        assert_eq!(cut(SamplingParams { top_p: 0.7, ..params(1.0) }), [false, true, true, false]);
        assert_eq!(cut(SamplingParams { top_p: 0.8, ..params(1.0) }), [false, true, true, true]);
        assert_eq!(cut(SamplingParams { min_p: 0.25, ..params(1.0) }), [false, true, true, true]);
        // Of the two that top-k leaves the first holds 2/3.
        assert_eq!(cut(SamplingParams { top_k: 2, top_p: 0.66, ..params(1.0) }), [false, true, false, false]);
        assert_eq!(cut(SamplingParams { top_p: 0.0, ..params(1.0) }), [false, true, false, false]);
    }

    #[test]
    fn a_flat_distribution_needs_more_candidates_than_the_first() {
        let logits = vec![0.0f32; 4 * FIRST_CANDIDATES];
        let p = SamplingParams { top_p: 0.5, ..params(1.0) };
        let highest = (0..4000).map(|i| sample(&logits, &p, i).token).max().unwrap() as usize;
        assert!((FIRST_CANDIDATES..2 * FIRST_CANDIDATES).contains(&highest), "{highest}");
    }

    #[test]
    fn edits_come_before_everything_and_log_probabilities_are_of_what_they_leave() {
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
        let edits = |allowed: Option<Vec<u32>>, added: &[(u32, f32)]| {
            let edits = LogitEdits { allowed, added: added.to_vec() };
            SamplingParams { logprobs: Some(1), edits: Some(Arc::new(edits)), ..params(0.0) }
        };
        let drawn = sample(&logits, &edits(Some(vec![0b0110]), &[]), 0);
        assert_eq!((drawn.token, drawn.top[0].0), (1, 1));
        assert!((drawn.logprob.unwrap() - 0.6f32.ln()).abs() < 1e-5, "{drawn:?}");
        assert_eq!(sample(&logits, &edits(None, &[(3, 2.0)]), 0).token, 3);
        // A mask holds whatever is added, and ends where its words do.
        assert_eq!(sample(&logits, &edits(Some(vec![0b0110]), &[(3, 100.0), (2, 1.0), (9, 1.0)]), 0).token, 2);
        assert_eq!(sample(&[0.0; 40], &edits(Some(vec![0]), &[(35, 5.0)]), 0).token, NO_TOKEN);
        let drawn = SamplingParams { temperature: 1.0, ..edits(Some(vec![0b1010]), &[]) };
        let shares = shares(&logits, &drawn);
        assert!(shares[0] == 0.0 && shares[2] == 0.0 && (shares[1] - 0.75).abs() < 0.015, "{shares:?}");
    }

    #[test]
    fn logprobs_are_of_the_whole_distribution_at_temperature_one() {
        let logits: Vec<f32> = [0.1f32, 0.5, 0.25, 0.15].iter().map(|p| p.ln() + 3.0).collect();
        let p = SamplingParams { top_k: 1, logprobs: Some(2), ..params(0.3) };
        let s = sample(&logits, &p, 0);
        assert_eq!(s.token, 1);
        assert!((s.logprob.unwrap() - 0.5f32.ln()).abs() < 1e-5);
        assert_eq!(s.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
        assert!((s.top[1].1 - 0.25f32.ln()).abs() < 1e-5);
    }
}
