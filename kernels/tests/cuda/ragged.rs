//! One attention call at a time: every vote, output and log-sum-exp of random batches, on the device and on the CPU.

use crate::fixture::{Answer, Random, Sequence, Who, sequence, with_call};
use crate::{gaps, setting, threads};
use skip_kernels::attention::{AttnCall, AttnGeometry};
use skip_kernels::cpu::attention::{Isa, decode_on, prefill_on};
use skip_kernels::cpu::pool::Pool;
use skip_kernels::cuda::{Activations, Attend, CudaOptions};
use skip_kernels::{KernelError, KvFormat, PAGE, Phase};

/// How far a score may be off, in nats: a vote may go either way where its gap is that near to ln λ.
const ROUNDING: f64 = 2e-3;
/// Largest log-sum-exp error.
const LSE: f32 = 2e-3;

/// Relative L2 error of an output with weights rounded to the cache's format.
fn output_bound(format: KvFormat) -> f64 {
    if format == KvFormat::Bf16 { 8e-3 } else { 4e-3 }
}

/// A batch of one phase, and what it is over.
struct Batch {
    phase: Phase,
    geometry: AttnGeometry,
    format: KvFormat,
    seqs: Vec<Sequence>,
    seed: u64,
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    batches: usize,
    sequences: usize,
    votes: usize,
    skipped: usize,
    /// Votes that went the other way, all of them within rounding of ln λ.
    turned: usize,
    nearest: f64,
    out: f64,
    lse: f32,
    /// Batches that the device has no kernel for.
    no_kernel: usize,
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())]
}

/// `keys` bounds the batch's cached keys.
fn batch(seed: u64, keys: usize) -> Batch {
    let mut random = Random::new(seed);
    let phase = if random.below(2) == 0 { Phase::Prefill } else { Phase::Decode };
    let d = pick(&mut random, &[64, 128, 256]);
    let (group, kv_heads) = (1 + random.below(8), 1 + random.below(if d == 256 { 2 } else { 3 }));
    let window = (random.below(4) == 0).then(|| 1 + random.below(1000));
    let geometry =
        AttnGeometry { heads: group * kv_heads, kv_heads, head_dim: d, scale: random.between(0.7, 1.2) / (d as f32).sqrt(), window };
    let format = pick(&mut random, &[KvFormat::Fp16, KvFormat::Bf16]);
    let count = if phase == Phase::Decode { pick(&mut random, &[1, 2, 7, 16, 33, 64]) } else { pick(&mut random, &[1, 2, 3, 6, 9]) };
    let seqs = (0..count).map(|i| {
        let ln_lambda = (random.below(3) > 0).then(|| -random.between(0.3, 7.0));
        let most = if random.below(4) == 0 { keys / 4 } else { 2 * keys / count };
        let kv_len = 1 + random.below(most);
        let start = match phase {
            Phase::Decode => kv_len - 1,
            // Chunks begin at whole pages; a whole prompt at 0.
            Phase::Prefill => random.below(kv_len) / PAGE * PAGE * random.below(2),
        };
        exact(sequence(&geometry, kv_len - start, kv_len, ln_lambda, seed * 1000 + i as u64), format)
    });
    let seqs = seqs.collect();
    Batch { phase, geometry, format, seqs, seed }
}

/// The same with elements that the cache's format holds, so that both sides compute from the same numbers.
fn exact(mut s: Sequence, format: KvFormat) -> Sequence {
    for x in s.q.iter_mut().chain(&mut s.k).chain(&mut s.v) {
        *x = format.decode(format.encode(*x));
    }
    s
}

