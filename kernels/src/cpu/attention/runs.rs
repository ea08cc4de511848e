//! The inner loops of decode: dot products of one row with neighbouring keys, their exponentials, and weighted values.

use crate::cpu::lanes::Lanes;
use crate::cpu::pages::Keys;
use crate::pages::{KvFormat, PAGE};

/// Elements of a cache line.
const LINE: usize = 32;
/// Most heads whose accumulators are held at once.
const HELD: usize = 4;

#[inline(always)]
pub(super) fn maximum(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 8];
    for x in x.chunks_exact(8) {
        for (top, &x) in lanes.iter_mut().zip(x) {
            *top = if x > *top { x } else { *top };
        }
    }
    lanes.iter().chain(x.chunks_exact(8).remainder()).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Scores of NL neighbouring keys against every head.
///
/// # Safety
/// The features of `L`, NL = `L::N`; `k` has NL rows of D, `q` `[heads][D]`, `block` `[NL][D]`, NL scores behind each `out + h · stride`.
#[inline(always)]
pub(super) unsafe fn dots<L: Lanes, const D: usize, const NL: usize>(
    k: Rows,
    q: *const f32,
    heads: usize,
    block: *mut f32,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for line in (0..NL * D).step_by(LINE) {
            L::prefetch(k.ahead.wrapping_add(line));
            for i in (line..line + LINE).step_by(L::N) {
                L::store(block.add(i), L::load_half(k.rows.add(i), k.format));
            }
        }
        for h in 0..heads {
            let mut acc = [L::splat(0.0); NL];
            for i in (0..D).step_by(L::N) {
                let x = L::load(q.add(h * D + i));
                for (key, acc) in acc.iter_mut().enumerate() {
                    *acc = L::fma(x, L::load(block.add(key * D + i)), *acc);
                }
            }
            L::store(out.add(h * stride), L::sums(acc.as_ptr()));
        }
    }
}

/// Turns a line of scores into exponentials relative to `top` in place and returns their sum.
///
/// # Safety
/// The features of `L`; the line is a multiple of NL = `L::N` long.
#[inline(always)]
pub(super) unsafe fn exponentials<L: Lanes, const NL: usize>(line: &mut [f32], top: f32) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        // a line in which nothing is visible is measured from a finite floor: −∞ − (−∞) never happens
        let from = L::splat(top.max(f32::MIN));
        let mut sum = L::splat(0.0);
        for chunk in line.chunks_exact_mut(NL) {
            let e = L::exp2(L::sub(L::load(chunk.as_ptr()), from));
            L::store(chunk.as_mut_ptr(), e);
            sum = L::add(sum, e);
        }
        let mut lanes = [0.0; NL];
        L::store(lanes.as_mut_ptr(), sum);
        lanes.iter().sum()
    }
}

/// Neighbouring K or V rows of one page, and the rows to ask for meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub rows: *const u16,
    pub ahead: *const u16,
    pub keys: usize,
    pub format: KvFormat,
}

/// Where the value rows from `key` on lie.
pub(super) fn values(cache: &Keys<'_>, key: usize) -> *const u16 {
    let page = cache.v_page(key / PAGE);
    page[page.len() / PAGE * (key % PAGE)..].as_ptr()
}

/// Asks for `elements` of the cache from `p` on, which need not exist.
///
/// # Safety
/// The features of `L`.
#[inline(always)]
pub(super) unsafe fn ask<L: Lanes>(p: *const u16, elements: usize) {
    for line in (0..elements).step_by(LINE) {
        // SAFETY: the caller's contract; a prefetch never faults.
        unsafe { L::prefetch(p.wrapping_add(line)) };
    }
}

/// Adds weighted value rows to the accumulators of every head's partial.
///
/// # Safety
/// The features of `L`; `v.keys` rows of D behind `v.rows`, as many weights behind each `p + h · stride`, `heads` partials of D + 2.
#[inline(always)]
pub(super) unsafe fn gather<L: Lanes, const D: usize, const NL: usize, const NV: usize>(
    v: Rows,
    p: *const f32,
    stride: usize,
    heads: usize,
    partial: &mut [f32],
) {
    const { assert!(D.is_multiple_of(NV * NL) && NL == L::N) };
    let mut h = 0;
    while h < heads {
        let held = HELD.min(heads - h);
        let acc = partial[h * (D + 2) + 2..].as_mut_ptr();
        // SAFETY: the caller's contract, for `held` heads from h on.
        unsafe {
            let p = p.add(h * stride);
            match (held, v.format) {
                (1, KvFormat::Bf16) => add_values::<L, D, NL, NV, 1, true>(v, p, stride, acc),
                (2, KvFormat::Bf16) => add_values::<L, D, NL, NV, 2, true>(v, p, stride, acc),
                (3, KvFormat::Bf16) => add_values::<L, D, NL, NV, 3, true>(v, p, stride, acc),
                (_, KvFormat::Bf16) => add_values::<L, D, NL, NV, HELD, true>(v, p, stride, acc),
                (1, KvFormat::Fp16) => add_values::<L, D, NL, NV, 1, false>(v, p, stride, acc),
                (2, KvFormat::Fp16) => add_values::<L, D, NL, NV, 2, false>(v, p, stride, acc),
                (3, KvFormat::Fp16) => add_values::<L, D, NL, NV, 3, false>(v, p, stride, acc),
                (_, KvFormat::Fp16) => add_values::<L, D, NL, NV, HELD, false>(v, p, stride, acc),
            }
        }
        h += held;
    }
}

#[inline(always)]
unsafe fn add_values<L: Lanes, const D: usize, const NL: usize, const NV: usize, const HEADS: usize, const BF16: bool>(
    v: Rows,
    p: *const f32,
    stride: usize,
    out: *mut f32,
) {
    let format = if BF16 { KvFormat::Bf16 } else { KvFormat::Fp16 };
    // SAFETY: the contract of `gather`.
    unsafe {
        for column in (0..D).step_by(NV * NL) {
            let mut acc = [[L::splat(0.0); NV]; HEADS];
            for (h, acc) in acc.iter_mut().enumerate() {
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = L::load(out.add(h * (D + 2) + column + j * NL));
                }
            }
            for key in 0..v.keys {
                let row = key * D + column;
                for line in (0..NV * NL).step_by(LINE) {
                    L::prefetch(v.ahead.wrapping_add(row + line));
                }
                let mut b = [L::splat(0.0); NV];
                for (j, b) in b.iter_mut().enumerate() {
                    *b = L::load_half(v.rows.add(row + j * NL), format);
                }
                for (h, acc) in acc.iter_mut().enumerate() {
                    let a = L::splat(*p.add(h * stride + key));
                    for (acc, &b) in acc.iter_mut().zip(&b) {
                        *acc = L::fma(a, b, *acc);
                    }
                }
            }
            for (h, acc) in acc.iter().enumerate() {
                for (j, &acc) in acc.iter().enumerate() {
                    L::store(out.add(h * (D + 2) + column + j * NL), acc);
                }
            }
        }
    }
}
