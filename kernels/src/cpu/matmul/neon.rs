//! Kernels of bfloat16 activations and weights for Arm: dot products of pairs (BFDOT) for one row, 2 × 4 by 4 × 2 products (BFMMLA) for more.
//!
//! BFMMLA is two BFDOTs one after the other in each element, so that a row comes out the same either way. Their intrinsics are not
//! stable Rust, and the compiler copies registers round single instructions of assembly: hence whole loops.

use std::arch::asm;

use super::Strip;
use crate::cpu::weights::PANEL;

/// Rows and features of a tile. Rows up to a multiple of it may be read.
const SIDE: usize = 8;
/// Pairs that the loops take at once.
const STEP: usize = 4;
const _: () = assert!(PANEL == 32 && super::TILE_ROWS.is_multiple_of(SIDE));

/// bfloat16 activations, in pairs, a multiple of four of them; rows behind the last up to a multiple of 16 may be read (and come to nothing).
#[target_feature(enable = "neon,bf16")]
pub unsafe fn bfloat16(strip: Strip<u32, u32>) {
    let step = if strip.rows == 1 { PANEL } else { SIDE };
    for at in (0..strip.cols).step_by(step) {
        let w = strip.w.wrapping_add(at / PANEL * strip.w_stride + at % PANEL);
        let features = step.min(strip.cols - at);
        // SAFETY: rows and features lie in the strip, filled up to whole tiles and panels, with `pairs` pairs each; of the sums only those
        // that the strip has are written.
        unsafe {
            if strip.rows == 1 {
                let mut sums = [0.0; PANEL];
                row(strip.x, w, strip.pairs, &mut sums);
                std::ptr::copy_nonoverlapping(sums.as_ptr(), strip.out.add(at), features);
                continue;
            }
            for from in (0..strip.rows).step_by(SIDE) {
                let mut sums = [[0.0; SIDE]; SIDE];
                tile(strip.x.add(from * strip.x_stride), strip.x_stride, w, strip.pairs, &mut sums);
                for (r, sums) in sums.iter().enumerate().take(strip.rows - from) {
                    std::ptr::copy_nonoverlapping(sums.as_ptr(), strip.out.add((from + r) * strip.out_stride + at), features);
                }
            }
        }
    }
}

/// Adds the products of pair `$lane` of v16 with a panel's features, `$at` bytes on, to v0 .. v7.
macro_rules! pair_of_row {
    ($lane:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            "prfm pldl1keep, [{w}, #",
            $a,
            " + 2048]\n",
            "prfm pldl1keep, [{w}, #",
            $c,
            " + 2048]\n",
            "ldp q17, q18, [{w}, #",
            $a,
            "]\n",
            "ldp q19, q20, [{w}, #",
            $b,
            "]\n",
            "ldp q21, q22, [{w}, #",
            $c,
            "]\n",
            "ldp q23, q24, [{w}, #",
            $d,
            "]\n",
            "bfdot v0.4s, v17.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v1.4s, v18.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v2.4s, v19.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v3.4s, v20.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v4.4s, v21.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v5.4s, v22.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v6.4s, v23.8h, v16.2h[",
            $lane,
            "]\n",
            "bfdot v7.4s, v24.8h, v16.2h[",
            $lane,
            "]\n",
        )
    };
}

/// One row by one panel.
///
/// # Safety
/// `pairs`, a multiple of `STEP` and not 0, of the row behind `x` and of each of the panel's features behind `w`.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn row(x: *const u32, w: *const u32, pairs: usize, sums: &mut [f32; PANEL]) {
    debug_assert!(pairs > 0 && pairs.is_multiple_of(STEP));
    // SAFETY: reads the pairs, writes `sums`.
    unsafe {
        asm!(
            "movi v0.4s, #0", "movi v1.4s, #0", "movi v2.4s, #0", "movi v3.4s, #0",
            "movi v4.4s, #0", "movi v5.4s, #0", "movi v6.4s, #0", "movi v7.4s, #0",
            "2:",
            "ldr q16, [{x}], #16",
            pair_of_row!(0, 0, 32, 64, 96),
            pair_of_row!(1, 128, 160, 192, 224),
            pair_of_row!(2, 256, 288, 320, 352),
            pair_of_row!(3, 384, 416, 448, 480),
            "add {w}, {w}, #512",
            "subs {pairs}, {pairs}, #4",
            "b.ne 2b",
            "stp q0, q1, [{sums}]",
            "stp q2, q3, [{sums}, #32]",
            "stp q4, q5, [{sums}, #64]",
            "stp q6, q7, [{sums}, #96]",
            x = inout(reg) x => _, w = inout(reg) w => _, pairs = inout(reg) pairs => _, sums = in(reg) sums.as_mut_ptr(),
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _,
            out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _, out("v24") _,
            options(nostack)
        );
    }
}

