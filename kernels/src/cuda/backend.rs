//! The CUDA implementation of [`Backend`]: operators enqueued on one stream, or left to a recorded graph.

mod held;
mod memory;

use super::attention::{self, Attention, Call, Extras, Operands};
use super::cubins::{self, Cubins};
use super::device::{Device, Probe, guarded};
use super::edits::{self, Edit};
use super::flight::{self, Flights};
use super::graph::{Graphs, Key, Skipping};
use super::launch::{Shape, launch};
use super::ledger;
use super::matmul::{self, Products};
use super::measure::Measuring;
use super::memory::{DeviceBuffer, Pinned};
use super::params::Table;
use super::products::{Behind, Held, Norm, Product};
use super::sampler::{Draw, Sampler};
use super::step::{StepBlock, TABLE_SLOTS};
use super::unusable::Unusable;
use super::weights::{Activations, Matrix, Staging};
use crate::attention::AttnGeometry;
use crate::backend::{Activation, Backend, BackendInfo, KernelError, MatrixSource, QkvStore, Rope, SeqStep, StepReport, TableSlot};
use crate::files::Reads;
use crate::gaps;
use crate::ledger::{Ledger, ModelShape};
use crate::pages::{KvFormat, PAGE, PageLayout};
use crate::system::System;
use skip_tables::{Phase, ScaleTable};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Where scan and gather as two launches overtake one that does both: measured on an H200 between half a gigabyte and two (docs/kernels.md).
const GATHER_FROM: u64 = 1 << 30;

/// What the CUDA backend is opened with.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Device number.
    pub device: usize,
    /// Where the kernel files are.
    pub cubins: PathBuf,
    /// Element type of activations and weights.
    pub activations: Activations,
    /// Rows that may draw in one step.
    pub max_samples: usize,
    /// Whether decode steps are recorded and replayed.
    pub graphs: bool,
    /// Bytes of K and V in a layer, of a step's sequences that skip, from which skipping decode is two launches. Both vote the same.
    pub gather_from: u64,
    /// Kernels that are not used though the files have them: those that may be left out are, without the others there is no serving.
    pub excluded: BTreeSet<String>,
    /// Says what memory there is, where the device shares it.
    pub system: System,
}

impl CudaOptions {
    /// The first device, kernels from [`cubins::default_folder`], graphs on.
    pub fn new(activations: Activations) -> Self {
        Self {
            device: 0,
            cubins: cubins::default_folder(),
            activations,
            max_samples: 64,
            graphs: true,
            gather_from: GATHER_FROM,
            excluded: BTreeSet::new(),
            system: System::default(),
        }
    }
}

/// The CUDA implementation of [`Backend`].
pub struct CudaBackend {
    // Fields that hold device memory come before the device.
    products: Products,
    cubins: Cubins,
    attention: Attention,
    sampler: Sampler,
    step: StepBlock,
    graphs: Graphs,
    flights: Flights,
    measuring: Measuring,
    /// Of the step's attention, for what its votes save.
    head_dim: usize,
    held: Held,
    tables: Vec<Option<ScaleTable>>,
    device_tables: DeviceBuffer,
    staging: Staging,
    queries: Option<DeviceBuffer>,
    logits: Option<DeviceBuffer>,
    vocab: usize,
    sampled_rows: usize,
    /// Rows of the launches now: all, or after `last_rows` those that sample.
    rows: usize,
    narrowed: bool,
    /// Tokens the caches can hold, and positions there are: what bounds a sequence.
    cached: usize,
    positions: usize,
    max_rows: usize,
    /// Bytes of a token's K and V in a layer.
    token_bytes: usize,
    /// Skipping decode of the step is two launches.
    gather: bool,
    /// Prefill runs on the device's own kernels.
    own_prefill: bool,
    /// The files have the kernel that edits logits, and it is to be used.
    edits_logits: bool,
    options: CudaOptions,
    device: Device,
}

/// A float32 vector.
pub struct Vector {
    data: DeviceBuffer,
    len: usize,
}

/// Activations, `[max_rows][cols]`: float32 for the residual stream, else the activations' type.
pub struct Tensor {
    data: DeviceBuffer,
    max_rows: usize,
    cols: usize,
    wide: bool,
}

/// One layer's pools.
pub struct KvPool {
    layout: PageLayout,
    pages: usize,
    k: DeviceBuffer,
    v: DeviceBuffer,
}

