//! Products of few rows, where launches are what costs: a product is held back until it is known what follows it, so that the norm before it
//! and the addition or activation behind it run in the same kernel.

use super::cubins::Cubins;
use super::device::Device;
use super::launch::{Shape, launch};
use crate::backend::{Activation, KernelError};

/// Rows that the few-row kernels take.
pub(super) const MOST_ROWS: usize = 8;
/// Rows from which it costs more to norm them in every block than to launch a kernel for it.
const MOST_NORMED: usize = 2;
/// Rows are kept in shared memory; every chip allows a block this much.
const MOST_SHARED: usize = 160 << 10;

/// An RMS norm that has not been computed: `out` = norm of `x`. It holds until `x` changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Norm {
    pub x: u64,
    pub w: u64,
    pub eps: f32,
    pub cols: usize,
    pub out: u64,
}

/// A product that has not been computed: `out` = `x` · wᵀ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    pub x: u64,
    /// `x` is the output of this norm.
    pub norm: Option<Norm>,
    pub w: u64,
    pub n: usize,
    pub k: usize,
    pub out: u64,
    /// `out` is float32.
    pub wide: bool,
}

/// What is held back.
#[derive(Default)]
pub(super) struct Held {
    pub norm: Option<Norm>,
    pub product: Option<Product>,
}

/// Whether the kernels take this shape.
pub(super) fn takes(rows: usize, n: usize, k: usize) -> bool {
    (1..=MOST_ROWS).contains(&rows)
        && n.is_multiple_of(8)
        && k.is_multiple_of(32)
        && shared_bytes(rows.next_power_of_two(), k) <= MOST_SHARED
}

/// What becomes of the sums.
#[derive(Clone, Copy)]
pub(super) enum Behind {
    /// Stored in the activations' type.
    Store(u64),
    /// Stored as float32.
    Wide(u64),
    /// Added to a float32 tensor.
    Add(u64),
    /// The weights are `[gate | up]`: act(gate) · up.
    Gated(Activation, u64),
}

fn shared_bytes(b: usize, k: usize) -> usize {
    b * ((2 * k).next_multiple_of(256) + 64)
}

/// Whether a norm is worth having in the same kernel.
pub(super) fn takes_norm(rows: usize) -> bool {
    rows <= MOST_NORMED
}

/// Blocks of 256 threads.
fn blocks(n: usize, sms: usize) -> u32 {
    (n / 8).min(2 * sms) as u32
}

/// Enqueues a product of `rows` rows.
pub(super) fn run(device: &Device, cubins: &mut Cubins, t: &str, rows: usize, p: &Product, behind: Behind) -> Result<(), KernelError> {
    let b = rows.next_power_of_two();
    let prefix = if p.norm.is_some() { "norm_gemv" } else { "gemv" };
    let shared = shared_bytes(b, p.k) as u32;
    let (name, n, out) = match behind {
        Behind::Store(out) => (format!("{prefix}_{t}_{t}_b{b}"), p.n, out),
        Behind::Wide(out) => (format!("{prefix}_{t}_{t}_f32_b{b}"), p.n, out),
        Behind::Add(out) => (format!("{prefix}_residual_{t}_{t}_b{b}"), p.n, out),
        Behind::Gated(act, out) => {
            let act = match act {
                Activation::Silu => "silu",
                Activation::GeluTanh => "gelu_tanh",
            };
            (format!("{prefix}_gated_{t}_{t}_{act}_b{b}"), p.n / 2, out)
        }
    };
    let kernel = cubins.with_shared(&name, shared)?;
    let shape = Shape { shared, early: true, ..Shape::new((blocks(n, device.sms as usize), 1), 256) };
    let (k, n) = (p.k as i32, n as i32);
    match p.norm {
        Some(norm) => launch!(device, kernel, shape, norm.x, norm.w, norm.eps, p.w, k, n, out),
        None => launch!(device, kernel, shape, p.x, p.w, k, n, out),
    }
}
