//! Which attention kernels a step launches, and with what: the numbers of `cuda/common/launch.h`, repeated.

use super::cubins::Cubins;
use super::device::Device;
use super::graph::Skipping;
use super::launch::{Shape, launch};
use super::memory::DeviceBuffer;
use super::params::AttnParams;
use super::step::{BUCKETS, Launches, PhaseSeqs, StepBlock};
use super::unusable::Unusable;
use super::weights::Activations;
use crate::attention::{AttnGeometry, DEFAULT_VOTES};
use crate::backend::KernelError;
use crate::ledger::ModelShape;
use crate::pages::{KvFormat, PAGE};
use skip_tables::Phase;
use std::collections::HashMap;

const GROUP_HEADS: usize = 8;
const MAX_SEGMENTS: usize = 1024;

/// Decode kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decode {
    Dense,
    Guarded,
    /// Scores and their maxima; first of two launches.
    Scan,
    /// Vote and gather; second of two.
    Gather,
    /// Scan, vote and gather in one launch.
    Skip,
    /// Dense, and histograms of the votes' gaps.
    Measure,
}

impl Decode {
    fn name(self) -> &'static str {
        match self {
            Decode::Dense => "dense",
            Decode::Guarded => "guarded",
            Decode::Scan => "scan",
            Decode::Gather => "gather",
            Decode::Skip => "skip",
            Decode::Measure => "measure",
        }
    }

    fn reads_both(self) -> bool {
        matches!(self, Decode::Dense | Decode::Guarded | Decode::Measure)
    }

    fn warps(self, d: usize, roomy: bool) -> usize {
        if self.reads_both() || d == 256 || !roomy { 4 } else { 8 }
    }

    /// Dynamic shared memory: a ring of stages for each warp.
    fn shared_bytes(self, d: usize, roomy: bool) -> usize {
        let both = self.reads_both();
        let keys = if both { DEFAULT_VOTES.run * 128 / d } else { DEFAULT_VOTES.run };
        let scores = if matches!(self, Decode::Gather | Decode::Skip) { 640 } else { 0 };
        let stage = keys * d * 2 * if both { 2 } else { 1 } + scores;
        let ring = match (roomy, self) {
            (false, _) => 136 << 10,
            (true, Decode::Skip) => 207 << 10,
            (true, _) => 192 << 10,
        };
        (ring / (self.warps(d, roomy) * stage)).min(8) * stage * self.warps(d, roomy)
    }
}

/// Blocks of a decode launch: one a multiprocessor.
fn decode_blocks(sms: u32, roomy: bool) -> u32 {
    sms.min(if roomy { 192 } else { 128 })
}

fn prefill_threads(d: usize) -> u32 {
    if d == 64 { 128 } else { 256 }
}

fn prefill_shared_bytes(d: usize) -> usize {
    let tiles = if d == 256 { 5 } else { 10 };
    tiles * PAGE * d + if d == 128 { 3 * PAGE * 4 } else { 0 }
}

/// Threads of Hopper's prefill kernels.
const HOPPER_THREADS: u32 = 384;

/// Query rows of their blocks.
fn hopper_rows(d: usize) -> usize {
    if d == 64 { 256 } else { 128 }
}

fn hopper_shared_bytes(d: usize) -> usize {
    hopper_rows(d) * d * 2 + if d == 64 { 8 } else { 6 } * PAGE * d * 2
}

/// The name of a prefill kernel that only some devices have; today Hopper's.
pub(super) fn own_name(types: &str, head_dim: usize, form: &str) -> String {
    format!("attn_prefill_{types}_d{head_dim}_{form}_wgmma")
}

/// Bytes of the decode workspace.
fn workspace_bytes(segments: usize, blocks: usize, max_runs: usize, d: usize) -> usize {
    let partials = (segments + blocks) * GROUP_HEADS * (d + 2) * 4;
    let runs = segments * max_runs * 512 + segments * max_runs * GROUP_HEADS * 4 + (segments * max_runs * 4).next_multiple_of(16);
    let counts = partials + runs + segments * GROUP_HEADS * 4 + segments * 4;
    let peaks = (counts + 2 * segments * 4 + segments * 4).next_multiple_of(16);
    peaks + segments * GROUP_HEADS * 4
}

/// What decode keeps between its launches, one for each padded number of sequences: recorded steps hold its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Workspace {
    segments: usize,
    max_runs: usize,
    head_dim: usize,
    /// Its size.
    pub bytes: usize,
}

