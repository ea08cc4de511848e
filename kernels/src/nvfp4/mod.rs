//! NVFP4 rows: E2M1 codes, one E4M3 scale for 16 elements, one float32 scale a row.
//!
//! Every operation is rounded in float32 in a fixed order, so that two implementations agree bit for bit.

mod e4m3;

pub use e4m3::E4m3;

/// Elements that share an E4M3 scale.
pub const BLOCK: usize = 16;

/// The magnitudes of codes 0–7; bit 3 is the sign.
pub const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Largest block scale (448) times largest magnitude (6): the row scale is amax / 2688.
const RANGE: f32 = 2688.0;

/// Bytes of a row of `d` elements; a row under a constant scale stores no scale of its own.
pub const fn row_bytes(d: usize, own_scale: bool) -> usize {
    d / 2 + d / BLOCK + if own_scale { 4 } else { 0 }
}

/// Packs one row and returns its row scale g.
///
/// g = amax / 2688, or `constant`; s = E4M3(amax(block) / (6·g)); code = nearest E2M1 of x / (s·g), ties to the even code,
/// saturating at 6. `codes` takes `d / 2` bytes (low nibble: even element), `scales` `d / 16`; `d` is a multiple of 16.
pub fn quantize_row(row: &[f32], constant: Option<f32>, codes: &mut [u8], scales: &mut [E4m3]) -> f32 {
    let g = constant.unwrap_or_else(|| amax(row) / RANGE);
    let divisor = if g > 0.0 { g } else { 1.0 };
    for ((block, codes), scale) in row.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK / 2)).zip(scales) {
        *scale = if g > 0.0 { E4m3::round(amax(block) / (6.0 * divisor)) } else { E4m3::ZERO };
        let s = scale.value();
        let den = s * divisor;
        // written so that a scale that is not a number packs as zeros too
        let code = |x: f32| if s > 0.0 { encode(x / den) } else { 0 };
        for (byte, pair) in codes.iter_mut().zip(block.chunks_exact(2)) {
            *byte = code(pair[0]) | code(pair[1]) << 4;
        }
    }
    g
}

/// Unpacks one row: magnitude · block scale (exact) · row scale (one rounding).
pub fn dequantize_row(codes: &[u8], scales: &[E4m3], row_scale: f32, out: &mut [f32]) {
    for ((out, codes), scale) in out.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK / 2)).zip(scales) {
        let s = scale.value();
        for (pair, &byte) in out.chunks_exact_mut(2).zip(codes) {
            pair[0] = decode(byte & 15) * s * row_scale;
            pair[1] = decode(byte >> 4) * s * row_scale;
        }
    }
}

/// Largest magnitude; not a number if any element is none.
fn amax(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m, x| if x.is_nan() || m < x.abs() { x.abs() } else { m })
}

/// Nearest E2M1 code of `y`, ties to the even code, saturating; what is not a number becomes 0.
fn encode(y: f32) -> u8 {
    let a = y.abs();
    let above = |(i, w): (usize, &[f32])| {
        let middle = (w[0] + w[1]) / 2.0;
        a > middle || (a == middle && i % 2 == 1)
    };
    let index = MAGNITUDES.windows(2).enumerate().filter(|&w| above(w)).count() as u8;
    if index > 0 && y.is_sign_negative() { index | 8 } else { index }
}

fn decode(code: u8) -> f32 {
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(row: &[f32], constant: Option<f32>) -> (Vec<u8>, Vec<E4m3>, f32, Vec<f32>) {
        let (mut codes, mut scales) = (vec![0xAA; row.len() / 2], vec![E4m3::ZERO; row.len() / BLOCK]);
        let g = quantize_row(row, constant, &mut codes, &mut scales);
        let mut back = vec![f32::NAN; row.len()];
        dequantize_row(&codes, &scales, g, &mut back);
        (codes, scales, g, back)
    }

    #[test]
    fn ties_go_to_the_even_code_and_the_low_nibble_is_the_even_element() {
        // amax 6 · 448 makes g = 1 and the first block's scale 448: y = x / 448
        let mut row = [0.0; 16];
        for (x, y) in row.iter_mut().zip([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, -3.5, -5.0, -0.25, 0.26]) {
            *x = y * 448.0;
        }
        let (codes, scales, g, _) = round_trip(&row, None);
        assert_eq!((g, scales[0].value()), (1.0, 448.0));
        assert_eq!(codes[..5], [0x07, 0x22, 0x44, 0xEE, 0x10]);
    }

    #[test]
    fn an_element_on_the_grid_comes_back_exactly() {
        let row: Vec<f32> = (0..32).map(|i| MAGNITUDES[i % 8] * if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
        assert_eq!(round_trip(&row, Some(1.0 / 64.0)).3, row);
    }

    #[test]
    fn zero_rows_and_blocks_have_zero_codes() {
        let (codes, scales, g, back) = round_trip(&[0.0; 32], None);
        assert_eq!((g, codes, back), (0.0, vec![0; 16], vec![0.0; 32]));
        assert!(scales.iter().all(|s| s.value() == 0.0));
    }

    proptest! {
        #[test]
        fn the_error_is_within_half_a_step_of_the_largest_code(row in prop::collection::vec(-100.0f32..100.0, 64)) {
            let (_, _, _, back) = round_trip(&row, None);
            for (block, back) in row.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                let top = amax(block);
                for (x, y) in block.iter().zip(back) {
                    // the widest gap of E2M1 is 2 of 6; the block scale may round by 1/16
                    prop_assert!((x - y).abs() <= top * (1.0 / 6.0 + 1.0 / 14.0) + 1e-6, "{x} became {y}");
                }
            }
        }
    }
}
