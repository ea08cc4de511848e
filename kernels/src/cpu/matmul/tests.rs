use std::sync::Arc;

use crate::files::WeightFile;
use half::{bf16, f16};
use memmap2::MmapMut;

use super::*;
use crate::backend::{MatrixSource, WeightFormat};

/// A matrix source over its own mapping, at an odd offset as in a file.
pub fn source(rows: usize, cols: usize, format: WeightFormat, values: &[f32]) -> MatrixSource {
    let mut bytes = vec![0u8; 3];
    for &x in values {
        match format {
            WeightFormat::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
            WeightFormat::Fp16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
            WeightFormat::Fp32 => bytes.extend(x.to_le_bytes()),
        }
    }
    let mut map = MmapMut::map_anon(bytes.len()).unwrap();
    map.copy_from_slice(&bytes);
    MatrixSource { rows, cols, format, file: Arc::new(WeightFile::of_memory(map.make_read_only().unwrap())), range: 3..bytes.len() }
}

pub fn numbers(n: usize, seed: f64) -> Vec<f32> {
    (0..n).map(|i| ((i as f64 * 0.731_1 + seed).sin() * (1.0 + (i % 7) as f64)) as f32).collect()
}

fn stored(format: WeightFormat, x: f32) -> f64 {
    match format {
        WeightFormat::Bf16 => bf16::from_f32(x).to_f64(),
        WeightFormat::Fp16 => f16::from_f32(x).to_f64(),
        WeightFormat::Fp32 => f64::from(x),
    }
}

fn agrees(format: WeightFormat, inputs: Inputs, m: usize, n: usize, k: usize, pool: &Pool) {
    let (values, x) = (numbers(n * k, 0.3), numbers(m * k, 0.7));
    let w = Weights::pack(pool, &[source(n, k, format, &values)]).unwrap();
    for isa in Isa::available() {
        let mut out = vec![f32::NAN; m * n];
        matmul(pool, isa, inputs, &x, &w, &mut out, &mut Scratch::default());
        for r in 0..m {
            for c in 0..n {
                let (mut want, mut size) = (0.0, 0.0);
                for i in 0..k {
                    let x = x[r * k + i];
                    let x =
                        if inputs == Inputs::Bfloat16 && format == WeightFormat::Bf16 { bf16::from_f32(x).to_f64() } else { f64::from(x) };
                    let term = x * stored(format, values[c * k + i]);
                    want += term;
                    size += term.abs();
                }
                let error = (f64::from(out[r * n + c]) - want).abs();
                assert!(error <= 1e-6 * size, "{isa:?} {format:?} {inputs:?} {m}×{n}×{k} at {r},{c}: {} for {want}", out[r * n + c]);
            }
        }
    }
}

#[test]
fn products_agree_with_plain_arithmetic_in_every_format_and_instruction_set() {
    let pool = Pool::new(3);
    for format in [WeightFormat::Bf16, WeightFormat::Fp16, WeightFormat::Fp32] {
        for inputs in [Inputs::Float32, Inputs::Bfloat16] {
            for (m, n, k) in
                [(1, 1, 2), (1, 100, 64), (2, 33, 34), (3, 64, 70), (5, 31, 32), (13, 160, 96), (40, 65, 130), (16, 64, 64), (47, 97, 100)]
            {
                agrees(format, inputs, m, n, k, &pool);
            }
        }
    }
    agrees(WeightFormat::Bf16, Inputs::Bfloat16, ROW_BLOCK + 5, 70, 64, &pool);
    agrees(WeightFormat::Bf16, Inputs::Float32, ROW_BLOCK + 5, 70, 64, &pool);
}

#[test]
fn a_row_comes_out_the_same_in_any_company() {
    let (n, k) = (200, 160);
    let pool = Pool::new(2);
    let w = Weights::pack(&pool, &[source(n, k, WeightFormat::Bf16, &numbers(n * k, 0.1))]).unwrap();
    let x = numbers(37 * k, 0.2);
    for isa in Isa::available() {
        for inputs in [Inputs::Float32, Inputs::Bfloat16] {
            let product = |m: usize| {
                let mut out = vec![0.0; m * n];
                matmul(&pool, isa, inputs, &x[..m * k], &w, &mut out, &mut Scratch::default());
                out
            };
            let all = product(37);
            for m in [1, 2, 3, 4, 7, 16, 30] {
                assert_eq!(product(m), all[..m * n], "{isa:?} {inputs:?} {m} rows");
            }
        }
    }
}

#[test]
fn parts_stand_below_one_another() {
    let pool = Pool::new(2);
    let (k, values) = (64, numbers(50 * 64, 0.9));
    let whole = Weights::pack(&pool, &[source(50, k, WeightFormat::Bf16, &values)]).unwrap();
    let parts = [source(7, k, WeightFormat::Bf16, &values[..7 * k]), source(43, k, WeightFormat::Bf16, &values[7 * k..])];
    let parts = Weights::pack(&pool, &parts).unwrap();
    let x = numbers(3 * k, 0.4);
    let (mut a, mut b) = (vec![0.0; 150], vec![0.0; 150]);
    matmul(&pool, Isa::detect(), Inputs::Float32, &x, &whole, &mut a, &mut Scratch::default());
    matmul(&pool, Isa::detect(), Inputs::Float32, &x, &parts, &mut b, &mut Scratch::default());
    assert_eq!(a, b);
}

#[test]
fn sources_that_do_not_fit_are_refused() {
    let pool = Pool::new(1);
    let good = source(2, 4, WeightFormat::Bf16, &[0.0; 8]);
    let refused = |part: MatrixSource| assert!(Weights::pack(&pool, &[part]).is_err());
    refused(MatrixSource { rows: 3, ..good.clone() });
    refused(MatrixSource { range: 3..1000, ..good.clone() });
    refused(MatrixSource { rows: usize::MAX, ..good.clone() });
    refused(MatrixSource { rows: 8, cols: 1, ..good.clone() });
    refused(MatrixSource { rows: 0, range: 3..3, ..good.clone() });
    assert!(Weights::pack(&pool, &[]).is_err());
    let other = source(2, 2, WeightFormat::Bf16, &[0.0; 4]);
    assert!(Weights::pack(&pool, &[good, other]).is_err());
}
