//! Attention over shuffled pages and ragged sequences, against the scalar reference: votes exactly, outputs and log-sum-exp to rounding.
//! Prefill runs a long prompt too, for its time, and there a kernel of the device's own is held to the portable one.

use super::super::attend::Attend;
use super::super::attention::{own_name, types};
use super::rig::AGAIN;
use super::{Failure, Needs, agree, numbers, rounded};
use crate::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES, SkipCounters};
use crate::backend::KernelError;
use crate::cpu::reference;
use crate::pages::{KvFormat, KvView, PAGE, PageLayout};
use skip_tables::Phase;

const KV_HEADS: usize = 2;
/// What a block's score has on top of the noise: strong blocks this, faint ones as much less.
const OFFSET: f32 = 3.0;
/// The noise in keys, so that of scores.
const NOISE: f32 = 0.6;
/// Between the gaps of strong and of faint blocks, away from both by a quarter of a nat and more (tested).
const LN_LAMBDA: f32 = -2.7;

/// Rows of the long prompt: enough for every multiprocessor, with a last tile that is not full.
const LONG: usize = 4001;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// `own`: the device's own in place of the portable one.
    Prefill {
        skip: bool,
        own: bool,
    },
    Decode(Skips),
}

/// Which of decode's sequences skip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Skips {
    None,
    All,
    Some,
    /// All, as two launches.
    Gathered,
}

impl Form {
    pub(super) const ALL: [Self; 6] = [
        Form::Prefill { skip: false, own: false },
        Form::Prefill { skip: true, own: false },
        Form::Decode(Skips::None),
        Form::Decode(Skips::All),
        Form::Decode(Skips::Some),
        Form::Decode(Skips::Gathered),
    ];

    /// Those that a device of this compute capability may have of its own.
    pub(super) fn own(capability: (i32, i32), head_dim: usize) -> impl Iterator<Item = Self> {
        let has = capability == (9, 0) && [64, 128].contains(&head_dim);
        [false, true].into_iter().filter(move |_| has).map(|skip| Form::Prefill { skip, own: true })
    }

    pub(super) fn name(self, needs: &Needs) -> String {
        let types = types_of(needs);
        let d = needs.head_dim;
        match self {
            Form::Prefill { skip, own: true } => own_name(types, d, form_of(skip)),
            Form::Prefill { skip, own: false } => format!("attn_prefill_{types}_d{d}_{}_mma", form_of(skip)),
            Form::Decode(Skips::None) => format!("attn_decode_{types}_d{d}_dense"),
            Form::Decode(Skips::All) => format!("attn_decode_{types}_d{d}_skip"),
            Form::Decode(Skips::Some) => format!("attn_decode_{types}_d{d}_guarded"),
            Form::Decode(Skips::Gathered) => format!("attn_decode_{types}_d{d}_gather"),
        }
    }

    /// The kernel launched before it, if it is the second of two.
    pub(super) fn before(self, needs: &Needs) -> Option<String> {
        (self == Form::Decode(Skips::Gathered)).then(|| self.name(needs).replace("_gather", "_scan"))
    }

    fn phase(self) -> Phase {
        match self {
            Form::Prefill { .. } => Phase::Prefill,
            Form::Decode(_) => Phase::Decode,
        }
    }

    /// (query rows, keys before them, skips) of each sequence.
    fn sequences(self) -> Vec<(usize, usize, bool)> {
        match self {
            Form::Prefill { skip, .. } => vec![(330, 0, skip), (70, 256, skip), (1, 200, false)],
            Form::Decode(skips) => {
                let of = |place: usize| matches!(skips, Skips::All | Skips::Gathered) || (skips == Skips::Some && place != 1);
                [700, 333, 1000].into_iter().enumerate().map(|(i, keys)| (1, keys - 1, of(i))).collect()
            }
        }
    }
}

pub(super) fn types_of(needs: &Needs) -> &'static str {
    types(needs.cache.name(), needs.activations.name()).unwrap_or("unknown")
}

fn form_of(skip: bool) -> &'static str {
    if skip { "skip" } else { "dense" }
}

/// A call's data.
pub(super) struct Data {
    geometry: AttnGeometry,
    layout: PageLayout,
    q: Vec<f32>,
    k: Vec<u16>,
    v: Vec<u16>,
    tables: Vec<Vec<u32>>,
    sequences: Vec<(usize, usize, bool)>,
    phase: Phase,
    ln_lambda: f32,
}

/// What an implementation makes of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) out: Vec<f32>,
    pub(super) lse: Vec<f32>,
    kept: Vec<Vec<u8>>,
    counters: Vec<SkipCounters>,
}

impl Data {
    pub(super) fn new(needs: &Needs, form: Form) -> Self {
        Self::of(needs, form.phase(), form.sequences())
    }

