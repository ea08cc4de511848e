//! Tile kernel (AMX) over packed bfloat16 weights, from one row to many: a block of up to 32 rows × 32 features stays in four registers.
//!
//! Activations come as one or more bfloat16 terms that add up to them; three terms carry a float32 whole, so float32 activations
//! cost three tile products, not another kernel. The compiler knows no tile registers, hence the assembly.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::Strip;
use crate::cpu::weights::PANEL;

/// Rows of a tile; also pairs of inputs.
const TILE: usize = 16;
/// Weights asked for ahead of their use: 2 KiB, which the hardware's own prefetch does not reach across pages.
const AHEAD: usize = 512;

/// Asks the system for tile registers; false where the processor or the system has none to give.
pub fn available() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Linux: permission for the whole process to use feature 18, tile data.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) != AMX_BF16 | AMX_TILE {
        return false;
    }
    // SAFETY: the call changes nothing but this permission; a system that does not know it returns an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Tile shapes, as the processor reads them.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Sums in tiles 0 to 3, activations in 4 and 5 (`rows` of them), weights in 6 and 7.
    fn new(rows: usize) -> Self {
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for tile in 0..8 {
            config.bytes[tile] = 64;
            config.rows[tile] = if tile < 6 { rows.min(TILE) as u8 } else { TILE as u8 };
        }
        config
    }
}

/// bfloat16 terms of activations, in pairs: a row holds its terms one after the other, `pairs` pairs each, a multiple of 16; rows behind
/// the last up to a multiple of 16 may be read (and come to nothing).
pub unsafe fn bfloat16(strip: Strip<u32, u32>) {
    let config = Config::new(strip.rows);
    // SAFETY: `available` said yes; the shapes are within palette 1's.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
    for panel in 0..strip.cols.div_ceil(PANEL) {
        let mut row = 0;
        while row < strip.rows {
            // SAFETY: the caller's promise; the block's rows begin within the strip.
            unsafe {
                if strip.rows - row > TILE {
                    block::<true>(&strip, panel, row);
                } else {
                    block::<false>(&strip, panel, row);
                }
            }
            row += 2 * TILE;
        }
    }
    // SAFETY: gives the registers back, so that the system need not save them when the thread is switched out.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// One block of 32 rows (`BOTH`) or 16, and one panel.
#[inline(always)]
unsafe fn block<const BOTH: bool>(strip: &Strip<u32, u32>, panel: usize, row: usize) {
    let terms = strip.x_stride / strip.pairs;
    let x_bytes = strip.x_stride * size_of::<u32>();
    let x = strip.x.wrapping_add(row * strip.x_stride);
    let w = strip.w.wrapping_add(panel * strip.w_stride);
    // SAFETY: all of the assembly: tiles are configured; loads stay within the rows and the panel, stores within `to`, whose rows
    // are `stride` bytes apart. Tile registers live from block to block: nothing else in the program uses them.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        if BOTH {
            asm!("tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        }
        for pair in (0..strip.pairs).step_by(TILE) {
            if row == 0 {
                for line in (0..TILE * PANEL).step_by(16) {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(pair * PANEL + AHEAD + line).cast());
                }
            }
            asm!(
                "tileloadd tmm6, [{w} + {stride}]",
                "tileloadd tmm7, [{w} + {stride} + 64]",
                w = in(reg) w.wrapping_add(pair * PANEL), stride = in(reg) PANEL * size_of::<u32>(), options(nostack, readonly)
            );
            for term in 0..terms {
                let x = x.wrapping_add(term * strip.pairs + pair);
                asm!(
                    "tileloadd tmm4, [{x} + {stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    x = in(reg) x, stride = in(reg) x_bytes, options(nostack, readonly)
                );
                if BOTH {
                    asm!(
                        "tileloadd tmm5, [{x} + {stride}]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7",
                        x = in(reg) x.wrapping_add(TILE * strip.x_stride), stride = in(reg) x_bytes, options(nostack, readonly)
                    );
                }
            }
        }
        let rows = (strip.rows - row).min(if BOTH { 2 * TILE } else { TILE });
        let cols = (strip.cols - panel * PANEL).min(PANEL);
        let out = strip.out.wrapping_add(row * strip.out_stride + panel * PANEL);
        // With fewer rows than a tile has, tiles have no more.
        if (rows % TILE == 0 || strip.rows < TILE) && cols == PANEL {
            store::<BOTH>(out, strip.out_stride);
        } else {
            let mut whole = [0f32; 2 * TILE * PANEL];
            store::<BOTH>(whole.as_mut_ptr(), PANEL);
            for r in 0..rows {
                std::ptr::copy_nonoverlapping(whole[r * PANEL..].as_ptr(), out.wrapping_add(r * strip.out_stride), cols);
            }
        }
    }
}

#[inline(always)]
unsafe fn store<const BOTH: bool>(to: *mut f32, stride: usize) {
    let bytes = stride * size_of::<f32>();
    // SAFETY: as in `block`.
    unsafe {
        asm!(
            "tilestored [{to} + {bytes}], tmm0",
            "tilestored [{to} + {bytes} + 64], tmm1",
            to = in(reg) to, bytes = in(reg) bytes, options(nostack)
        );
        if BOTH {
            asm!(
                "tilestored [{to} + {bytes}], tmm2",
                "tilestored [{to} + {bytes} + 64], tmm3",
                to = in(reg) to.wrapping_add(TILE * stride), bytes = in(reg) bytes, options(nostack)
            );
        }
    }
}
