//! Measuring attention: the outputs, bits and counters of the call as it is, and beside them every vote by its gap.
//!
//! Prefill notes what the dense kernel passes anyway; decode scores its keys once more. Gaps come of the deployed kernels' own scores.

use super::notes::Notes;
use super::prefill::{Item, Prefill};
use super::scratch::{self, Scratch};
use super::tally::{Tally, Vote};
use super::{Isa, decode, decode_on, has_kernel, kernels, prefill_on, run_prefill};
use crate::attention::{AttnCall, AttnSeq, DEFAULT_VOTES};
use crate::backend::KernelError;
use crate::cpu::{measure as plain, pool::Pool};
use crate::gaps::{Gaps, votes};
use skip_tables::Phase;
use std::sync::{Mutex, PoisonError};

/// Attention of the call on an instruction set, which must be one of `Isa::available`, and histograms of every sequence's votes; windowed layers
/// give empty ones.
///
/// # Errors
/// Shapes that do not fit.
pub fn measure_on(isa: Isa, phase: Phase, call: &mut AttnCall<'_>, pool: &Pool) -> Result<Vec<Gaps>, KernelError> {
    let here = votes(&call.geometry) && has_kernel(&call.geometry);
    match phase {
        Phase::Prefill if here => {
            let tallies = Tallies::new(call);
            run_prefill(isa, call, pool, Some(&tallies))?;
            Ok(tallies.histograms())
        }
        Phase::Decode if here => {
            decode_on(isa, call, pool)?;
            Ok(weigh_decode(isa, call, pool))
        }
        Phase::Prefill => {
            prefill_on(isa, call, pool)?;
            plain::measure(phase, call, &DEFAULT_VOTES)
        }
        Phase::Decode => {
            decode_on(isa, call, pool)?;
            plain::measure(phase, call, &DEFAULT_VOTES)
        }
    }
}

/// Both histograms of each sequence.
pub(super) struct Tallies(Vec<Mutex<[Tally; 2]>>);

impl Tallies {
    fn new(call: &AttnCall<'_>) -> Self {
        Self(call.seqs.iter().map(|_| Mutex::default()).collect())
    }

    fn add(&self, seq: usize, votes: [&[Vote]; 2]) {
        let mut tallies = self.0[seq].lock().unwrap_or_else(PoisonError::into_inner);
        tallies.iter_mut().zip(votes).filter(|(_, votes)| !votes.is_empty()).for_each(|(tally, votes)| tally.add(votes));
    }

    fn histograms(self) -> Vec<Gaps> {
        let gaps = |tallies: Mutex<[Tally; 2]>| tallies.into_inner().unwrap_or_else(PoisonError::into_inner).map(|t| t.histogram());
        self.0.into_iter().map(gaps).collect()
    }

    /// Runs an item of prefill densely, which writes its output unless another kernel does, and adds its votes.
    ///
    /// # Safety
    /// `isa` of the kernels is available, the call was checked, and the item is run once.
    pub(super) unsafe fn run(&self, kernels: &kernels::PrefillKernels, call: &Prefill<'_>, item: &Item, scratch: &mut Scratch) {
        scratch::with_second(|second| {
            let mut notes = Notes::new(item, second);
            // SAFETY: the caller's contract.
            unsafe { (kernels.measure)(call, item, scratch, &mut notes) };
            self.add(item.seq, [&notes.votes, &[]]);
        });
    }
}

/// Scores the keys of a call that was computed, as if every sequence skipped, and weighs them.
fn weigh_decode(isa: Isa, call: &mut AttnCall<'_>, pool: &Pool) -> Vec<Gaps> {
    let tallies = Tallies::new(call);
    let Some(kernels) = kernels::decode(isa, call.geometry.head_dim) else { return tallies.histograms() };
    let seqs: Vec<AttnSeq<'_>> = call.seqs.iter().map(|seq| AttnSeq { ln_lambda: Some(0.0), ..*seq }).collect();
    let mut call = AttnCall {
        geometry: call.geometry,
        q: call.q,
        q_stride: call.q_stride,
        kv: call.kv,
        seqs: &seqs,
        out: &mut *call.out,
        lse: None,
        kept: None,
        counters: &mut *call.counters,
    };
    let (groups, items, sizes) = decode::plan(&call);
    scratch::with_second(|buffers| {
        let buffers = buffers.parts([sizes.scores, sizes.run_max, sizes.partials]);
        let shared = decode::Decode::new(&mut call, groups, items, buffers);
        pool.run(shared.items.len(), &|i, _| {
            // SAFETY: `isa` is available, the call was checked, and the pool hands out every item once.
            scratch::with(|s| unsafe { (kernels.scan)(&shared, shared.items[i], s) });
        });
        pool.run(shared.items.len(), &|i, _| {
            let mut votes = [const { Vec::new() }; 2];
            // SAFETY: as above, and the scan is over.
            unsafe { (kernels.weigh)(&shared, shared.items[i], &mut votes) };
            tallies.add(shared.groups[shared.items[i].group].seq, votes.each_ref().map(Vec::as_slice));
        });
    });
    tallies.histograms()
}