/// The workspaces of all decode steps of a model: for every padded number of sequences one that skips and one that does not.
pub(super) fn workspaces(shape: &ModelShape, sms: u32, roomy: bool) -> impl Iterator<Item = Workspace> {
    let (g, blocks) = (shape.geometry, decode_blocks(sms, roomy) as usize);
    let longest = (shape.pages * PAGE).min(shape.context);
    let most = StepBlock::padded(shape.seqs.max(1));
    let numbers = BUCKETS.into_iter().filter(move |&bucket| bucket < most).chain([most]);
    let sizes = numbers.flat_map(move |n| [0, longest.div_ceil(DEFAULT_VOTES.run)].map(|max_runs| (n * g.kv_heads, max_runs)));
    sizes.filter(|&(segments, _)| segments <= MAX_SEGMENTS).map(move |(segments, max_runs)| {
        let bytes = workspace_bytes(segments, blocks, max_runs, g.head_dim);
        Workspace { segments, max_runs, head_dim: g.head_dim, bytes }
    })
}

/// Where an attention call's rows and pages lie.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub q: u64,
    pub q_stride: usize,
    pub k: u64,
    pub v: u64,
    pub out: u64,
    pub tables: u64,
    pub extras: Extras,
}

/// One phase of an attention call.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub seqs: &'a PhaseSeqs,
    pub launches: Launches,
    /// Element types, as [`types`] names them.
    pub types: &'a str,
    pub geometry: &'a AttnGeometry,
    pub at: Operands,
    /// Bounds the sequences' lengths, now and whenever a recorded step is replayed.
    pub longest: usize,
    /// Skipping decode is two launches instead of one.
    pub gather: bool,
}

/// What tests and measuring want beside the outputs; 0 for none.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    pub lse: u64,
    pub kept: u64,
    pub kept_offset: u64,
    /// Two histograms a sequence, added to: the kernels that measure run in place of the dense ones, and nothing skips.
    pub gaps: u64,
}

/// Bytes of V in a run of keys that decode votes on.
pub(super) fn run_bytes(head_dim: usize) -> u64 {
    (DEFAULT_VOTES.run * head_dim * 2) as u64
}

/// Element types of queries, cache and outputs, as kernel names have them.
pub(super) fn types(cache: &str, activations: &str) -> Option<&'static str> {
    match (cache, activations) {
        ("bf16", "bf16") => Some("bf16"),
        ("fp16", "fp16") => Some("fp16"),
        ("fp16", "bf16") => Some("fp16bf16"),
        _ => None,
    }
}

/// Whether there are kernels for these heads, this cache and these activations.
///
/// # Errors
/// Which of them there are none for.
pub fn takes(geometry: &AttnGeometry, cache: KvFormat, activations: Activations) -> Result<(), Unusable> {
    let none = |what: String| Err(Unusable::Checkpoint(what));
    if ![64, 128, 256].contains(&geometry.head_dim) {
        return none(format!("heads of {}", geometry.head_dim));
    }
    if geometry.group() > GROUP_HEADS {
        return none(format!("{} query heads a KV head", geometry.group()));
    }
    if types(cache.name(), activations.name()).is_none() {
        return none(format!("a {} cache under {} weights", cache.name(), activations.name()));
    }
    Ok(())
}

/// Launches attention's kernels; owns decode's workspaces.
pub(super) struct Attention {
    workspaces: HashMap<Workspace, DeviceBuffer>,
    /// Leave the kernels that only some devices have alone.
    pub portable: bool,
}

impl Attention {
    pub fn new() -> Self {
        Self { workspaces: HashMap::new(), portable: false }
    }

    /// Allocates what a model's decode steps will need.
    pub fn reserve(&mut self, device: &Device, shape: &ModelShape) -> Result<(), KernelError> {
        workspaces(shape, device.sms, device.is_roomy()).try_for_each(|workspace| self.workspace(device, workspace).map(|_| ()))
    }

    /// The address of a workspace.
    fn workspace(&mut self, device: &Device, workspace: Workspace) -> Result<u64, KernelError> {
        if let Some(buffer) = self.workspaces.get(&workspace) {
            return Ok(buffer.ptr());
        }
        let buffer = DeviceBuffer::zeroed(device, workspace.bytes, "decode's workspace")?;
        let ptr = buffer.ptr();
        self.workspaces.insert(workspace, buffer);
        Ok(ptr)
    }