/// Adds the products of the rows behind two pointers, four pairs of each, with eight features (v16 .. v19, then v20 .. v23) to four sums.
macro_rules! two_rows {
    ($x:literal, $y:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            "ldr q28, [{",
            $x,
            "}], #16\n",
            "ldr q29, [{",
            $y,
            "}], #16\n",
            "zip1 v30.2d, v28.2d, v29.2d\n",
            "zip2 v31.2d, v28.2d, v29.2d\n",
            "bfmmla v",
            $a,
            ".4s, v30.8h, v16.8h\n",
            "bfmmla v",
            $b,
            ".4s, v30.8h, v17.8h\n",
            "bfmmla v",
            $c,
            ".4s, v30.8h, v18.8h\n",
            "bfmmla v",
            $d,
            ".4s, v30.8h, v19.8h\n",
            "bfmmla v",
            $a,
            ".4s, v31.8h, v20.8h\n",
            "bfmmla v",
            $b,
            ".4s, v31.8h, v21.8h\n",
            "bfmmla v",
            $c,
            ".4s, v31.8h, v22.8h\n",
            "bfmmla v",
            $d,
            ".4s, v31.8h, v23.8h\n",
        )
    };
}

/// Stores four sums of 2 × 2 as two rows of eight, `$at` bytes on.
macro_rules! store_two_rows {
    ($at:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            "zip1 v16.2d, v",
            $a,
            ".2d, v",
            $b,
            ".2d\n",
            "zip1 v17.2d, v",
            $c,
            ".2d, v",
            $d,
            ".2d\n",
            "zip2 v18.2d, v",
            $a,
            ".2d, v",
            $b,
            ".2d\n",
            "zip2 v19.2d, v",
            $c,
            ".2d, v",
            $d,
            ".2d\n",
            "stp q16, q17, [{sums}, #",
            $at,
            "]\n",
            "stp q18, q19, [{sums}, #",
            $at,
            " + 32]\n",
        )
    };
}

/// Eight rows by eight features.
///
/// # Safety
/// `pairs`, a multiple of `STEP` and not 0, of eight rows, `stride` from one to the next, behind `x` and of each feature behind `w`.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn tile(x: *const u32, stride: usize, w: *const u32, pairs: usize, sums: &mut [[f32; SIDE]; SIDE]) {
    debug_assert!(pairs > 0 && pairs.is_multiple_of(STEP));
    let line = |r: usize| x.wrapping_add(r * stride);
    // SAFETY: reads the pairs, writes `sums`.
    unsafe {
        asm!(
            "movi v0.4s, #0", "movi v1.4s, #0", "movi v2.4s, #0", "movi v3.4s, #0",
            "movi v4.4s, #0", "movi v5.4s, #0", "movi v6.4s, #0", "movi v7.4s, #0",
            "movi v8.4s, #0", "movi v9.4s, #0", "movi v10.4s, #0", "movi v11.4s, #0",
            "movi v12.4s, #0", "movi v13.4s, #0", "movi v14.4s, #0", "movi v15.4s, #0",
            "2:",
            "prfm pldl1keep, [{w}, #2048]",
            "prfm pldl1keep, [{w}, #2176]",
            "prfm pldl1keep, [{w}, #2304]",
            "prfm pldl1keep, [{w}, #2432]",
            "ldp q24, q25, [{w}]",
            "ldp q26, q27, [{w}, #128]",
            "zip1 v16.4s, v24.4s, v26.4s",
            "zip2 v17.4s, v24.4s, v26.4s",
            "zip1 v18.4s, v25.4s, v27.4s",
            "zip2 v19.4s, v25.4s, v27.4s",
            "ldp q24, q25, [{w}, #256]",
            "ldp q26, q27, [{w}, #384]",
            "zip1 v20.4s, v24.4s, v26.4s",
            "zip2 v21.4s, v24.4s, v26.4s",
            "zip1 v22.4s, v25.4s, v27.4s",
            "zip2 v23.4s, v25.4s, v27.4s",
            two_rows!("x0", "x1", 0, 1, 2, 3),
            two_rows!("x2", "x3", 4, 5, 6, 7),
            two_rows!("x4", "x5", 8, 9, 10, 11),
            two_rows!("x6", "x7", 12, 13, 14, 15),
            "add {w}, {w}, #512",
            "subs {pairs}, {pairs}, #4",
            "b.ne 2b",
            store_two_rows!(0, 0, 1, 2, 3),
            store_two_rows!(64, 4, 5, 6, 7),
            store_two_rows!(128, 8, 9, 10, 11),
            store_two_rows!(192, 12, 13, 14, 15),
            x0 = inout(reg) line(0) => _, x1 = inout(reg) line(1) => _, x2 = inout(reg) line(2) => _, x3 = inout(reg) line(3) => _,
            x4 = inout(reg) line(4) => _, x5 = inout(reg) line(5) => _, x6 = inout(reg) line(6) => _, x7 = inout(reg) line(7) => _,
            w = inout(reg) w => _, pairs = inout(reg) pairs => _, sums = in(reg) sums.as_mut_ptr(),
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack)
        );
    }
}
