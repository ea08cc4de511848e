//! Row-wise operators: RMS norms, the residual, the gate of the MLP.

use super::isa::Isa;
use super::pool::Pool;
use super::shared::SharedMut;
use super::simd;
use crate::backend::Activation;

/// Fewest elements worth a second thread.
const WORTH_A_THREAD: usize = 16 * 1024;

/// Runs `task(first row, rows)` over ranges of `rows` rows of `cols` elements.
pub fn by_rows(pool: &Pool, rows: usize, cols: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    let parts = (rows * cols / WORTH_A_THREAD).clamp(1, pool.workers() * 2).min(rows.max(1));
    let chunk = rows.div_ceil(parts).max(1);
    pool.run(rows.div_ceil(chunk), &|i, _| task(i * chunk, chunk.min(rows - i * chunk)));
}

/// out = x / √(mean(x²) + eps) · w, one row.
pub fn rms_norm(isa: Isa, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    simd::scale(isa, x, rms_factor(isa, x, eps), w, out);
}

/// x = x / √(mean(x²) + eps) · w, in place.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], w: &[f32], eps: f32) {
    let factor = rms_factor(isa, x, eps);
    for (x, &w) in x.iter_mut().zip(w) {
        *x *= factor * w;
    }
}

fn rms_factor(isa: Isa, x: &[f32], eps: f32) -> f32 {
    1.0 / (simd::sum_of_squares(isa, x) / x.len() as f32 + eps).sqrt()
}

/// What is added to the rows of `x` before their norm.
#[derive(Clone, Copy)]
pub struct Delta<'a> {
    /// The rows.
    pub rows: &'a [f32],
    /// Weights of a norm of their own.
    pub post: Option<&'a [f32]>,
}

impl Delta<'_> {
    fn add_to(&self, isa: Isa, x: &mut [f32], at: usize, eps: f32) {
        let row = &self.rows[at..at + x.len()];
        match self.post {
            None => simd::add(isa, x, row),
            Some(weights) => simd::add_scaled(isa, x, rms_factor(isa, row, eps), row, weights),
        }
    }
}

/// Norms of rows of `cols`, after adding `delta` to `x` where there is one.
pub fn rms_norm_rows(pool: &Pool, isa: Isa, x: RowsMut<'_>, delta: Option<Delta<'_>>, w: &[f32], eps: f32, out: &mut [f32]) {
    let cols = w.len();
    let rows = out.len() / cols;
    let out = SharedMut::new(out);
    by_rows(pool, rows, cols, &|row, n| {
        for r in row..row + n {
            let at = r * cols;
            // SAFETY: each row belongs to one task.
            let out = unsafe { out.part(at, cols) };
            match (&x, delta) {
                (RowsMut::Fixed(x), _) => rms_norm(isa, &x[at..at + cols], w, eps, out),
                (RowsMut::Shared(x), delta) => {
                    // SAFETY: each row belongs to one task.
                    let x = unsafe { x.part(at, cols) };
                    if let Some(delta) = delta {
                        delta.add_to(isa, x, at, eps);
                    }
                    rms_norm(isa, x, w, eps, out);
                }
            }
        }
    });
}

