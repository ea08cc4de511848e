//! The few vector operations that kernels are written over once, for each instruction set.
//!
//! Methods are `#[inline(always)]` so that they compile inside the kernel's own `#[target_feature]` function.

#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(target_arch = "x86_64")]
pub mod x86;

use crate::pages::KvFormat;

/// 2^r on [0, 1), relative error 1.5e-7 evaluated in float32 (minimax fit with the constant term held at 1).
const EXP2: [f32; 5] = [0.693_151_3, 0.240_164_44, 0.055_799_913, 0.009_017_03, 0.001_867_130_2];

/// Below this, 2^x counts as 0: the smallest normal float32.
const EXP2_FLOOR: f32 = -126.0;

/// A vector of float32 and what can be done with it.
///
/// # Safety
/// Every method needs the processor features of its implementation; loads and stores need `N` elements behind the pointer.
pub unsafe trait Lanes: Copy + 'static {
    /// Elements a vector.
    const N: usize;
    /// The vector.
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, rounded once where the processor can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// 2^x for x ≤ 0, −∞ included; 0 at and below `EXP2_FLOOR`.
    unsafe fn exp2(x: Self::V) -> Self::V;
    /// `N` elements of the cache in float32.
    unsafe fn load_half(p: *const u16, format: KvFormat) -> Self::V;
    /// The lower and the upper halves of `N` pairs of 16-bit elements, in float32.
    unsafe fn load_pairs(p: *const u32, format: KvFormat) -> (Self::V, Self::V);
    /// Sums of `N` vectors, one a lane.
    unsafe fn sums(rows: *const Self::V) -> Self::V;
    /// Asks for the cache line at `p`, which may be any address.
    unsafe fn prefetch<T>(p: *const T);
}

/// Plain arrays, left to the compiler's vectoriser: every other processor, and the check on the rest.
#[derive(Clone, Copy)]
pub struct Portable;

const W: usize = 8;

#[inline(always)]
fn map(a: [f32; W], b: [f32; W], f: impl Fn(f32, f32) -> f32) -> [f32; W] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

// SAFETY: no processor feature is needed; pointers are read and written within the trait's contract.
unsafe impl Lanes for Portable {
    const N: usize = W;
    type V = [f32; W];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; W]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller gives `N` readable elements.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller gives `N` writable elements.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| if cfg!(target_arch = "aarch64") { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
    }
    #[inline(always)]
    unsafe fn exp2(x: Self::V) -> Self::V {
        x.map(|x| {
            let y = if x > EXP2_FLOOR { x } else { EXP2_FLOOR };
            // floor without a library call: the argument is at most 0 and above −127
            let n = -((-y).ceil_small());
            let r = y - n as f32;
            let p = EXP2.iter().rev().fold(0.0, |p, c| p * r + c) * r + 1.0;
            let scaled = p * f32::from_bits(((n + 127) as u32) << 23);
            if x > EXP2_FLOOR { scaled } else { 0.0 }
        })
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u16, format: KvFormat) -> Self::V {
        // SAFETY: the caller gives `N` readable elements.
        let bits = unsafe { p.cast::<[u16; W]>().read_unaligned() };
        bits.map(|b| format.decode(b))
    }
    #[inline(always)]
    unsafe fn load_pairs(p: *const u32, format: KvFormat) -> (Self::V, Self::V) {
        // SAFETY: the caller gives `N` readable pairs.
        let pairs = unsafe { p.cast::<[u32; W]>().read_unaligned() };
        match format {
            // half's own way asks for NaN each time, and is not made wide
            KvFormat::Bf16 => (pairs.map(|both| f32::from_bits(both << 16)), pairs.map(|both| f32::from_bits(both & 0xffff_0000))),
            KvFormat::Fp16 => (pairs.map(|both| format.decode(both as u16)), pairs.map(|both| format.decode((both >> 16) as u16))),
        }
    }
    #[inline(always)]
    unsafe fn sums(rows: *const Self::V) -> Self::V {
        // SAFETY: the caller gives `N` vectors.
        std::array::from_fn(|i| unsafe { (*rows.add(i)).iter().sum() })
    }
    #[inline(always)]
    unsafe fn prefetch<T>(_: *const T) {}
}

trait CeilSmall {
    fn ceil_small(self) -> i32;
}

impl CeilSmall for f32 {
    /// ⌈x⌉ for 0 ≤ x < 2³¹.
    #[inline(always)]
    fn ceil_small(self) -> i32 {
        let truncated = self as i32;
        truncated + i32::from(self > truncated as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies `L::exp2` to every element.
    unsafe fn exp2_all<L: Lanes>(x: &mut [f32]) {
        for chunk in x.chunks_exact_mut(L::N) {
            // SAFETY: whole vectors; the caller has the features.
            unsafe { L::store(chunk.as_mut_ptr(), L::exp2(L::load(chunk.as_ptr()))) };
        }
    }

    #[test]
    fn exponentials_are_within_a_millionth_and_vanish_at_minus_infinity() {
        type Set = (&'static str, unsafe fn(&mut [f32]));
        let mut sets: Vec<Set> = vec![("portable", exp2_all::<Portable>)];
        #[cfg(target_arch = "x86_64")]
        {
            use crate::cpu::isa::Isa;
            if Isa::available().contains(&Isa::Avx2) {
                sets.push(("avx2", exp2_all::<x86::Avx2>));
            }
            if Isa::available().contains(&Isa::Avx512) {
                sets.push(("avx512", exp2_all::<x86::Avx512>));
            }
        }
        #[cfg(target_arch = "aarch64")]
        sets.push(("neon", exp2_all::<neon::Neon>));
        let inputs: Vec<f32> = (0..1 << 16).map(|i| -125.99 * (i as f32 / 65536.0)).collect();
        for (name, exp2_all) in sets {
            let mut x = inputs.clone();
            // SAFETY: the set was detected.
            unsafe { exp2_all(&mut x) };
            for (x, y) in inputs.iter().zip(&x) {
                let exact = f64::from(*x).exp2();
                assert!((f64::from(*y) - exact).abs() <= 1e-6 * exact, "{name}: 2^{x} is {exact}, not {y}");
            }
            let mut edge = [f32::NEG_INFINITY, -126.0, -1e30, f32::MIN, 0.0, -0.0, -1.0, -126.5, -5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            // SAFETY: as above.
            unsafe { exp2_all(&mut edge) };
            assert_eq!(edge[..8], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.0], "{name}");
        }
    }
}