/// A prepared rotation: frequencies, and the angles of the step.
pub struct RopeTable {
    inv_freq: DeviceBuffer,
    half: usize,
    factor: f32,
    max_len: usize,
    angles: DeviceBuffer,
    /// The step that the angles are of.
    of_step: std::cell::Cell<u64>,
}

fn ensure(fits: bool, what: impl FnOnce() -> String) -> Result<(), KernelError> {
    if fits { Ok(()) } else { Err(KernelError::Invalid(what())) }
}

fn kv_name(format: KvFormat) -> &'static str {
    format.name()
}

/// Whether a backend can be opened with these options: looks at the device, its libraries and kernel files, and keeps nothing.
///
/// # Errors
/// Why it cannot.
pub fn check(options: &CudaOptions) -> Result<Probe, Unusable> {
    guarded(|| {
        let device = Device::open(options.device, &options.system)?;
        if !matmul::is_present() {
            return Err(Unusable::NoCublasLt);
        }
        Cubins::find_files(device.probe.capability, &options.cubins)?;
        Ok(device.probe)
    })
}

/// A number that tells one operator's call from another.
fn fingerprint(operator: u64, operands: &[u64]) -> u64 {
    operands.iter().fold(operator, |hash, &x| (hash ^ x).wrapping_mul(0x100_0000_01b3).rotate_left(23))
}

impl CudaBackend {
    /// Opens a device.
    ///
    /// # Errors
    /// Why this machine cannot run on CUDA.
    pub fn new(options: CudaOptions) -> Result<Self, Unusable> {
        guarded(|| Self::open(options))
    }

    fn open(options: CudaOptions) -> Result<Self, Unusable> {
        let driver = |e: KernelError| Unusable::Driver(e.to_string());
        if !matmul::is_present() {
            return Err(Unusable::NoCublasLt);
        }
        let device = Device::open(options.device, &options.system)?;
        let mut cubins = Cubins::load(&device, &options.cubins, &options.excluded)?;
        let edits_logits = cubins.find(edits::KERNEL).is_some();
        let max_samples = options.max_samples.max(1).next_power_of_two();
        Ok(Self {
            products: Products::new(&device)?,
            cubins,
            attention: Attention::new(),
            sampler: Sampler::new(&device, max_samples).map_err(driver)?,
            step: StepBlock::new(&device).map_err(driver)?,
            graphs: Graphs::new(),
            flights: Flights::new(&device, max_samples).map_err(driver)?,
            measuring: Measuring::default(),
            head_dim: 0,
            held: Held::default(),
            tables: Vec::new(),
            device_tables: DeviceBuffer::zeroed(&device, 2 * TABLE_SLOTS * size_of::<Table>(), "scale tables").map_err(driver)?,
            staging: Staging::new(&device).map_err(driver)?,
            queries: None,
            logits: None,
            vocab: 0,
            sampled_rows: 0,
            rows: 0,
            narrowed: false,
            cached: 0,
            positions: usize::MAX,
            max_rows: 0,
            token_bytes: 0,
            gather: false,
            own_prefill: false,
            edits_logits,
            options,
            device,
        })
    }

    fn t(&self) -> &'static str {
        self.options.activations.name()
    }

    /// Where a layer's histograms are added up; 0 where the step does not measure, or the layer has no votes.
    fn gaps_of(&mut self, geometry: &AttnGeometry) -> Result<u64, KernelError> {
        if !self.step.step.measures() {
            return Ok(0);
        }
        let at = self.measuring.next(&self.device)?;
        Ok(if gaps::votes(geometry) { at } else { 0 })
    }

    /// Rows of the step, if the tensor has room for them.
    fn fit(&self, what: &str, tensor: &Tensor, cols: usize) -> Result<u32, KernelError> {
        ensure(tensor.cols == cols && tensor.max_rows >= self.rows, || {
            format!("{what}: a tensor of {} × {} for {} × {cols}", tensor.max_rows, tensor.cols, self.rows)
        })?;
        Ok(self.rows as u32)
    }
}

impl Drop for CudaBackend {
    /// Steps may still be under way, and the memory they use goes with the fields.
    fn drop(&mut self) {
        self.graphs.give_up(&self.device);
        // A device that is gone has nothing under way.
        let _ = self.device.synchronize();
    }
}

