//! The operators that go row by row: embedding, norms, gate, picking rows.

use super::super::attend::Attend;
use super::super::launch::{Shape, launch};
use super::rig::{AGAIN, shortest};
use super::{Failure, Needs, agree, numbers, rounded, slack};
use crate::backend::Activation;

const ROWS: usize = 3;
const COLS: usize = 1032;
const EPS: f32 = 1e-5;

/// Which operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Embed,
    Norm {
        add: bool,
    },
    /// What is added has a norm of its own.
    PostNorm,
    Gate,
    Gather {
        wide: bool,
    },
}

impl Form {
    pub(super) const ALL: [Self; 7] = [
        Form::Embed,
        Form::Norm { add: false },
        Form::Norm { add: true },
        Form::PostNorm,
        Form::Gate,
        Form::Gather { wide: true },
        Form::Gather { wide: false },
    ];

    pub(super) fn name(self, needs: &Needs) -> String {
        let t = needs.activations.name();
        match self {
            Form::Embed => format!("embed_{t}"),
            Form::Norm { add: false } => format!("rms_norm_{t}"),
            Form::Norm { add: true } => format!("add_rms_norm_{t}"),
            Form::PostNorm => format!("add_post_rms_norm_{t}"),
            Form::Gate => format!("gated_{t}_{}", gate_name(needs.gate)),
            Form::Gather { wide: true } => "gather_rows_f32".into(),
            Form::Gather { wide: false } => "gather_rows_b16".into(),
        }
    }
}

/// The gate's activation as kernel names have it.
pub(super) fn gate_name(gate: Activation) -> &'static str {
    match gate {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
    }
}

/// The gate's activation, plainly.
pub(super) fn activate(gate: Activation, x: f64) -> f64 {
    match gate {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh()),
    }
}

/// RMS norm of rows, plainly.
pub(super) fn norms(x: &[f64], weights: &[f32], eps: f32) -> Vec<f64> {
    let norm = |row: &[f64]| {
        let factor = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + f64::from(eps)).sqrt();
        row.iter().zip(weights).map(|(x, &w)| x * factor * f64::from(w)).collect::<Vec<f64>>()
    };
    x.chunks_exact(weights.len()).flat_map(norm).collect()
}

pub(super) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

pub(super) fn run(on: &mut Attend, needs: &Needs, form: Form) -> Result<f32, Failure> {
    match form {
        Form::Embed => embed(on, needs),
        Form::Norm { add } => norm(on, needs, add),
        Form::PostNorm => post_norm(on, needs),
        Form::Gate => gate(on, needs),
        Form::Gather { wide } => gather(on, needs, wide),
    }
}

fn embed(on: &mut Attend, needs: &Needs) -> Result<f32, Failure> {
    let t = needs.rounding();
    let (vocab, scale) = (7, 1.5f32);
    let table = rounded(vocab * COLS, 1, t);
    // Two tokens that the host knows, and one that only the sampler does.
    let (tokens, drawn, rows) = ([6i32, 0, -2], [3i32, 5], [6, 0, 5]);
    let (device_table, tokens, drawn) = (on.up_halves(&table, t)?, on.up(&tokens)?, on.up(&drawn)?);
    let out = on.blank(ROWS * COLS * 4)?;
    let kernel = on.cubins.get(&Form::Embed.name(needs))?;
    let shape = Shape::new((ROWS as u32, 1), 128);
    let once =
        || launch!(&on.device, kernel, shape, device_table.ptr(), tokens.ptr(), drawn.ptr(), scale, COLS as i32, out.ptr(), vocab as i32);
    once()?;
    let want: Vec<f64> = rows.iter().flat_map(|row| &table[row * COLS..][..COLS]).map(|&x| f64::from(x * scale)).collect();
    agree("rows", &on.floats(&out, ROWS * COLS)?, &want, 1e-6)?;
    Ok(shortest(&on.device, AGAIN, once)?)
}

