//! Trying every kernel that a checkpoint takes on built-in cases, against plain arithmetic, and timing it.
//! A kernel may fault or never end, so whoever tries them does it in a process that may be lost.

mod attention;
mod draws;
mod ends;
mod measure;
mod products;
mod rig;
mod rows;
mod store;

pub(super) use rig::shortest;

use super::attend::Attend;
use super::backend::CudaOptions;
use super::cubins::Cubins;
pub use super::cubins::KernelFile;
use super::device::Probe;
use super::edits;
use super::unusable::Unusable;
use super::weights::Activations;
use crate::backend::{Activation, KernelError};
use crate::pages::KvFormat;
use skip_tables::Phase;

/// What a checkpoint asks of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Elements a head.
    pub head_dim: usize,
    /// Query heads a KV head.
    pub group: usize,
    /// The cache's type.
    pub cache: KvFormat,
    /// The activations' type.
    pub activations: Activations,
    /// The gate's activation.
    pub gate: Activation,
}

/// What a kernel is for, and so what it costs to go without.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Without it there is no serving.
    Serves,
    /// Only some devices have it; takes the place of a portable one, which is tried on the same case, so that their times compare.
    Own {
        /// The portable one.
        portable: String,
    },
    /// Without it nothing can be measured; serving does not use it.
    Measures,
    /// Without it requests that change logits are refused.
    Edits,
}

/// One kernel and the case it is tried on.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The kernel's name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Kernels launched before it in the same case.
    before: Vec<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Attention(attention::Form),
    Measure(Phase),
    Rows(rows::Form),
    End(ends::Form),
    Angles,
    Store,
    Product(products::Form),
    Draw { greedy: bool },
    Edit,
}

/// What was found of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// As the reference has it; its shortest time in microseconds.
    Right(f32),
    /// What differs, or why it could not be launched.
    Wrong(String),
    /// The device's error; nothing can be run in this process any more.
    Faulted(String),
    /// It is in none of the files, and need not be.
    Absent,
}

impl Case {
    /// All kernels it launches.
    pub fn kernels(&self) -> Vec<&str> {
        std::iter::once(self.name.as_str()).chain(self.before.iter().map(String::as_str)).collect()
    }
}

/// The kernel files for a device.
///
/// # Errors
/// There are none, or one cannot be read or is not whole.
pub fn kernel_files(options: &CudaOptions, probe: &Probe) -> Result<Vec<KernelFile>, Unusable> {
    Cubins::digests(probe.capability, &options.cubins)
}

impl Needs {
    /// Every kernel for a device of this compute capability, in the order they are tried: the cheapest first, those that may be missing last.
    pub fn cases(&self, capability: (i32, i32)) -> Vec<Case> {
        let rows = rows::Form::ALL.map(Kind::Rows);
        let both_ends = ends::Form::ALL.map(Kind::End);
        let attention = attention::Form::ALL.map(Kind::Attention);
        let draws = [Kind::Draw { greedy: true }, Kind::Draw { greedy: false }];
        let products = products::Form::all().map(Kind::Product);
        let own = attention::Form::own(capability, self.head_dim).map(Kind::Attention);
        let measure = Phase::ALL.map(Kind::Measure);
        let kinds = both_ends.into_iter().chain(rows).chain([Kind::Angles, Kind::Store]).chain(products).chain(draws).chain(attention);
        let case = |kind| Case { name: self.name(kind), role: self.role(kind), before: self.before(kind), kind };
        kinds.chain(own).chain(measure).chain([Kind::Edit]).map(case).collect()
    }

    fn role(&self, kind: Kind) -> Role {
        match kind {
            Kind::Attention(attention::Form::Prefill { skip, own: true }) => {
                Role::Own { portable: attention::Form::Prefill { skip, own: false }.name(self) }
            }
            Kind::Measure(_) => Role::Measures,
            Kind::Edit => Role::Edits,
            _ => Role::Serves,
        }
    }

    fn before(&self, kind: Kind) -> Vec<String> {
        match kind {
            Kind::Attention(form) => form.before(self).into_iter().collect(),
            Kind::Draw { greedy: false } => vec!["sample_best".into(), "sample_weigh".into()],
            _ => Vec::new(),
        }
    }

