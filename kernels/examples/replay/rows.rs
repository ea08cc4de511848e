//! NVFP4 rows and block selections.

use crate::case::CaseFile;
use crate::result::Replayed;
use anyhow::{Result, ensure};
use serde::Deserialize;
use skip_kernels::nvfp4::{self, E4m3};
use skip_kernels::select;

pub fn nvfp4(case: &CaseFile<'_>) -> Result<Replayed> {
    #[derive(Deserialize)]
    struct Fields {
        constant: Option<f64>,
    }
    let constant = case.describe::<Fields>()?.constant.map(|c| c as f32);
    let (x, n, d) = case.matrix::<f32>("x")?;
    ensure!(d > 0 && d.is_multiple_of(nvfp4::BLOCK), "rows of {d} elements are no multiple of {}", nvfp4::BLOCK);
    let (mut codes, mut scales) = (vec![0u8; n * d / 2], vec![E4m3::ZERO; n * d / nvfp4::BLOCK]);
    let mut back = vec![0.0f32; n * d];
    let mut row_scales = Vec::with_capacity(n);
    let rows = x.chunks_exact(d).zip(codes.chunks_exact_mut(d / 2)).zip(scales.chunks_exact_mut(d / nvfp4::BLOCK));
    for (((x, codes), scales), back) in rows.zip(back.chunks_exact_mut(d)) {
        let g = nvfp4::quantize_row(x, constant, codes, scales);
        nvfp4::dequantize_row(codes, scales, g, back);
        row_scales.push(g);
    }
    let scales: Vec<f32> = scales.iter().map(|s| s.value()).collect();
    let mut result = Replayed::new(case);
    result.lines.push("scalar".into());
    result.push_exact(case, "codes", &[n, d / 2], &codes)?;
    result.push_exact(case, "scales", &[n, d / nvfp4::BLOCK], &scales)?;
    result.push_exact(case, "row_scale", &[n], &row_scales)?;
    result.push_exact(case, "dequantized", &[n, d], &back)?;
    Ok(result)
}

pub fn select(case: &CaseFile<'_>) -> Result<Replayed> {
    #[derive(Deserialize)]
    struct Fields {
        budget: usize,
    }
    let (mass, _, blocks) = case.matrix::<f64>("mass")?;
    let chosen = select::select_blocks(&mass, blocks, case.describe::<Fields>()?.budget);
    selection(case, &chosen)
}

pub fn select_tail(case: &CaseFile<'_>) -> Result<Replayed> {
    let (mass, heads, blocks) = case.matrix::<f64>("mass")?;
    let tau = case.shaped::<f64>("tau", &[heads])?;
    let cap: Vec<i64> = case.shaped("cap", &[heads])?;
    ensure!(cap.iter().all(|&c| c >= 1), "a cap below one block");
    let cap: Vec<usize> = cap.iter().map(|&c| c as usize).collect();
    selection(case, &select::select_tail(&mass, blocks, &tau, &cap))
}

fn selection(case: &CaseFile<'_>, chosen: &[usize]) -> Result<Replayed> {
    let chosen: Vec<i64> = chosen.iter().map(|&b| b as i64).collect();
    let mut result = Replayed::new(case);
    result.lines.push("scalar".into());
    result.push_exact(case, "chosen", &[chosen.len()], &chosen)?;
    Ok(result)
}
