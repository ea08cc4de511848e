//! RoPE parameters to per-dimension inverse frequencies: the default form and Llama 3's, as transformers computes them (`modeling_rope_utils.py`).

use super::CheckpointError;
use super::fields::Fields;
use skip_kernels::backend::Rope;

/// From `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5).
pub(super) fn parse(config: &Fields<'_>, head_dim: usize) -> Result<Rope, CheckpointError> {
    let parameters = config.inner("rope_parameters", "rope_parameters.")?;
    let scaling = match parameters {
        Some(p) => Some(p),
        None => config.inner("rope_scaling", "rope_scaling.")?,
    };
    let theta = match &scaling {
        Some(s) if !s.is_null("rope_theta") => s.positive("rope_theta", 1e12)?,
        _ => config.positive_or("rope_theta", 1e12, 10_000.0)?,
    };
    let kind = match &scaling {
        Some(s) if !s.is_null("rope_type") => s.text("rope_type")?,
        Some(s) => s.text_or("type", "default")?,
        None => "default",
    };
    let mut inv_freq = default_frequencies(theta, head_dim);
    match (kind, &scaling) {
        ("default", _) => {}
        ("llama3", Some(s)) => {
            let factor = s.positive("factor", 1e6)?;
            let low = s.positive("low_freq_factor", 1e6)?;
            let high = s.positive("high_freq_factor", 1e6)?;
            if high <= low {
                return Err(s.bad("high_freq_factor", format!("{high} is not above low_freq_factor {low}")));
            }
            let original = s.count("original_max_position_embeddings", 1 << 24)? as f64;
            for f in &mut inv_freq {
                *f = llama3(*f, factor, low, high, original);
            }
        }
        (other, _) => {
            return Err(CheckpointError::Unsupported { what: "rope type", name: other.to_owned(), supported: "default, llama3" });
        }
    }
    Ok(Rope { inv_freq: inv_freq.into_iter().map(|f| f as f32).collect(), factor: 1.0 })
}

/// θ^(−2i/d) for i in 0..d/2.
fn default_frequencies(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-((2 * i) as f64) / head_dim as f64)).collect()
}

/// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
fn llama3(inv_freq: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = std::f64::consts::TAU / inv_freq;
    if wavelength < original / high {
        inv_freq
    } else if wavelength > original / low {
        inv_freq / factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn rope(config: serde_json::Value) -> Result<Rope, CheckpointError> {
        parse(&Fields::root(Path::new("config.json"), &config).unwrap(), 64)
    }

    #[test]
    fn default_frequencies_fall_from_one_to_almost_one_over_theta() {
        let r = rope(json!({"rope_theta": 100000.0})).unwrap();
        assert_eq!(r.inv_freq.len(), 32);
        assert_eq!(r.inv_freq[0], 1.0);
        assert_eq!(r.inv_freq[16], 100000f64.powf(-0.5) as f32);
    }

    /// Values of transformers' `_compute_llama3_parameters` for Llama 3.2 (θ 500000, factor 32, 1/4, 8192, d 64).
    #[test]
    fn llama3_keeps_short_and_stretches_long_wavelengths() {
        let r = rope(json!({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}))
        .unwrap();
        let plain = rope(json!({"rope_theta": 500000.0})).unwrap();
        assert_eq!(r.inv_freq[0], plain.inv_freq[0]);
        assert_eq!(r.inv_freq[31], (500000f64.powf(-62.0 / 64.0) / 32.0) as f32);
        let between = (0..32).filter(|&i| r.inv_freq[i] < plain.inv_freq[i] && r.inv_freq[i] > plain.inv_freq[i] / 32.0).count();
        assert!(between > 0, "some wavelengths are blended");
    }

    #[test]
    fn transformers_5_parameters_are_read() {
        let r = rope(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})).unwrap();
        assert_eq!(r.inv_freq[16], 0.1);
    }

    #[test]
    fn other_rope_types_are_refused_by_name() {
        let e = rope(json!({"rope_scaling": {"type": "yarn", "factor": 4.0}})).unwrap_err();
        assert!(e.to_string().contains("`yarn`"), "{e}");
    }
}