    fn name(&self, kind: Kind) -> String {
        match kind {
            Kind::Attention(form) => form.name(self),
            Kind::Measure(phase) => measure::name(phase, self),
            Kind::Rows(form) => form.name(self),
            Kind::End(form) => form.name(),
            Kind::Angles => "rope_angles".into(),
            Kind::Store => format!("qkv_store_{}", self.cache.name()),
            Kind::Product(form) => form.name(self),
            Kind::Draw { greedy: true } => "sample_greedy".into(),
            // Its three launches are one draw.
            Kind::Draw { greedy: false } => "sample_draw".into(),
            Kind::Edit => edits::KERNEL.into(),
        }
    }

    /// The activations' type as a number format.
    fn rounding(&self) -> KvFormat {
        match self.activations {
            Activations::Bf16 => KvFormat::Bf16,
            Activations::Fp16 => KvFormat::Fp16,
        }
    }
}

/// A device to try kernels on.
pub struct Trial {
    attend: Attend,
    needs: Needs,
}

impl Trial {
    /// Opens the device and loads every kernel file.
    ///
    /// # Errors
    /// Why this machine cannot run on CUDA.
    pub fn open(options: &CudaOptions, needs: Needs) -> Result<Self, Unusable> {
        Ok(Self { attend: Attend::open(options)?, needs })
    }

    /// Every kernel for this device.
    pub fn cases(&self) -> Vec<Case> {
        self.needs.cases(self.attend.device.probe.capability)
    }

    /// Kernels of the device's own that are in the files.
    pub fn own(&mut self) -> Vec<String> {
        let own = self.cases().into_iter().filter(|case| matches!(case.role, Role::Own { .. })).map(|case| case.name);
        own.filter(|name| self.attend.cubins.find(name).is_some()).collect()
    }

    /// Whether every kernel that serving needs is in the files.
    ///
    /// # Errors
    /// The first that is not.
    pub fn complete(&mut self, options: &CudaOptions) -> Result<(), Unusable> {
        for case in self.cases().into_iter().filter(|case| case.role == Role::Serves) {
            if let Some(name) = case.kernels().into_iter().find(|name| self.attend.cubins.find(name).is_none()) {
                return Err(Unusable::MissingKernel { name: name.to_owned(), folder: options.cubins.clone() });
            }
        }
        Ok(())
    }

    /// Tries one kernel.
    ///
    /// # Errors
    /// The device has no memory for the case, which says nothing of the kernel.
    pub fn run(&mut self, case: &Case) -> Result<Verdict, KernelError> {
        let (on, needs) = (&mut self.attend, &self.needs);
        if case.role != Role::Serves && on.cubins.find(&case.name).is_none() {
            return Ok(Verdict::Absent);
        }
        let tried = match case.kind {
            Kind::Attention(form) => attention::run(on, needs, form),
            Kind::Measure(phase) => measure::run(on, needs, phase),
            Kind::Rows(form) => rows::run(on, needs, form),
            Kind::End(form) => ends::run(on, form),
            Kind::Angles => store::angles(on),
            Kind::Store => store::store(on, needs),
            Kind::Product(form) => products::run(on, needs, form),
            Kind::Draw { greedy } => draws::run(on, greedy),
            Kind::Edit => draws::edit(on),
        };
        Ok(match tried {
            Ok(time) => Verdict::Right(time),
            Err(Failure::Differs(what)) => Verdict::Wrong(what),
            Err(Failure::Kernel(error @ KernelError::OutOfMemory { .. })) => return Err(error),
            Err(Failure::Kernel(KernelError::Device(fault))) => Verdict::Faulted(fault),
            Err(Failure::Kernel(error)) => Verdict::Wrong(error.to_string()),
        })
    }
}

/// Why a kernel did not pass.
#[derive(Debug)]
enum Failure {
    Differs(String),
    Kernel(KernelError),
}

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Self {
        Failure::Kernel(error)
    }
}

