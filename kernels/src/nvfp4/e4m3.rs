//! The 8-bit scale: 4 exponent bits (bias 7), 3 mantissa bits, no infinities, largest 448.

/// A non-negative E4M3 value, as its byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(u8);

impl E4m3 {
    /// 0.
    pub const ZERO: Self = Self(0);
    const MAX: u8 = 0x7E;
    const NAN: u8 = 0x7F;

    /// Nearest value to `x` ≥ 0, ties to even, saturating at 448; not a number stays so.
    pub fn round(x: f32) -> Self {
        if x.is_nan() {
            return Self(Self::NAN);
        }
        if x < 1.0 / 64.0 {
            // below the normal range the step is 2⁻⁹; 8 steps are the smallest normal, whose byte is 8 as well
            return Self((x * 512.0).round_ties_even() as u8);
        }
        let bits = x.to_bits();
        let rounded = (bits + 0x7_FFFF + (bits >> 20 & 1)) >> 20;
        Self((rounded - (120 << 3)).min(u32::from(Self::MAX)) as u8)
    }

    /// The byte.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The value of a byte; the sign bit is ignored.
    pub fn from_bits(bits: u8) -> Self {
        Self(bits & 0x7F)
    }

    /// The number.
    pub fn value(self) -> f32 {
        match self.0 {
            Self::NAN => f32::NAN,
            b @ 0..8 => f32::from(b) / 512.0,
            b => f32::from_bits((u32::from(b) + (120 << 3)) << 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_rounds_to_itself_and_midpoints_to_the_even_byte() {
        for b in 0..E4m3::MAX {
            let (low, high) = (E4m3(b).value(), E4m3(b + 1).value());
            assert!(low < high);
            assert_eq!(E4m3::round(low).bits(), b);
            assert_eq!(E4m3::round((low + high) / 2.0).bits(), b + (b & 1), "midpoint above {b}");
            assert_eq!(E4m3::round(((low + high) / 2.0).next_down()).bits(), b);
        }
        assert_eq!(E4m3::round(f32::INFINITY).value(), 448.0);
        assert_eq!(E4m3::round(1e-9), E4m3::ZERO);
        assert!(E4m3::round(f32::NAN).value().is_nan());
    }
}