fn norm(on: &mut Attend, needs: &Needs, add: bool) -> Result<f32, Failure> {
    let t = needs.rounding();
    let (x, delta, weights) = (numbers(ROWS * COLS, 2), rounded(ROWS * COLS, 3, t), numbers(COLS, 4));
    let (device_x, device_delta, device_w) = (on.up(&x)?, on.up_halves(&delta, t)?, on.up(&weights)?);
    let out = on.blank(ROWS * COLS * 2)?;
    let kernel = on.cubins.get(&Form::Norm { add }.name(needs))?;
    let shape = Shape::new((ROWS as u32, 1), 256);
    let once = || {
        if add {
            launch!(&on.device, kernel, shape, device_x.ptr(), device_delta.ptr(), device_w.ptr(), EPS, COLS as i32, out.ptr())
        } else {
            launch!(&on.device, kernel, shape, device_x.ptr(), device_w.ptr(), EPS, COLS as i32, out.ptr())
        }
    };
    once()?;
    let sums: Vec<f64> = x.iter().zip(&delta).map(|(x, d)| f64::from(if add { x + d } else { *x })).collect();
    agree("sums", &on.floats(&device_x, ROWS * COLS)?, &sums, 1e-6)?;
    agree("norms", &on.halves(&out, ROWS * COLS, t)?, &norms(&sums, &weights, EPS), slack(t))?;
    Ok(shortest(&on.device, AGAIN, once)?)
}

fn post_norm(on: &mut Attend, needs: &Needs) -> Result<f32, Failure> {
    let t = needs.rounding();
    let (x, delta) = (numbers(ROWS * COLS, 2), rounded(ROWS * COLS, 3, t));
    let (post, weights) = (numbers(COLS, 4), numbers(COLS, 5));
    let (device_x, device_delta) = (on.up(&x)?, on.up_halves(&delta, t)?);
    let (device_post, device_w) = (on.up(&post)?, on.up(&weights)?);
    let out = on.blank(ROWS * COLS * 2)?;
    let kernel = on.cubins.get(&Form::PostNorm.name(needs))?;
    let shape = Shape::new((ROWS as u32, 1), 256);
    let (x_at, delta_at, post_at, w_at) = (device_x.ptr(), device_delta.ptr(), device_post.ptr(), device_w.ptr());
    let once = || launch!(&on.device, kernel, shape, x_at, delta_at, post_at, w_at, EPS, COLS as i32, out.ptr());
    once()?;
    let sums: Vec<f64> = x.iter().zip(norms(&wide(&delta), &post, EPS)).map(|(x, d)| f64::from(*x) + d).collect();
    agree("sums", &on.floats(&device_x, ROWS * COLS)?, &sums, 1e-5)?;
    agree("norms", &on.halves(&out, ROWS * COLS, t)?, &norms(&sums, &weights, EPS), slack(t))?;
    Ok(shortest(&on.device, AGAIN, once)?)
}

fn gate(on: &mut Attend, needs: &Needs) -> Result<f32, Failure> {
    let t = needs.rounding();
    let gate_up = rounded(ROWS * 2 * COLS, 5, t);
    let (device, out) = (on.up_halves(&gate_up, t)?, on.blank(ROWS * COLS * 2)?);
    let kernel = on.cubins.get(&Form::Gate.name(needs))?;
    let shape = Shape::new((ROWS as u32, 1), 256);
    let once = || launch!(&on.device, kernel, shape, device.ptr(), COLS as i32, out.ptr());
    once()?;
    let of_row = |row: &[f32]| {
        let pairs = row[..COLS].iter().zip(&row[COLS..]);
        pairs.map(|(&gate, &up)| activate(needs.gate, f64::from(gate)) * f64::from(up)).collect::<Vec<f64>>()
    };
    let want: Vec<f64> = gate_up.chunks_exact(2 * COLS).flat_map(of_row).collect();
    agree("gated", &on.halves(&out, ROWS * COLS, t)?, &want, slack(t))?;
    Ok(shortest(&on.device, AGAIN, once)?)
}

fn gather(on: &mut Attend, needs: &Needs, wide_rows: bool) -> Result<f32, Failure> {
    let t = needs.rounding();
    let x = rounded(4 * COLS, 6, t);
    // The third is padding, and becomes zeros.
    let index = [3i32, 1, -1];
    let device_x = if wide_rows { on.up(&x)? } else { on.up_halves(&x, t)? };
    let (device_index, out) = (on.up(&index)?, on.blank(ROWS * COLS * if wide_rows { 4 } else { 2 })?);
    let kernel = on.cubins.get(&Form::Gather { wide: wide_rows }.name(needs))?;
    let shape = Shape::new((ROWS as u32, 1), 128);
    let once = || launch!(&on.device, kernel, shape, device_x.ptr(), device_index.ptr(), COLS as i32, out.ptr());
    once()?;
    let found = if wide_rows { on.floats(&out, ROWS * COLS)? } else { on.halves(&out, ROWS * COLS, t)? };
    let row = |&i: &i32| usize::try_from(i).map_or(vec![0.0; COLS], |i| wide(&x[i * COLS..][..COLS]));
    agree("rows", &found, &index.iter().flat_map(row).collect::<Vec<f64>>(), 0.0)?;
    Ok(shortest(&on.device, AGAIN, once)?)
}