impl Batch {
    fn compute(&self, run: impl FnOnce(&mut AttnCall<'_>) -> Result<(), KernelError>) -> Vec<Answer> {
        with_call(&self.geometry, self.format, &self.seqs, self.seed, run).unwrap_or_else(|e| panic!("batch {}: {e}", self.seed))
    }

    fn on_cpu(&self, isa: Isa, pool: &Pool) -> Vec<Answer> {
        self.compute(|call| if self.phase == Phase::Decode { decode_on(isa, call, pool) } else { prefill_on(isa, call, pool) })
    }

    fn describe(&self) -> String {
        let g = &self.geometry;
        let what = format!("{}/{} heads of {}, {}", g.heads, g.kv_heads, g.head_dim, self.format.name());
        format!("batch {}: {:?} of {} sequences, {what}, window {:?}", self.seed, self.phase, self.seqs.len(), g.window)
    }

    /// Adds the comparison to `tally`; what is wrong in words.
    fn compare(&self, device: &[Answer], cpu: &[Answer], tally: &mut Tally) -> Vec<String> {
        let mut wrong = Vec::new();
        for (i, ((s, a), b)) in self.seqs.iter().zip(device).zip(cpu).enumerate() {
            tally.sequences += 1;
            let mut turned = 0;
            if s.ln_lambda.is_some() && self.geometry.window.is_none() {
                tally.votes += b.votes();
                tally.skipped += b.skipped();
                let other = (0..b.kept.len()).filter(|&at| a.kept.get(at) != Some(&b.kept[at]));
                for at in other {
                    let gap = if self.phase == Phase::Decode {
                        gaps::of_run(&self.geometry, s, at)
                    } else {
                        gaps::of_tile(&self.geometry, s, at)
                    };
                    let off = (gap - f64::from(s.ln_lambda.unwrap_or_default())).abs();
                    turned += 1;
                    tally.nearest = tally.nearest.max(off);
                    if off > ROUNDING || a.kept.len() != b.kept.len() {
                        wrong.push(format!(
                            "sequence {i}: vote {at} is {:?}, not {}; its gap is {off:e} nats off",
                            a.kept.get(at),
                            b.kept[at]
                        ));
                    }
                }
                if turned == 0 && a.counters.votes != b.counters.votes || a.counters.skipped != a.skipped() as u64 {
                    wrong.push(format!("sequence {i} counts {:?}, not {:?}", a.counters, b.counters));
                }
            } else if a.counters.votes != 0 {
                wrong.push(format!("sequence {i} is dense and votes: {:?}", a.counters));
            }
            tally.turned += turned;
            // Where a vote turned, what lies in its tile is in one of the outputs alone.
            if turned == 0 {
                let out = relative(&a.out, &b.out);
                let lse = a.lse.iter().zip(&b.lse).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() }).fold(0.0, f32::max);
                if !(out <= output_bound(self.format) && lse <= LSE) {
                    wrong.push(format!("sequence {i} of {} rows, {} keys: output error {out:e}, log-sum-exp {lse:e}", s.q_len, s.kv_len));
                }
                (tally.out, tally.lse) = (tally.out.max(out), tally.lse.max(lse));
            }
        }
        tally.batches += 1;
        wrong
    }
}

fn relative(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = b.iter().map(|b| square(*b)).sum();
    (error / norm.max(1e-30)).sqrt()
}

/// Compares batches until `rounds` of them ran; the device gives None where it has no kernel.
fn check(rounds: u64, keys: usize, pool: &Pool, mut device: impl FnMut(&Batch) -> Option<Vec<Answer>>) -> (Tally, Vec<String>) {
    let (mut tally, mut wrong) = (Tally::default(), Vec::new());
    let first = setting("SKIP_SEED", 1);
    for seed in first..first + rounds {
        let batch = batch(seed, keys);
        let Some(answers) = device(&batch) else {
            tally.no_kernel += 1;
            continue;
        };
        let faults = batch.compare(&answers, &batch.on_cpu(Isa::detect(), pool), &mut tally);
        wrong.extend(faults.into_iter().map(|fault| format!("{}: {fault}", batch.describe())));
    }
    (tally, wrong)
}

fn conclude(what: &str, (tally, wrong): (Tally, Vec<String>)) {
    println!("{what}: {tally:?}");
    assert!(wrong.is_empty(), "{} differences, the first of them:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
    assert!(0 < tally.skipped && tally.skipped < tally.votes, "nothing or everything was skipped");
    assert!(tally.turned * 5000 <= tally.votes + 25_000, "{} of {} votes turned", tally.turned, tally.votes);
}

fn on_device(rounds: u64, keys: usize) {
    let mut attend = Attend::open(&CudaOptions::new(Activations::Fp16)).unwrap();
    let pool = Pool::new(threads());
    let checked = check(rounds, keys, &pool, |batch| {
        if !attend.has_kernel(batch.phase, &batch.geometry, batch.format) {
            return None;
        }
        Some(batch.compute(|call| attend.run(batch.phase, call)))
    });
    assert_eq!(checked.0.no_kernel, 0, "every geometry drawn has a kernel");
    conclude(&attend.device(), checked);
}

#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_calls_agree_with_the_cpu() {
    on_device(setting("SKIP_ROUNDS", 60), 12_000);
}

/// As few and short as a sanitizer takes.
#[test]
#[ignore = "needs a CUDA device and target/cubins"]
fn cuda_small_calls_agree_with_the_cpu() {
    on_device(setting("SKIP_ROUNDS", 4), 900);
}

/// The comparison itself, without a device: the scalar kernels stand for it.
#[test]
fn what_agrees_is_found_to_agree() {
    let pool = Pool::new(2);
    conclude("scalar", check(6, 700, &pool, |batch| Some(scalar(batch))));
}

#[test]
fn what_votes_otherwise_is_found() {
    let pool = Pool::new(2);
    let (_, wrong) = check(6, 700, &pool, |batch| {
        let mut other = Batch { seqs: batch.seqs.clone(), ..*batch };
        other.seqs.iter_mut().for_each(|s| s.ln_lambda = s.ln_lambda.map(|l| l - 1.5));
        Some(scalar(&other))
    });
    assert!(wrong.iter().any(|w| w.contains("its gap is")), "{wrong:?}");
}

fn scalar(batch: &Batch) -> Vec<Answer> {
    let pool = Pool::new(1);
    crate::fixture::run(Who::Scalar, &batch.geometry, batch.format, &batch.seqs, &pool, batch.phase == Phase::Decode).unwrap()
}