    /// (Query rows, keys before them, skips) of each sequence.
    fn of(needs: &Needs, phase: Phase, sequences: Vec<(usize, usize, bool)>) -> Self {
        let (d, heads, cache) = (needs.head_dim, KV_HEADS * needs.group, needs.cache);
        let geometry = AttnGeometry { heads, kv_heads: KV_HEADS, head_dim: d, scale: 1.0 / (d as f32).sqrt(), window: None };
        let layout = PageLayout { kv_heads: KV_HEADS, head_dim: d, format: cache };
        let rows: usize = sequences.iter().map(|s| s.0).sum();
        let counts: Vec<usize> = sequences.iter().map(|s| (s.0 + s.1).div_ceil(PAGE)).collect();
        // One page more than is used; the used ones are handed out from the last to the first, in steps of three.
        let pages = counts.iter().sum::<usize>() + 1;
        let mut order: Vec<u32> = (0..3).flat_map(|r| (0..pages as u32).rev().filter(move |p| p % 3 == r)).collect();
        order.truncate(pages - 1);
        let mut order = order.into_iter();
        let tables: Vec<Vec<u32>> = counts.iter().map(|&n| order.by_ref().take(n).collect()).collect();

        let block = if phase == Phase::Prefill { DEFAULT_VOTES.keys } else { DEFAULT_VOTES.run };
        // What nobody may read is NaN; values behind the last key of a page are zero, as storing leaves them.
        let (mut k, mut v) = (vec![u16::MAX; pages * layout.page_len()], vec![u16::MAX; pages * layout.page_len()]);
        for (i, (&(len, start, _), table)) in sequences.iter().zip(&tables).enumerate() {
            let keys = start + len;
            for head in 0..KV_HEADS {
                let seed = 100 + 10 * i as u64 + head as u64;
                let (noise, values) = (numbers(keys * d, seed), numbers(keys * d, seed + 5));
                for key in 0..table.len() * PAGE {
                    let at = layout.offset(table[key / PAGE], head, key % PAGE);
                    if key >= keys {
                        v[at..at + d].fill(0);
                        continue;
                    }
                    let block = key / block;
                    let faint = (block + head) % 3 != 0 && block > 0;
                    for c in 0..d {
                        k[at + c] = cache.encode(NOISE * noise[key * d + c]);
                        v[at + c] = cache.encode(values[key * d + c]);
                    }
                    k[at] = cache.encode(if faint { -OFFSET } else { OFFSET });
                }
            }
        }
        // The first element of every query carries the offset through the scale.
        let mut q = rounded(rows * heads * d, 99, cache);
        q.iter_mut().step_by(d).for_each(|x| *x = cache.decode(cache.encode((d as f32).sqrt())));
        Self { geometry, layout, q, k, v, tables, sequences, phase, ln_lambda: LN_LAMBDA }
    }

