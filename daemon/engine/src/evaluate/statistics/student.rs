//! Student's t distribution with a whole number of degrees of freedom, by the finite sums of Abramowitz and Stegun (26.7.3 and 26.7.4).

use std::f64::consts::{FRAC_PI_2, PI};

/// Degrees of freedom from which on the normal's expansion (26.7.5) is as good as the sums, and quicker.
const MANY: usize = 1000;

/// The value that a variable stays below with a probability, from .5 on and below 1.
pub(super) fn quantile(probability: f64, freedom: usize) -> f64 {
    let freedom = freedom.max(1);
    let inside = (2.0 * probability - 1.0).clamp(0.0, 1.0 - 1e-12);
    let degrees = freedom.min(MANY);
    let (mut low, mut high) = (0.0, 1.0);
    while central(high, degrees) < inside && high < 1e13 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if central(middle, degrees) < inside { low = middle } else { high = middle }
    }
    let at = (low + high) / 2.0;
    if freedom <= MANY {
        return at;
    }
    // t ≈ z + (z³ + z) / 4ν: from the quantile at MANY to that at `freedom`.
    let shift = |z: f64, freedom: usize| (z * z * z + z) / (4.0 * freedom as f64);
    let z = at - shift(at, MANY);
    z + shift(z, freedom)
}

/// The probability of lying between -t and t.
fn central(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let square = cos * cos;
    // Terms cos^k times a product of odd over even numbers, or of even over odd.
    let sum = |first: f64, mut k: usize| {
        let (mut term, mut sum) = (first, first);
        while k < freedom - 1 {
            term *= square * (k - 1) as f64 / k as f64;
            sum += term;
            k += 2;
        }
        sum
    };
    if freedom == 1 {
        return angle / FRAC_PI_2;
    }
    if freedom.is_multiple_of(2) {
        return sin * sum(1.0, 2);
    }
    2.0 / PI * (angle + sin * sum(cos, 3))
}