/// Rows that stay as they are, or that tasks may write.
pub enum RowsMut<'a> {
    /// Read only.
    Fixed(&'a [f32]),
    /// Each row written by its own task.
    Shared(SharedMut<'a, f32>),
}

/// out = act(gate) · up over packed `[gate | up]` rows, `cols` of each.
pub fn gated(pool: &Pool, isa: Isa, gate_up: &[f32], cols: usize, act: Activation, out: &mut [f32]) {
    let rows = out.len() / cols;
    let out = SharedMut::new(out);
    by_rows(pool, rows, cols * 4, &|row, n| {
        for r in row..row + n {
            let (gate, up) = gate_up[r * 2 * cols..(r + 1) * 2 * cols].split_at(cols);
            // SAFETY: each row belongs to one task.
            let out = unsafe { out.part(r * cols, cols) };
            match act {
                Activation::Silu => simd::silu(isa, gate, up, out),
                Activation::GeluTanh => simd::gelu_tanh(isa, gate, up, out),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: f64) -> Vec<f32> {
        (0..n).map(|i| ((i as f64 * 0.7311 + seed).sin() * 3.0) as f32).collect()
    }

    fn norm64(x: &[f64], w: &[f32], eps: f64) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().zip(w).map(|(x, &w)| x / (mean + eps).sqrt() * f64::from(w)).collect()
    }

    #[test]
    fn norms_and_the_residual_agree_with_plain_arithmetic() {
        let pool = Pool::new(3);
        for (rows, cols) in [(1, 7), (3, 64), (100, 576)] {
            let (mut x, delta, w) = (numbers(rows * cols, 0.1), numbers(rows * cols, 0.2), numbers(cols, 0.3));
            let mut out = vec![0.0; rows * cols];
            let sum: Vec<f64> = x.iter().zip(&delta).map(|(&a, &b)| f64::from(a) + f64::from(b)).collect();
            let add = Delta { rows: &delta, post: None };
            rms_norm_rows(&pool, Isa::detect(), RowsMut::Shared(SharedMut::new(&mut x)), Some(add), &w, 1e-5, &mut out);
            for r in 0..rows {
                let want = norm64(&sum[r * cols..(r + 1) * cols], &w, 1e-5);
                for (c, want) in want.iter().enumerate() {
                    assert!((f64::from(out[r * cols + c]) - want).abs() < 1e-5, "row {r} column {c}");
                    assert!((f64::from(x[r * cols + c]) - sum[r * cols + c]).abs() < 1e-6);
                }
            }
            let mut again = vec![0.0; rows * cols];
            rms_norm_rows(&pool, Isa::detect(), RowsMut::Fixed(&x), None, &w, 1e-5, &mut again);
            assert_eq!(out, again);
        }
    }

    #[test]
    fn a_norm_of_what_is_added_agrees_with_plain_arithmetic() {
        let pool = Pool::new(2);
        let (rows, cols) = (5, 333);
        let (mut x, delta) = (numbers(rows * cols, 0.1), numbers(rows * cols, 0.2));
        let (post, w) = (numbers(cols, 0.3), numbers(cols, 0.4));
        let before = x.clone();
        let mut out = vec![0.0; rows * cols];
        let add = Delta { rows: &delta, post: Some(&post) };
        rms_norm_rows(&pool, Isa::detect(), RowsMut::Shared(SharedMut::new(&mut x)), Some(add), &w, 1e-3, &mut out);
        let wide = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<f64>>();
        for r in (0..rows).map(|r| r * cols..(r + 1) * cols) {
            let normed = norm64(&wide(&delta[r.clone()]), &post, 1e-3);
            let sum: Vec<f64> = wide(&before[r.clone()]).iter().zip(&normed).map(|(a, b)| a + b).collect();
            let want = norm64(&sum, &w, 1e-3);
            for (i, at) in r.enumerate() {
                assert!((f64::from(x[at]) - sum[i]).abs() < 1e-5, "sum {at}");
                assert!((f64::from(out[at]) - want[i]).abs() < 1e-5, "norm {at}");
            }
        }
    }

    #[test]
    fn gates_agree_with_plain_arithmetic() {
        let pool = Pool::new(2);
        let (rows, cols) = (9, 333);
        let mut x = numbers(rows * 2 * cols, 0.5);
        x[..4].copy_from_slice(&[-200.0, 200.0, 0.0, -88.0]);
        for act in [Activation::Silu, Activation::GeluTanh] {
            let mut out = vec![0.0; rows * cols];
            gated(&pool, Isa::detect(), &x, cols, act, &mut out);
            for (i, &got) in out.iter().enumerate() {
                let (r, c) = (i / cols, i % cols);
                let (g, up) = (f64::from(x[r * 2 * cols + c]), f64::from(x[r * 2 * cols + cols + c]));
                let want = up
                    * match act {
                        Activation::Silu => g / (1.0 + (-g).exp()),
                        Activation::GeluTanh => 0.5 * g * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g)).tanh()),
                    };
                assert!((f64::from(got) - want).abs() <= 1e-5 * want.abs().max(1.0), "{act:?} at {i}: {got} {want}");
            }
        }
    }
}