/// Refuses values that are further from the reference than `tolerance` times max(1, |reference|), or are no numbers.
fn agree(what: &str, found: &[f32], reference: &[f64], tolerance: f64) -> Result<(), Failure> {
    if found.len() != reference.len() {
        return Err(Failure::Differs(format!("{what}: {} values for {}", found.len(), reference.len())));
    }
    let off = |(&x, &want): (&f32, &f64)| {
        let off = (f64::from(x) - want).abs() / want.abs().max(1.0);
        if off.is_nan() { f64::INFINITY } else { off }
    };
    let worst = found.iter().zip(reference).enumerate().map(|(i, pair)| (i, off(pair))).max_by(|a, b| a.1.total_cmp(&b.1));
    match worst {
        Some((i, error)) if error > tolerance => {
            Err(Failure::Differs(format!("{what}: element {i} is {} for {:.6}, tolerance {tolerance}", found[i], reference[i])))
        }
        _ => Ok(()),
    }
}

/// Reproducible numbers of about unit variance.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    // Four uniform numbers have a third of unit variance.
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1.732).collect()
}

/// The same, rounded to what a 16-bit type holds.
fn rounded(count: usize, seed: u64, to: KvFormat) -> Vec<f32> {
    numbers(count, seed).into_iter().map(|x| to.decode(to.encode(x))).collect()
}

/// How far a value rounded to this type may be off, with some slack for the sums before.
fn slack(format: KvFormat) -> f64 {
    match format {
        KvFormat::Bf16 => 1.0 / 128.0,
        KvFormat::Fp16 => 1.0 / 1024.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const QWEN: Needs =
        Needs { head_dim: 64, group: 7, cache: KvFormat::Fp16, activations: Activations::Bf16, gate: Activation::Silu };

    #[test]
    fn every_kernel_is_named_once() {
        let names: Vec<String> = QWEN.cases((9, 0)).into_iter().map(|case| case.name).collect();
        let distinct: std::collections::HashSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        for wanted in [
            "attn_prefill_fp16bf16_d64_skip_mma",
            "attn_decode_fp16bf16_d64_guarded",
            "qkv_store_fp16",
            "embed_bf16",
            "fetch_step",
            "return_step",
        ] {
            assert!(names.iter().any(|name| name == wanted), "{wanted} is not in {names:?}");
        }
        assert!(names.contains(&"norm_gemv_gated_bf16_bf16_silu_b2".to_owned()), "{names:?}");
    }

    #[test]
    fn kernels_of_the_device_s_own_stand_beside_portable_ones_and_measuring_serves_nobody() {
        for (head_dim, capability, own) in [(64, (9, 0), 2), (128, (9, 0), 2), (256, (9, 0), 0), (64, (8, 7), 0), (64, (11, 0), 0)] {
            let cases = Needs { head_dim, ..QWEN }.cases(capability);
            let serves = |name: &str| cases.iter().any(|case| case.name == name && case.role == Role::Serves);
            let portable: Vec<&String> =
                cases.iter().filter_map(|case| if let Role::Own { portable } = &case.role { Some(portable) } else { None }).collect();
            assert_eq!(portable.len(), own, "{head_dim} {capability:?}");
            assert!(portable.iter().all(|name| serves(name)), "{portable:?}");
            assert_eq!(cases.iter().filter(|case| case.role == Role::Measures && case.name.contains("_measure")).count(), 2);
        }
    }

    #[test]
    fn what_is_off_or_no_number_does_not_agree() {
        assert!(agree("x", &[1.0, 2.01], &[1.0, 2.0], 0.01).is_ok());
        for found in [&[1.0, 2.1][..], &[f32::NAN, 2.0], &[1.0]] {
            assert!(agree("x", found, &[1.0, 2.0], 0.01).is_err(), "{found:?}");
        }
    }

    #[test]
    fn the_numbers_are_spread_and_repeat() {
        let x = numbers(10_000, 3);
        assert_eq!(x, numbers(10_000, 3));
        assert_ne!(x, numbers(10_000, 4));
        let square = x.iter().map(|x| x * x).sum::<f32>() / 1e4;
        assert!((0.9..1.1).contains(&square), "{square}");
    }
}
