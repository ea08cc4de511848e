//! Attention on the CPU as the backend calls it: threads over independent items, arithmetic in float32, kernels chosen at run time.
//!
//! Dense and skipping kernels are compiled apart; a sequence without a threshold always runs the dense one, whatever else is in the batch.

#[cfg(target_arch = "x86_64")]
mod amx;
mod decode;
mod kernels;
mod measure;
#[cfg(test)]
mod measure_tests;
mod notes;
mod prefill;
mod runs;
mod scratch;
mod tally;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod vector;
mod weigh;

pub use super::isa::Isa;
pub use measure::measure_on;

use super::pool::Pool;
use super::reference;
use crate::attention::{AttnCall, AttnGeometry, DEFAULT_VOTES, SkipCounters};
use crate::backend::KernelError;
use measure::Tallies;

/// Attention of prompt chunks: any `q_len`, votes per 128×128 tile and head.
pub fn prefill(call: &mut AttnCall<'_>, pool: &Pool) -> Result<(), KernelError> {
    prefill_on(best(), call, pool)
}

/// Attention of one query token a sequence: votes per run of 32 keys and KV head, against the true row maximum.
pub fn decode(call: &mut AttnCall<'_>, pool: &Pool) -> Result<(), KernelError> {
    decode_on(best(), call, pool)
}

/// Whether SIMD kernels are built for this geometry; others run on the scalar reference, slowly.
pub fn has_kernel(geometry: &AttnGeometry) -> bool {
    kernels::HEAD_DIMS.contains(&geometry.head_dim)
}

/// The instruction set in use, in words.
pub fn kernel_set() -> &'static str {
    best().name()
}

/// The best instruction set, looked up once.
fn best() -> Isa {
    static BEST: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
    *BEST.get_or_init(Isa::detect)
}

/// `prefill` with a given instruction set, which must be one of `Isa::available`.
pub fn prefill_on(isa: Isa, call: &mut AttnCall<'_>, pool: &Pool) -> Result<(), KernelError> {
    run_prefill(isa, call, pool, None)
}

/// ln λ, or any score, in the kernels' unit: nats · log₂e.
const fn bits(nats: f32) -> f32 {
    nats * std::f32::consts::LOG2_E
}

/// Prefill, with the votes of every sequence added to the tallies if there are some.
fn run_prefill(isa: Isa, call: &mut AttnCall<'_>, pool: &Pool, tallies: Option<&Tallies>) -> Result<(), KernelError> {
    call.check()?;
    let Some(kernels) = kernels::prefill(isa, call.geometry.head_dim) else {
        return reference::prefill(call, &DEFAULT_VOTES);
    };
    let shared = prefill::Prefill::new(call);
    let items = shared.plan(pool.workers());
    pool.run(items.len(), &|i, _| {
        let item = &items[i];
        // SAFETY: `isa` is available, the call was checked, and the pool hands out every item once.
        scratch::with(|s| unsafe {
            match tallies {
                _ if item.ln_lambda.is_some() => (kernels.skip)(&shared, item, s),
                None => (kernels.dense)(&shared, item, s),
                Some(_) => (),
            }
            if let Some(tallies) = tallies {
                tallies.run(&kernels, &shared, item, s);
            }
        });
    });
    let tallies: Vec<_> = (0..call.seqs.len()).map(|i| shared.tally(i)).collect();
    for (counters, (votes, skipped)) in call.counters.iter_mut().zip(tallies) {
        *counters += SkipCounters { votes, skipped, bytes_not_read: 0 };
    }
    Ok(())
}

/// `decode` with a given instruction set, which must be one of `Isa::available`.
pub fn decode_on(isa: Isa, call: &mut AttnCall<'_>, pool: &Pool) -> Result<(), KernelError> {
    call.check()?;
    if let Some(seq) = call.seqs.iter().find(|s| s.q_len != 1) {
        return Err(KernelError::Invalid(format!("attention: {} rows in a decode sequence", seq.q_len)));
    }
    let Some(kernels) = kernels::decode(isa, call.geometry.head_dim) else {
        return reference::decode(call, &DEFAULT_VOTES);
    };
    let (groups, items, sizes) = decode::plan(call);
    let skips = sizes.scores > 0;
    scratch::with_second(|buffers| {
        let buffers = buffers.parts([sizes.scores, sizes.run_max, sizes.partials]);
        let shared = decode::Decode::new(call, groups, items, buffers);
        pool.run(shared.items.len(), &|i, _| {
            // SAFETY: `isa` is available, the call was checked, and the pool hands out every item once.
            scratch::with(|s| unsafe { (kernels.scan)(&shared, shared.items[i], s) });
        });
        if skips {
            pool.run(shared.items.len(), &|i, _| {
                // SAFETY: as above, and the scan is over.
                scratch::with(|s| unsafe { (kernels.gather_survivors)(&shared, shared.items[i], s) });
            });
        }
        pool.run(shared.groups.len(), &|i, _| decode::merge(&shared, i));
        let bytes = 2 * call.geometry.head_dim as u64;
        for (i, counters) in call.counters.iter_mut().enumerate() {
            let [votes, skipped, keys] = shared.tally(i);
            *counters += SkipCounters { votes, skipped, bytes_not_read: keys * bytes };
        }
    });
    Ok(())
}