    /// The device's own prefill kernel, where there is one for these heads that may be used.
    pub fn own(&self, cubins: &mut Cubins, types: &str, head_dim: usize, form: &str) -> Option<String> {
        let name = own_name(types, head_dim, form);
        (!self.portable && cubins.find(&name).is_some()).then_some(name)
    }

    fn prefill(&self, device: &Device, cubins: &mut Cubins, call: &Call<'_>, params: AttnParams, form: &str) -> Result<(), KernelError> {
        let g = call.geometry;
        // Windowed layers have portable kernels alone.
        let own = if g.window.is_none() { self.own(cubins, call.types, g.head_dim, form) } else { None };
        let (name, threads, shared) = match own {
            Some(name) => (name, HOPPER_THREADS, hopper_shared_bytes(g.head_dim)),
            None => {
                let name = format!("attn_prefill_{}_d{}_{form}_mma", call.types, g.head_dim);
                (name, prefill_threads(g.head_dim), prefill_shared_bytes(g.head_dim))
            }
        };
        let shared = shared as u32;
        let kernel = cubins.with_shared(&name, shared)?;
        let shape = Shape { shared, ..Shape::new((g.heads as u32, call.launches.entries as u32), threads) };
        launch!(device, kernel, shape, params)
    }

    /// Enqueues one phase of a call.
    pub fn phase(&mut self, device: &Device, cubins: &mut Cubins, phase: Phase, call: &Call<'_>) -> Result<(), KernelError> {
        let Call { seqs, launches, geometry: g, at, .. } = *call;
        let Some(skipping) = seqs.skipping else { return Ok(()) };
        // Windowed layers never skip.
        let skipping = if g.window.is_some() { Skipping::None } else { skipping };
        let params = AttnParams {
            q: at.q,
            k: at.k,
            v: at.v,
            out: at.out,
            lse: at.extras.lse,
            seqs: launches.seqs,
            block_tables: launches.pages,
            tables: at.tables,
            counters: launches.counters,
            kept: at.extras.kept,
            kept_offset: at.extras.kept_offset,
            work: launches.work,
            workspace: 0,
            q_stride: at.q_stride as i64,
            heads: g.heads as i32,
            kv_heads: g.kv_heads as i32,
            n_seqs: seqs.padded as i32,
            window: g.window.map_or(0, |w| w as i32),
            scale: g.scale,
            max_runs: 0,
            grid: 0,
            pad: 0,
            gaps: at.extras.gaps,
        };
        match phase {
            Phase::Prefill => {
                let form = match skipping {
                    _ if at.extras.gaps != 0 => "measure",
                    Skipping::None => "dense",
                    Skipping::All | Skipping::Some => "skip",
                };
                self.prefill(device, cubins, call, params, form)
            }
            Phase::Decode => self.decode(device, cubins, call, params, skipping),
        }
    }