    /// Sequences of the call.
    pub(super) fn seqs(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn run(
        &self,
        compute: impl FnOnce(Phase, &mut AttnCall<'_>) -> Result<f32, KernelError>,
    ) -> Result<(Answer, f32), KernelError> {
        let (g, mut seqs, mut row) = (self.geometry, Vec::new(), 0);
        for (&(len, start, skips), table) in self.sequences.iter().zip(&self.tables) {
            let ln_lambda = skips.then_some(self.ln_lambda);
            seqs.push(AttnSeq { row, q_len: len, q_start: start, kv_len: start + len, block_table: table, ln_lambda });
            row += len;
        }
        let width = g.heads * g.head_dim;
        let mut answer = Answer {
            out: vec![f32::NAN; row * width],
            lse: vec![f32::NAN; row * g.heads],
            kept: vec![Vec::new(); seqs.len()],
            counters: vec![SkipCounters::default(); seqs.len()],
        };
        let mut call = AttnCall {
            geometry: g,
            q: &self.q,
            q_stride: width,
            kv: KvView { layout: self.layout, k: &self.k, v: &self.v },
            seqs: &seqs,
            out: &mut answer.out,
            lse: Some(&mut answer.lse),
            kept: Some(&mut answer.kept),
            counters: &mut answer.counters,
        };
        let time = compute(self.phase, &mut call)?;
        Ok((answer, time))
    }

    fn reference(&self) -> Result<Answer, KernelError> {
        let compute = |phase, call: &mut AttnCall<'_>| match phase {
            Phase::Prefill => reference::prefill(call, &DEFAULT_VOTES).map(|()| 0.0),
            Phase::Decode => reference::decode(call, &DEFAULT_VOTES).map(|()| 0.0),
        };
        Ok(self.run(compute)?.0)
    }
}

/// Products of weights and values are rounded in the cache's type, outputs in the activations'.
fn tolerance(needs: &Needs) -> f64 {
    if needs.cache == KvFormat::Bf16 || needs.rounding() == KvFormat::Bf16 { 8e-3 } else { 4e-3 }
}

/// Tries one kernel; its time is that of the long prompt in prefill, of the small case in decode.
pub(super) fn run(on: &mut Attend, needs: &Needs, form: Form) -> Result<f32, Failure> {
    on.gather = form == Form::Decode(Skips::Gathered);
    on.attention.portable = !matches!(form, Form::Prefill { own: true, .. });
    let data = Data::new(needs, form);
    let (found, time) = data.run(|phase, call| on.run_as(phase, call, needs.rounding(), AGAIN))?;
    same(needs, &data, &found, &data.reference()?)?;
    match form {
        Form::Prefill { skip, own } => long(on, needs, skip, own),
        Form::Decode(_) => Ok(time),
    }
}

/// The long prompt, where plain arithmetic would take too long: the portable kernel, tried before, is what the other one is held to.
fn long(on: &mut Attend, needs: &Needs, skip: bool, own: bool) -> Result<f32, Failure> {
    let data = Data::of(needs, Phase::Prefill, vec![(LONG, PAGE, skip)]);
    let (found, time) = data.run(|phase, call| on.run_as(phase, call, needs.rounding(), AGAIN))?;
    if own {
        on.attention.portable = true;
        let (want, _) = data.run(|phase, call| on.run_as(phase, call, needs.rounding(), 0))?;
        same(needs, &data, &found, &want)?;
    } else if let Some(i) = found.out.iter().position(|x| !x.is_finite()) {
        return Err(Failure::Differs(format!("a prompt of {LONG} tokens: output {i} is {}", found.out[i])));
    }
    Ok(time)
}

fn same(needs: &Needs, data: &Data, found: &Answer, want: &Answer) -> Result<(), Failure> {
    for (i, &(_, _, skips)) in data.sequences.iter().enumerate() {
        // Dense sequences take no votes, and nobody asks which.
        if skips && found.kept[i] != want.kept[i] {
            let differ = found.kept[i].iter().zip(&want.kept[i]).filter(|(a, b)| a != b).count();
            return Err(Failure::Differs(format!("sequence {i}: {differ} of {} votes", want.kept[i].len())));
        }
        let (a, b) = (found.counters[i], want.counters[i]);
        if (a.votes, a.skipped) != (b.votes, b.skipped) {
            let counted = format!("{} of {} skipped for {} of {}", a.skipped, a.votes, b.skipped, b.votes);
            return Err(Failure::Differs(format!("sequence {i} counts {counted}")));
        }
    }
    let wide = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<f64>>();
    agree("outputs", &found.out, &wide(&want.out), tolerance(needs))?;
    agree("log-sum-exp", &found.lse, &wide(&want.lse), 2e-3)
}

#[cfg(test)]
mod tests {
    use super::super::tests::QWEN;
    use super::*;
    use crate::cpu::pool::Pool;

    #[test]
    fn votes_are_far_from_their_threshold_and_some_are_lost() {
        for head_dim in [64, 128, 256] {
            for group in [1, 4, 7] {
                for form in [Form::Prefill { skip: true, own: false }, Form::Decode(Skips::All)] {
                    let needs = Needs { head_dim, group, ..QWEN };
                    let at = |moved: f32| {
                        let mut data = Data::new(&needs, form);
                        // Two sequences show it as well as three.
                        data.sequences.truncate(2);
                        data.ln_lambda += moved;
                        data.reference().unwrap()
                    };
                    let (low, high) = (at(-0.25), at(0.25));
                    assert_eq!(low.kept, high.kept, "{head_dim} {group} {form:?}");
                    let share: Vec<(u64, u64)> = low.counters.iter().map(|c| (c.skipped, c.votes)).collect();
                    assert!(share.iter().all(|&(skipped, votes)| 0 < skipped && skipped < votes), "{head_dim} {group} {form:?}: {share:?}");
                    assert!(low.out.iter().take(1000).all(|x| x.is_finite()), "nothing is read that is no number");
                }
            }
        }
    }
    #[test]
    fn votes_of_the_long_prompt_are_far_from_their_threshold_too() {
        let needs = Needs { head_dim: 64, group: 1, ..QWEN };
        let at = |moved: f32| {
            let mut data = Data::of(&needs, Phase::Prefill, vec![(LONG, PAGE, true)]);
            data.ln_lambda += moved;
            let votes = |phase, call: &mut AttnCall<'_>| {
                // Prompts of this length take the scalar reference minutes.
                assert_eq!(phase, Phase::Prefill);
                crate::cpu::attention::prefill(call, &Pool::new(2)).map(|()| 0.0)
            };
            data.run(votes).unwrap().0
        };
        let (low, high) = (at(-0.25), at(0.25));
        assert_eq!(low.kept, high.kept);
        assert!(0 < low.counters[0].skipped && low.counters[0].skipped < low.counters[0].votes, "{:?}", low.counters);
    }
}
