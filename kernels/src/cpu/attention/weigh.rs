//! Decode's measuring: what each run of 32 keys, and each page of 128, weighs in the scores that the scan of a skipping group left.

use super::decode::{Decode, Item, RUN, SPAN};
use super::runs::{exponentials, maximum};
use super::tally::Vote;
use crate::cpu::lanes::Lanes;
use crate::pages::PAGE;

/// Adds the votes of a span: of runs against the true row maxima, and of pages against the maxima of the keys before them.
/// The scores are used up.
///
/// # Safety
/// The features of `L`, NL = `L::N`; every item of the group was scanned, and each is weighed once.
#[inline(always)]
pub(super) unsafe fn weigh<L: Lanes, const NL: usize>(call: &Decode<'_>, item: Item, votes: &mut [Vec<Vote>; 2]) {
    let group = &call.groups[item.group];
    let (heads, spans, keys) = (call.geometry.group(), group.spans(), call.keys_of(group, item.span));
    let runs = spans.len() * (SPAN / RUN);
    // SAFETY: the scan is over.
    let (run_max, span_max) = unsafe { call.maxima(group) };
    let of_head = |h: usize| &span_max[h * spans.len()..(h + 1) * spans.len()];
    let row_max: Vec<f32> = (0..heads).map(|h| maximum(of_head(h))).collect();
    let mut before: Vec<f32> = (0..heads).map(|h| maximum(&of_head(h)[..item.span - spans.start])).collect();
    let column = |run: usize| run - spans.start * (SPAN / RUN);
    for page in keys.start / PAGE..keys.end.div_ceil(PAGE) {
        let runs_here = page * (PAGE / RUN)..((page + 1) * (PAGE / RUN)).min(keys.end.div_ceil(RUN));
        let mut whole = Vote::NONE;
        for run in runs_here.clone() {
            let mut vote = Vote::NONE;
            for (h, &top) in row_max.iter().enumerate() {
                let at = group.scores + h * runs * RUN + column(run) * RUN;
                // SAFETY: a whole run of this span's scores; RUN is a multiple of the lanes.
                let sum = unsafe { exponentials::<L, NL>(call.scores.part(at..at + RUN), top) };
                vote.gap = vote.gap.max(run_max[h * runs + column(run)] - top);
                vote.mass += f64::from(sum);
            }
            whole.mass += vote.mass;
            votes[0].push(vote);
        }
        for (h, before) in before.iter_mut().enumerate() {
            let top = maximum(&run_max[h * runs + column(runs_here.start)..h * runs + column(runs_here.end)]);
            whole.gap = whole.gap.max(top - *before);
            *before = before.max(top);
        }
        votes[1].push(whole);
    }
}