    fn decode(
        &mut self,
        device: &Device,
        cubins: &mut Cubins,
        call: &Call<'_>,
        mut params: AttnParams,
        skipping: Skipping,
    ) -> Result<(), KernelError> {
        let (g, padded) = (call.geometry, call.seqs.padded);
        let segments = padded * g.kv_heads;
        if segments > MAX_SEGMENTS || g.group() > GROUP_HEADS {
            return Err(KernelError::Invalid(format!("decode of {padded} sequences, {} KV heads, groups of {}", g.kv_heads, g.group())));
        }
        let roomy = device.is_roomy();
        let blocks = decode_blocks(device.sms, roomy);
        let measures = params.gaps != 0;
        let max_runs = if skipping == Skipping::None && !measures { 0 } else { call.longest.div_ceil(DEFAULT_VOTES.run) };
        let bytes = workspace_bytes(segments, blocks as usize, max_runs, g.head_dim);
        params.workspace = self.workspace(device, Workspace { segments, max_runs, head_dim: g.head_dim, bytes })?;
        params.max_runs = max_runs as i32;
        let kernels: &[Decode] = match (skipping, call.gather) {
            _ if measures => &[Decode::Measure],
            (Skipping::None, _) => &[Decode::Dense],
            (Skipping::All, false) => &[Decode::Skip],
            (Skipping::Some, false) => &[Decode::Skip, Decode::Guarded],
            (Skipping::All, true) => &[Decode::Scan, Decode::Gather],
            (Skipping::Some, true) => &[Decode::Scan, Decode::Gather, Decode::Guarded],
        };
        for &kernel in kernels {
            let shared = kernel.shared_bytes(g.head_dim, roomy) as u32;
            let handle = cubins.with_shared(&format!("attn_decode_{}_d{}_{}", call.types, g.head_dim, kernel.name()), shared)?;
            let threads = 32 * kernel.warps(g.head_dim, roomy) as u32;
            let (together, early) = (kernel == Decode::Skip, kernel == Decode::Gather);
            let shape = Shape { shared, together, early, ..Shape::new((blocks, 1), threads) };
            launch!(device, handle, shape, params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaps;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// What `cuda/common/launch.h` says, asked of a C++ compiler.
    fn header() -> Vec<usize> {
        let program = r#"
            #include "launch.h"
            #include <cstdio>
            #include <initializer_list>
            using namespace skip;
            int main() {
                for (int d : {64, 128, 256}) {
                    std::printf("%d %d\n", prefill_threads(d), prefill_shared_bytes(d));
                    std::printf("%d %d %d\n", kHopperThreads, hopper_rows(d), hopper_shared_bytes(d));
                    for (bool roomy : {false, true})
                        for (Decode kernel : {Decode::kDense, Decode::kGuarded, Decode::kScan, Decode::kGather, Decode::kSkip})
                            std::printf("%d %d\n", decode_threads(kernel, d, roomy), decode_shared_bytes(kernel, d, roomy));
                    for (int segments : {1, 6, 1024}) std::printf("%lld\n", (long long)decode_workspace_bytes(segments, 132, 1001, d));
                }
                std::printf("%d %d %d %d\n", decode_max_blocks(false), decode_max_blocks(true), kMaxSegments, kHeads);
                std::printf("%zu %zu %zu %zu\n", sizeof(AttnParams), sizeof(Seq), sizeof(Table), sizeof(Counters));
                std::printf("%d %d %d %zu\n", kGapsPerNat, -kGapLow, kGapBins, sizeof(GapHistogram));
            }
        "#;
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("numbers");
        let common = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/common");
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-x", "c++", "-", "-I", common, "-o"]).arg(&out);
        let mut compiler = compiler.stdin(Stdio::piped()).spawn().unwrap();
        compiler.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
        assert!(compiler.wait().unwrap().success());
        let numbers = Command::new(out).output().unwrap().stdout;
        String::from_utf8(numbers).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect()
    }

    #[test]
    fn what_the_kernels_do_not_take_is_named() {
        let g = |heads, head_dim| AttnGeometry { heads, kv_heads: 2, head_dim, scale: 1.0, window: None };
        let (fp16, bf16) = (KvFormat::Fp16, KvFormat::Bf16);
        assert!(takes(&g(14, 64), fp16, Activations::Bf16).is_ok());
        assert!(takes(&g(16, 256), bf16, Activations::Bf16).is_ok());
        for (geometry, cache, activations, word) in [
            (g(14, 80), fp16, Activations::Bf16, "heads of 80"),
            (g(18, 64), fp16, Activations::Bf16, "9 query heads"),
            (g(14, 64), bf16, Activations::Fp16, "bf16 cache under fp16"),
        ] {
            assert!(takes(&geometry, cache, activations).unwrap_err().to_string().contains(word));
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_kernels() {
        let mut here = Vec::new();
        for d in [64, 128, 256] {
            here.extend([prefill_threads(d) as usize, prefill_shared_bytes(d)]);
            here.extend([HOPPER_THREADS as usize, hopper_rows(d), hopper_shared_bytes(d)]);
            for roomy in [false, true] {
                for kernel in [Decode::Dense, Decode::Guarded, Decode::Scan, Decode::Gather, Decode::Skip] {
                    here.extend([32 * kernel.warps(d, roomy), kernel.shared_bytes(d, roomy)]);
                }
            }
            here.extend([1, 6, 1024].map(|segments| workspace_bytes(segments, 132, 1001, d)));
        }
        here.extend([decode_blocks(1000, false) as usize, decode_blocks(1000, true) as usize, MAX_SEGMENTS, GROUP_HEADS]);
        here.extend([size_of::<AttnParams>(), size_of::<super::super::params::Seq>()]);
        here.extend([size_of::<super::super::params::Table>(), size_of::<super::super::params::Counters>()]);
        here.extend([gaps::GAPS_PER_NAT, -gaps::GAP_LOW as usize, gaps::GAP_BINS, gaps::GAP_BINS * 16]);
        assert_eq!(here, header());
    }
}
