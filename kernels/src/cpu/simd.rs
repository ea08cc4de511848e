//! Element-wise loops, written once in plain Rust and compiled for each instruction set, where the compiler makes them wide.

use half::bf16;

use super::isa::Isa;

/// Declares `fn name(isa, ...)` that runs `body` compiled for the instruction set.
macro_rules! wide {
    ($($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $name(isa: Isa, $($arg: $ty),*) $(-> $out)? {
            #[inline(always)]
            fn plain($($arg: $ty),*) $(-> $out)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $out)? { plain($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $out)? { plain($($arg),*) }
            match isa {
                // SAFETY: the processor has what `Isa::detect` found.
                #[cfg(target_arch = "x86_64")]
                Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => plain($($arg),*),
            }
        }
    )*};
}

wide! {
    /// x += y.
    pub fn add(x: &mut [f32], y: &[f32]) {
        for (x, &y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }

    /// x += factor · y · w.
    pub fn add_scaled(x: &mut [f32], factor: f32, y: &[f32], w: &[f32]) {
        for ((x, &y), &w) in x.iter_mut().zip(y).zip(w) {
            *x += factor * y * w;
        }
    }

    /// Σ x², in 32 lanes.
    pub fn sum_of_squares(x: &[f32]) -> f32 {
        let (lines, rest) = x.as_chunks::<32>();
        let mut sums = [0f32; 32];
        for line in lines {
            for (sum, &x) in sums.iter_mut().zip(line) {
                *sum += x * x;
            }
        }
        let mut width = 16;
        while width > 0 {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
            width /= 2;
        }
        sums[0] + rest.iter().map(|&x| x * x).sum::<f32>()
    }

    /// out = x · factor · w.
    pub fn scale(x: &[f32], factor: f32, w: &[f32], out: &mut [f32]) {
        for ((out, &x), &w) in out.iter_mut().zip(x).zip(w) {
            *out = x * factor * w;
        }
    }

    /// out = gate · σ(gate) · up.
    pub fn silu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }

    /// out = GELU(gate) · up, tanh form: 0.5 · (1 + tanh u) = σ(2u).
    pub fn gelu_tanh(gate: &[f32], up: &[f32], out: &mut [f32]) {
        const FACTOR: f32 = 1.595_769; // 2 · √(2/π)
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            let u = FACTOR * (gate + 0.044_715 * gate * gate * gate);
            *out = gate / (1.0 + exp(-u)) * up;
        }
    }

    /// Rotates pairs (low, high) by angles of the given cosines and sines.
    pub fn rotate(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
        for (((low, high), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
        }
    }

    /// Rounds to bfloat16.
    pub fn round(x: &[f32], out: &mut [u16]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = round_bits(x);
        }
    }

    /// Cuts into three bfloat16 terms whose sum is x, to float32's last bit or nearly.
    pub fn split(x: &[f32], high: &mut [u16], middle: &mut [u16], low: &mut [u16]) {
        for (((&x, high), middle), low) in x.iter().zip(high).zip(middle).zip(low) {
            *high = round_bits(x);
            let rest = x - widen(*high);
            *middle = round_bits(rest);
            *low = round_bits(rest - widen(*middle));
        }
    }

    /// Rounds to bfloat16 and widens again.
    pub fn rounded(x: &[f32], out: &mut [f32]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = widen(round_bits(x));
        }
    }
}

#[inline(always)]
fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Nearest bfloat16, ties to even; NaN stays NaN.
#[inline(always)]
fn round_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if x.is_nan() { bf16::NAN.to_bits() } else { nearest }
}

/// eˣ within two units in the last place; 0 below −87.3 (where float32 becomes subnormal), finite above 88.7.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOG2E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding and taking off 1.5 · 2²³ rounds to an integer, which then stands in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.33, 88.72);
    let shifted = clamped * LOG2E + MAGIC;
    let n = shifted - MAGIC;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        p = p * r + c;
    }
    let value = p * (r * r) + r + 1.0;
    // 2ⁿ in two factors: n may be 128.
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let two = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let result = value * two(half) * two(n - half);
    if x < -87.33 { 0.0 } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_library_over_its_whole_range() {
        for i in -90_000..=88_700 {
            let x = i as f32 / 1000.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 2.4e-7 * want + 2e-38, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::INFINITY) > 3e38 && exp(f32::NAN).is_nan());
    }

    #[test]
    fn terms_add_up_and_rounding_is_to_nearest_even() {
        let x: Vec<f32> = (0..4000).map(|i| ((i as f32) * 0.37).sin() * 10f32.powi(i % 20 - 10)).chain([0.0, -0.0, 65280.5]).collect();
        for isa in [Isa::Portable, Isa::detect()] {
            let mut t = [const { Vec::new() }; 3].map(|_: Vec<u16>| vec![0u16; x.len()]);
            let [high, middle, low] = &mut t;
            split(isa, &x, high, middle, low);
            for (i, &x) in x.iter().enumerate() {
                assert_eq!(high[i], bf16::from_f32(x).to_bits());
                let sum = f64::from(widen(high[i])) + f64::from(widen(middle[i])) + f64::from(widen(low[i]));
                assert!((sum - f64::from(x)).abs() <= f64::from(x).abs() * 2f64.powi(-24), "{x}: {sum}");
            }
            let mut nan = [0u16];
            round(isa, &[f32::NAN], &mut nan);
            assert!(widen(nan[0]).is_nan());
        }
    }
}