impl Backend for CudaBackend {
    type Matrix = Matrix;
    type Vector = Vector;
    type Tensor = Tensor;
    type KvPool = KvPool;
    type RopeTable = RopeTable;

    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "cuda",
            device: self.device.probe.name.clone(),
            kernel_set: format!(
                "sm_{}, {} activations; attention {}",
                self.cubins.architecture,
                self.t(),
                if self.own_prefill { "hopper prefill, portable decode" } else { "portable" }
            ),
            parallelism: self.device.sms as usize,
        }
    }

    fn admit(&mut self, shape: &ModelShape) -> Result<Option<Ledger>, KernelError> {
        // Where nobody says what is free, allocating is the only way to know.
        let counted = self.device.probe.free.map(|free| ledger::ledger(shape, &self.chip(free)).admit()).transpose()?;
        if self.device.probe.integrated {
            ledger::admit_host(&self.options.system)?;
        }
        self.attention.reserve(&self.device, shape)?;
        self.logits_buffer(shape.seqs, shape.vocab)?;
        Ok(counted)
    }

    fn matrix(&mut self, parts: &[MatrixSource]) -> Result<Matrix, KernelError> {
        self.staging.matrix(&self.device, parts, self.options.activations)
    }

    fn reads(&self) -> Option<Reads> {
        self.staging.reads()
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector, KernelError> {
        let data = DeviceBuffer::new(&self.device, values.len() * 4, "weights")?;
        self.upload(&data, bytemuck::cast_slice(values))?;
        Ok(Vector { data, len: values.len() })
    }

    fn tensor(&mut self, max_rows: usize, cols: usize) -> Result<Tensor, KernelError> {
        // Launches round their rows up: to a recorded step's size, to what the few-row products take.
        let max_rows = ledger::padded_rows(max_rows);
        self.max_rows = self.max_rows.max(max_rows);
        let data = DeviceBuffer::zeroed(&self.device, max_rows * cols * 2, "activations")?;
        Ok(Tensor { data, max_rows, cols, wide: false })
    }

    fn wide(&mut self, max_rows: usize, cols: usize) -> Result<Tensor, KernelError> {
        let max_rows = ledger::padded_rows(max_rows);
        let data = DeviceBuffer::zeroed(&self.device, max_rows * cols * 4, "activations")?;
        Ok(Tensor { data, max_rows, cols, wide: true })
    }

    fn kv_pool(&mut self, layout: PageLayout, pages: usize) -> Result<KvPool, KernelError> {
        let Some(types) = attention::types(kv_name(layout.format), self.t()) else {
            return Err(KernelError::Invalid(format!("a {} cache under {} activations", kv_name(layout.format), self.t())));
        };
        let own = |form| self.attention.own(&mut self.cubins, types, layout.head_dim, form).is_some();
        self.own_prefill = ["dense", "skip"].into_iter().all(own);
        let bytes = layout.page_len() * pages * 2;
        self.cached = self.cached.max(pages * PAGE);
        self.token_bytes = layout.kv_heads * layout.head_dim * 2 * 2;
        let pool = |backend: &Self| DeviceBuffer::zeroed(&backend.device, bytes, "KV pages");
        Ok(KvPool { layout, pages, k: pool(self)?, v: pool(self)? })
    }

    fn rope_table(&mut self, rope: &Rope, max_len: usize) -> Result<RopeTable, KernelError> {
        let half = rope.inv_freq.len();
        let inv_freq = DeviceBuffer::new(&self.device, half * 4, "rotation")?;
        self.upload(&inv_freq, bytemuck::cast_slice(&rope.inv_freq))?;
        let angles = DeviceBuffer::zeroed(&self.device, self.max_rows.max(64) * half * 8, "rotation")?;
        self.positions = self.positions.min(max_len);
        Ok(RopeTable { inv_freq, half, factor: rope.factor, max_len, angles, of_step: std::cell::Cell::new(0) })
    }

    fn set_table(&mut self, slot: TableSlot, table: &ScaleTable) -> Result<(), KernelError> {
        // A recording that was given up would take the copy for a part of it.
        self.graphs.give_up(&self.device);
        let place = usize::from(slot.0);
        ensure(place < TABLE_SLOTS, || format!("table slot {place} of {TABLE_SLOTS}"))?;
        if place >= self.tables.len() {
            self.tables.resize(place + 1, None);
        }
        self.tables[place] = Some(table.clone());
        match Table::new(table) {
            Some(device) => self.upload_table(place, &device),
            // Too long for a slot: each step brings the row in force.
            None => Ok(()),
        }
    }

    fn check(&mut self) -> Result<(), KernelError> {
        self.device.synchronize()
    }

    fn depth(&self) -> usize {
        flight::MOST
    }

    fn edits_logits(&self) -> bool {
        self.edits_logits
    }

    fn begin_step(&mut self, seqs: &[SeqStep<'_>]) -> Result<(), KernelError> {
        let edited = |seq: &SeqStep<'_>| seq.sample.is_some_and(|params| params.edits.is_some());
        ensure(self.edits_logits || !seqs.iter().any(edited), || format!("no kernel {} to edit logits with", edits::KERNEL))?;
        let number = self.flights.begin()?;
        let turn = self.flights.turn();
        self.held = Held::default();
        let most = self.sampler.rows().min(TABLE_SLOTS);
        ensure(seqs.len() <= most, || format!("{} sequences in a step for {most}", seqs.len()))?;
        self.graphs.give_up(&self.device);
        if self.step.begin(&self.device, (turn, number), seqs, &self.tables)? {
            self.graphs.clear();
        }
        self.upload_rows_in_force(seqs)?;
        self.rows = self.step.rows;
        self.narrowed = false;
        self.gather = self.step.decode.skippable as u64 * self.token_bytes as u64 >= self.options.gather_from.max(1);
        ensure(self.rows <= self.max_rows, || format!("{} rows in a step for {}", self.rows, self.max_rows))?;
        let measures = self.step.step.measures();
        if measures {
            self.measuring.begin();
        }
        let key = StepBlock::bucket(seqs).filter(|_| self.options.graphs && !measures).map(|bucket| Key {
            bucket,
            skipping: self.step.decode.skipping.unwrap_or(Skipping::None),
            greedy: self.step.is_greedy(),
            gather: self.gather,
            edited: self.step.is_edited(),
            turn,
        });
        self.graphs.begin(&self.device, key)?;
        if self.graphs.call(fingerprint(10, &self.step.ends()))? { self.step.fetch(&self.device, &mut self.cubins) } else { Ok(()) }
    }

    fn embed(&mut self, table: &Matrix, scale: f32, out: &mut Tensor) -> Result<(), KernelError> {
        let rows = self.fit("embed", out, table.cols)?;
        ensure(out.wide, || "embed: into a residual".into())?;
        if !self.graphs.call(fingerprint(1, &[table.data.ptr(), out.data.ptr(), u64::from(scale.to_bits())]))? {
            return Ok(());
        }
        let kernel = self.cubins.get(&format!("embed_{}", self.t()))?;
        let tokens = self.step.at(self.step.layout.tokens);
        let shape = Shape { early: true, ..Shape::new((rows, 1), 128) };
        let (cols, vocab) = (table.cols as i32, table.rows as i32);
        launch!(&self.device, kernel, shape, table.data.ptr(), tokens, self.sampler.drawn.ptr(), scale, cols, out.data.ptr(), vocab)
    }

    fn rms_norm(&mut self, x: &Tensor, w: &Vector, eps: f32, out: &mut Tensor) -> Result<(), KernelError> {
        self.fit("rms_norm", x, w.len)?;
        self.fit("rms_norm", out, w.len)?;
        ensure(x.wide && !out.wide, || "rms_norm: of a residual".into())?;
        let norm = Norm { x: x.data.ptr(), w: w.data.ptr(), eps, cols: w.len, out: out.data.ptr() };
        if !self.graphs.call(fingerprint(2, &[norm.x, norm.w, norm.out]))? {
            return Ok(());
        }
        self.flush_product()?;
        self.hold_norm(norm)
    }

    fn add_rms_norm(
        &mut self,
        x: &mut Tensor,
        delta: &Tensor,
        post: Option<&Vector>,
        w: &Vector,
        eps: f32,
        out: &mut Tensor,
    ) -> Result<(), KernelError> {
        let rows = self.fit("add_rms_norm", x, w.len)?;
        self.fit("add_rms_norm", delta, w.len)?;
        self.fit("add_rms_norm", out, w.len)?;
        ensure(x.wide && !delta.wide && !out.wide, || "add_rms_norm: into a residual".into())?;
        ensure(post.is_none_or(|post| post.len == w.len), || "add_rms_norm: weights".into())?;
        let norm = Norm { x: x.data.ptr(), w: w.data.ptr(), eps, cols: w.len, out: out.data.ptr() };
        let post = post.map(|post| post.data.ptr());
        if !self.graphs.call(fingerprint(3, &[norm.x, norm.w, norm.out, delta.data.ptr(), post.unwrap_or(0)]))? {
            return Ok(());
        }
        let shape = Shape { early: true, ..Shape::new((rows, 1), 256) };
        if let Some(post) = post {
            self.flush_product()?;
            self.held.norm = None;
            let kernel = self.cubins.get(&format!("add_post_rms_norm_{}", self.t()))?;
            return launch!(&self.device, kernel, shape, norm.x, delta.data.ptr(), post, norm.w, eps, w.len as i32, norm.out);
        }
        let fused = self.held.product.filter(|product| product.out == delta.data.ptr() && product.norm.is_none() && !product.wide);
        if let Some(product) = fused {
            self.held.product = None;
            self.run_product(&product, Behind::Add(norm.x))?;
            return self.hold_norm(norm);
        }
        self.flush_product()?;
        self.held.norm = None;
        let kernel = self.cubins.get(&format!("add_rms_norm_{}", self.t()))?;
        launch!(&self.device, kernel, shape, norm.x, delta.data.ptr(), norm.w, eps, w.len as i32, norm.out)
    }

    fn matmul(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) -> Result<(), KernelError> {
        self.fit("matmul", x, w.cols)?;
        self.fit("matmul", out, w.rows)?;
        ensure(!x.wide, || "matmul: of a wide tensor".into())?;
        let (from, weights, to) = (x.data.ptr(), w.data.ptr(), out.data.ptr());
        if !self.graphs.call(fingerprint(4, &[from, weights, to]))? {
            return Ok(());
        }
        self.flush_product()?;
        let norm = self.held.norm.filter(|norm| norm.out == from && self.few(w.rows, w.cols));
        if norm.is_none() {
            self.flush_norm(from)?;
        }
        self.held.product = Some(Product { x: from, norm, w: weights, n: w.rows, k: w.cols, out: to, wide: out.wide });
        Ok(())
    }

    fn qkv_store(&mut self, qkv: &mut Tensor, args: &QkvStore<'_, Self>, pool: &mut KvPool) -> Result<(), KernelError> {
        let g = args.geometry;
        let cols = (g.heads + 2 * g.kv_heads) * g.head_dim;
        let rows = self.fit("qkv_store", qkv, cols)?;
        ensure(!self.narrowed, || "qkv_store: after last_rows".into())?;
        ensure(qkv.wide, || "qkv_store: of a wide tensor".into())?;
        ensure(pool.layout.kv_heads == g.kv_heads && pool.layout.head_dim == g.head_dim, || "qkv_store: another layer's pool".into())?;
        ensure(args.rope.half * 2 == g.head_dim, || format!("qkv_store: a rotation of {} elements", args.rope.half * 2))?;
        ensure(args.bias.is_none_or(|b| b.len == cols), || "qkv_store: bias".into())?;
        ensure(args.qk_norm.is_none_or(|(q, k, _)| q.len == g.head_dim && k.len == g.head_dim), || "qkv_store: norms".into())?;
        ensure([64, 128, 256].contains(&g.head_dim), || format!("qkv_store: heads of {}", g.head_dim))?;
        let end = self.step.step.end;
        ensure(end <= args.rope.max_len, || format!("qkv_store: position {end} of a rotation for {}", args.rope.max_len))?;
        ensure(self.step.step.last_page.is_none_or(|p| (p as usize) < pool.pages), || "qkv_store: a page outside the pool".into())?;
        if !self.graphs.call(fingerprint(5, &[qkv.data.ptr(), pool.k.ptr(), args.rope.angles.ptr()]))? {
            return Ok(());
        }
        self.flush_product()?;
        let layout = self.step.layout;
        let early = |grid| Shape { early: true, ..Shape::new(grid, 128) };
        let (rope, number) = (args.rope, self.step.step.number);
        if rope.of_step.replace(number) != number {
            let kernel = self.cubins.get("rope_angles")?;
            let shape = Shape { block: 64, ..early((rows, 1)) };
            let at = self.step.at(layout.positions);
            launch!(&self.device, kernel, shape, at, rope.inv_freq.ptr(), rope.factor, rope.half as i32, rope.angles.ptr())?;
        }
        let kernel = self.cubins.get(&format!("qkv_store_{}", kv_name(pool.layout.format)))?;
        let shape = early((rows, (g.heads + 2 * g.kv_heads).div_ceil(4) as u32));
        let bias = args.bias.map_or(0, |b| b.data.ptr());
        let (q_norm, k_norm, eps) = args.qk_norm.map_or((0, 0, 0.0), |(q, k, eps)| (q.data.ptr(), k.data.ptr(), eps));
        let queries = self.queries(g.heads * g.head_dim)?;
        let (slots, tails) = (self.step.at(layout.slots), self.step.at(layout.tails));
        let (heads, kv_heads, head_dim) = (g.heads as i32, g.kv_heads as i32, g.head_dim as i32);
        launch!(
            &self.device,
            kernel,
            shape,
            qkv.data.ptr(),
            bias,
            q_norm,
            k_norm,
            eps,
            rope.angles.ptr(),
            slots,
            tails,
            heads,
            kv_heads,
            head_dim,
            queries,
            pool.k.ptr(),
            pool.v.ptr()
        )
    }

    fn attention(&mut self, qkv: &Tensor, geometry: &AttnGeometry, pool: &KvPool, out: &mut Tensor) -> Result<(), KernelError> {
        let g = geometry;
        self.head_dim = g.head_dim;
        self.fit("attention", qkv, (g.heads + 2 * g.kv_heads) * g.head_dim)?;
        self.fit("attention", out, g.heads * g.head_dim)?;
        ensure(self.step.step.last_page.is_none_or(|p| (p as usize) < pool.pages), || "attention: a page outside the pool".into())?;
        if !self.graphs.call(fingerprint(6, &[qkv.data.ptr(), pool.k.ptr(), out.data.ptr()]))? {
            return Ok(());
        }
        self.flush_product()?;
        let types = attention::types(kv_name(pool.layout.format), self.t()).unwrap_or("bf16");
        let at = Operands {
            q: self.queries(g.heads * g.head_dim)?,
            q_stride: g.heads * g.head_dim,
            k: pool.k.ptr(),
            v: pool.v.ptr(),
            out: out.data.ptr(),
            tables: self.device_tables.ptr(),
            extras: Extras { gaps: self.gaps_of(g)?, ..Extras::default() },
        };
        let longest = self.cached.min(self.positions);
        let timed = !self.step.prefill.seqs.is_empty();
        if timed {
            self.flights.attention().start(&self.device)?;
        }
        for phase in Phase::ALL {
            let (seqs, launches) = self.step.launches(phase);
            let call = Call { seqs, launches, types, geometry, at, longest, gather: self.gather };
            self.attention.phase(&self.device, &mut self.cubins, phase, &call)?;
        }
        if timed { self.flights.attention().stop(&self.device) } else { Ok(()) }
    }

    fn gated(&mut self, gate_up: &Tensor, act: Activation, out: &mut Tensor) -> Result<(), KernelError> {
        let cols = out.cols;
        let rows = self.fit("gated", gate_up, 2 * cols)?;
        self.fit("gated", out, cols)?;
        if !self.graphs.call(fingerprint(7, &[gate_up.data.ptr(), out.data.ptr(), act as u64]))? {
            return Ok(());
        }
        let fused = self.held.product.filter(|p| p.out == gate_up.data.ptr() && p.norm.is_some() && !p.wide && cols.is_multiple_of(8));
        if let Some(product) = fused {
            self.held.product = None;
            return self.run_product(&product, Behind::Gated(act, out.data.ptr()));
        }
        self.flush_product()?;
        let act = match act {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
        };
        let kernel = self.cubins.get(&format!("gated_{}_{act}", self.t()))?;
        let shape = Shape { early: true, ..Shape::new((rows, cols.div_ceil(2048) as u32), 256) };
        launch!(&self.device, kernel, shape, gate_up.data.ptr(), cols as i32, out.data.ptr())
    }

    fn last_rows(&mut self, x: &Tensor, out: &mut Tensor) -> Result<(), KernelError> {
        let cols = out.cols;
        ensure(x.cols == cols && x.wide == out.wide, || "last_rows: tensors differ".into())?;
        ensure(x.max_rows >= self.step.rows && out.max_rows >= self.step.samples, || format!("last_rows: {} rows", self.step.samples))?;
        let call = self.graphs.call(fingerprint(8, &[x.data.ptr(), out.data.ptr()]))?;
        if call {
            self.flush_product()?;
            self.flush_norm(x.data.ptr())?;
        }
        self.rows = self.step.samples;
        self.narrowed = true;
        if !call || self.rows == 0 {
            return Ok(());
        }
        let kernel = self.cubins.get(if x.wide { "gather_rows_f32" } else { "gather_rows_b16" })?;
        let shape = Shape { early: true, ..Shape::new((self.rows as u32, 1), 128) };
        launch!(&self.device, kernel, shape, x.data.ptr(), self.step.at(self.step.layout.last), cols as i32, out.data.ptr())
    }

    fn sample(&mut self, x: &Tensor, head: &Matrix) -> Result<(), KernelError> {
        ensure(self.narrowed, || "sample: before last_rows".into())?;
        let rows = self.rows;
        self.sampled_rows = 0;
        if rows > 0 {
            self.fit("sample", x, head.cols)?;
            let logits = self.logits_buffer(rows, head.rows)?;
            self.vocab = head.rows;
            let greedy = self.step.is_greedy();
            if self
                .graphs
                .call(fingerprint(9, &[x.data.ptr(), head.data.ptr(), logits, u64::from(greedy), u64::from(self.step.is_edited())]))?
            {
                self.flush_product()?;
                let from = x.data.ptr();
                let norm = self.held.norm.filter(|norm| norm.out == from && self.few(head.rows, head.cols));
                if norm.is_none() {
                    self.flush_norm(from)?;
                }
                let product = Product { x: from, norm, w: head.data.ptr(), n: head.rows, k: head.cols, out: logits, wide: true };
                self.run_product(&product, Behind::Wide(logits))?;
                let (params, drawn) = (self.step.at(self.step.layout.sampling), self.step.at(self.step.layout.drawn));
                if self.step.is_edited() {
                    let (edits, words) = (self.step.at(self.step.layout.edits), self.step.base());
                    edits::edit(&self.device, &mut self.cubins, Edit { logits, vocab: head.rows, rows, edits, words })?;
                }
                let draw = Draw { logits, vocab: head.rows, params, rows, drawn, greedy };
                self.sampler.draw(&self.device, &mut self.cubins, draw)?;
            }
        }
        self.sampled_rows = self.step.step.seqs.iter().filter(|seq| seq.sample.is_some()).count();
        let (from, bytes) = self.step.back();
        let back = self.flights.back(bytes)?;
        if self.graphs.call(fingerprint(11, &[back, from as u64, bytes as u64]))? {
            self.step.give_back(&self.device, &mut self.cubins, back)?;
        }
        self.graphs.finish(&self.device)?;
        self.step.launched();
        self.flights.launch(&self.step, attention::run_bytes(self.head_dim));
        Ok(())
    }

    fn finish(&mut self, report: &mut StepReport) -> Result<(), KernelError> {
        // The device may be asked whether it still runs, which no recording survives.
        self.graphs.give_up(&self.device);
        report.gaps.clear();
        if self.flights.finish(&self.device, report)? {
            report.gaps = self.measuring.take(&self.device)?;
        }
        Ok(())
    }

    fn logits(&self) -> Vec<Vec<f32>> {
        let Some(buffer) = &self.logits else { return Vec::new() };
        let bytes = self.sampled_rows * self.vocab * 4;
        let Ok(mut host) = Pinned::new(&self.device, bytes) else { return Vec::new() };
        // SAFETY: pinned, and waited for at once.
        let copied = unsafe { buffer.download(&self.device, 0, &mut host.bytes_mut()[..bytes]) }.and_then(|()| self.device.synchronize());
        if copied.is_err() || self.vocab == 0 {
            return Vec::new();
        }
        let (values, _) = host.bytes()[..bytes].as_chunks::<4>();
        values.chunks_exact(self.vocab).map(|row| row.iter().map(|&b| f32::from_le_bytes(b)).collect()).collect()
    }
}
