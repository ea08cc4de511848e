//! The products of few rows, each with what runs in the same kernel before and behind it.

use super::super::attend::Attend;
use super::super::products::{self, Behind, Norm, Product};
use super::rig::{AGAIN, shortest};
use super::rows::{activate, gate_name, norms, wide};
use super::{Failure, Needs, agree, numbers, rounded, slack};

/// Widths that end in the middle of everything the kernel counts in.
const K: usize = 288;
const N: usize = 136;
const EPS: f32 = 1e-5;

/// What becomes of the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Store,
    Wide,
    Add,
    Gated,
}

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Form {
    rows: usize,
    norm: bool,
    end: End,
}

impl Form {
    /// Those that serving uses: norms are taken along up to two rows.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let plain = [1, 2, 4, 8].into_iter().flat_map(|rows| [End::Store, End::Wide, End::Add].map(|end| Form { rows, norm: false, end }));
        let normed = [1, 2].into_iter().flat_map(|rows| [End::Store, End::Wide, End::Gated].map(|end| Form { rows, norm: true, end }));
        plain.chain(normed)
    }

    pub(super) fn name(self, needs: &Needs) -> String {
        let t = needs.activations.name();
        let prefix = if self.norm { "norm_gemv" } else { "gemv" };
        let b = self.rows;
        match self.end {
            End::Store => format!("{prefix}_{t}_{t}_b{b}"),
            End::Wide => format!("{prefix}_{t}_{t}_f32_b{b}"),
            End::Add => format!("{prefix}_residual_{t}_{t}_b{b}"),
            End::Gated => format!("{prefix}_gated_{t}_{t}_{}_b{b}", gate_name(needs.gate)),
        }
    }
}

pub(super) fn run(on: &mut Attend, needs: &Needs, form: Form) -> Result<f32, Failure> {
    let (t, Form { rows, norm, end }) = (needs.rounding(), form);
    // Of [gate | up] rows each pair gives one value.
    let n = if end == End::Gated { 2 * N } else { N };
    let weights: Vec<f32> = numbers(n * K, 21).into_iter().map(|w| t.decode(t.encode(w / (K as f32).sqrt()))).collect();
    let (norm_weights, residual) = (numbers(K, 22), numbers(rows * N, 23));
    let x = if norm { numbers(rows * K, 24) } else { rounded(rows * K, 24, t) };
    let device_x = if norm { on.up(&x)? } else { on.up_halves(&x, t)? };
    let (device_w, device_norm) = (on.up_halves(&weights, t)?, on.up(&norm_weights)?);
    let out = if end == End::Add { on.up(&residual)? } else { on.blank(rows * N * 4)? };
    // The kernel takes the norm's input; its output is named only to find it again.
    let held = Norm { x: device_x.ptr(), w: device_norm.ptr(), eps: EPS, cols: K, out: 0 };
    let product =
        Product { x: device_x.ptr(), norm: norm.then_some(held), w: device_w.ptr(), n, k: K, out: out.ptr(), wide: end == End::Wide };
    let behind = || match end {
        End::Store => Behind::Store(out.ptr()),
        End::Wide => Behind::Wide(out.ptr()),
        End::Add => Behind::Add(out.ptr()),
        End::Gated => Behind::Gated(needs.gate, out.ptr()),
    };
    let name = needs.activations.name();
    products::run(&on.device, &mut on.cubins, name, rows, &product, behind())?;

    let x = wide(&x);
    // The norm's output is rounded before it is multiplied.
    let x = if norm { norms(&x, &norm_weights, EPS).into_iter().map(|x| f64::from(t.decode(t.encode(x as f32)))).collect() } else { x };
    let dot = |row: &[f64], w: &[f32]| row.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>();
    let sums = |row: usize| weights.chunks_exact(K).map(|w| dot(&x[row * K..][..K], w)).collect::<Vec<f64>>();
    let want: Vec<f64> = (0..rows)
        .flat_map(|row| {
            let sums = sums(row);
            match end {
                End::Gated => (0..N).map(|i| activate(needs.gate, sums[i]) * sums[N + i]).collect(),
                End::Add => sums.iter().zip(&residual[row * N..]).map(|(s, &r)| s + f64::from(r)).collect(),
                End::Store | End::Wide => sums,
            }
        })
        .collect();
    let wide_out = matches!(end, End::Wide | End::Add);
    let found = if wide_out { on.floats(&out, rows * N)? } else { on.halves(&out, rows * N, t)? };
    // A norm's output near the middle between two numbers may be rounded either way.
    let tolerance = if wide_out && !norm { 1e-4 } else { 2.0 * slack(t) };
    agree("products", &found, &want, tolerance)?;
    Ok(shortest(&on.device, AGAIN, || products::run(&on.device, &mut on.cubins, name, rows, &product, behind()))?)
}
