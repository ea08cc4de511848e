//! RoPE parameters to per-dimension inverse frequencies, as transformers computes them (`modeling_rope_utils.py`): the default form, linear and
//! dynamic scaling, YaRN and Llama 3's.

use super::CheckpointError;
use super::family::Family;
use super::fields::Fields;
use skip_kernels::backend::Rope;
use std::f64::consts::TAU;

/// The rotations of a decoder.
#[derive(Debug)]
pub(super) struct Rotations {
    /// Of layers that see everything.
    pub full: Rope,
    /// Of layers with a window.
    pub windowed: Rope,
    /// Longest sequence they are for.
    pub context: usize,
}

/// From `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (transformers 5); `trained` is `max_position_embeddings`.
pub(super) fn parse(config: &Fields<'_>, family: Family, head_dim: usize, trained: usize) -> Result<Rotations, CheckpointError> {
    let parameters = config.inner("rope_parameters", "rope_parameters.")?;
    let each = match &parameters {
        Some(p) => {
            let inner =
                |name, prefix| if p.value(name).is_some_and(serde_json::Value::is_object) { p.inner(name, prefix) } else { Ok(None) };
            (inner("full_attention", "rope_parameters.full_attention.")?, inner("sliding_attention", "rope_parameters.sliding_attention.")?)
        }
        None => (None, None),
    };
    let form = Form { head_dim, trained };
    let by_layer = each.0.is_some() || each.1.is_some();
    let scaling = match (each.0, parameters) {
        (Some(full), _) => Some(full),
        (None, Some(p)) if !by_layer => Some(p),
        (None, _) => config.inner("rope_scaling", "rope_scaling.")?,
    };
    let gemma = family == Family::Gemma3;
    let theta = config.positive_or("rope_theta", 1e12, if gemma { 1e6 } else { 1e4 })?;
    let (full, context) = form.rotation(theta, scaling.as_ref())?;
    let windowed = match &each.1 {
        Some(windowed) => form.rotation(if gemma { 1e4 } else { theta }, Some(windowed))?.0,
        None if gemma => form.rotation(config.positive_or("rope_local_base_freq", 1e12, 1e4)?, None)?.0,
        None => full.clone(),
    };
    Ok(Rotations { full, windowed, context })
}

/// What all rotations of a model share.
struct Form {
    head_dim: usize,
    trained: usize,
}

impl Form {
    /// A rotation, and the longest sequence it is for. A `rope_theta` of its own goes before `theta`.
    fn rotation(&self, theta: f64, scaling: Option<&Fields<'_>>) -> Result<(Rope, usize), CheckpointError> {
        let plain = |theta| (frequencies(theta, self.head_dim), 1.0, self.trained);
        let Some(s) = scaling else { return Ok(rope(plain(theta))) };
        let theta = s.positive_or("rope_theta", 1e12, theta)?;
        if s.fraction_or("partial_rotary_factor", 1.0)? != 1.0 {
            return Err(s.bad("partial_rotary_factor", "partial rotation is not supported".into()));
        }
        let kind = if s.is_null("rope_type") { s.text_or("type", "default")? } else { s.text("rope_type")? };
        match kind {
            "default" => Ok(rope(plain(theta))),
            "linear" => {
                let factor = s.positive("factor", 1e6)?;
                let stretched = frequencies(theta, self.head_dim).into_iter().map(|f| f / factor).collect();
                Ok(rope((stretched, 1.0, self.trained)))
            }
            // It changes frequencies only beyond the trained length, where keys that are cached would have to be rotated anew.
            "dynamic" => {
                s.positive("factor", 1e6)?;
                if !s.is_null("alpha") {
                    return Err(s.bad("alpha", "not supported".into()));
                }
                Ok(rope(plain(theta)))
            }
            "yarn" => self.yarn(theta, s).map(rope),
            "llama3" => self.llama3(theta, s).map(rope),
            other => Err(CheckpointError::Unsupported {
                what: "rope type",
                name: other.to_owned(),
                supported: "default, linear, dynamic, yarn, llama3",
            }),
        }
    }

    /// Long wavelengths are stretched by the factor, short ones kept, those between blended.
    fn llama3(&self, theta: f64, s: &Fields<'_>) -> Result<Scaled, CheckpointError> {
        let factor = s.positive("factor", 1e6)?;
        let low = s.positive("low_freq_factor", 1e6)?;
        let high = s.positive("high_freq_factor", 1e6)?;
        if high <= low {
            return Err(s.bad("high_freq_factor", format!("{high} is not above low_freq_factor {low}")));
        }
        let original = s.count("original_max_position_embeddings", 1 << 24)? as f64;
        let blend = |f: f64| {
            let kept = ((original * f / TAU - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - kept) * f / factor + kept * f
        };
        Ok((frequencies(theta, self.head_dim).into_iter().map(blend).collect(), 1.0, self.trained))
    }

    /// YaRN (arXiv 2309.00071): dimensions that turn often within the original length are kept, those that turn rarely stretched, those between
    /// blended by their place; cosines and sines grow with the logarithm of the factor.
    fn yarn(&self, theta: f64, s: &Fields<'_>) -> Result<Scaled, CheckpointError> {
        let original = s.count_or("original_max_position_embeddings", 1 << 24, self.trained)?;
        let factor = s.positive_or("factor", 1e6, self.trained as f64 / original as f64)?;
        let (fast, slow) = (s.positive_or("beta_fast", 1e6, 32.0)?, s.positive_or("beta_slow", 1e6, 1.0)?);
        if fast <= slow {
            return Err(s.bad("beta_fast", format!("{fast} is not above beta_slow {slow}")));
        }
        let dims = self.head_dim as f64;
        // The dimension that turns so many times.
        let place = |turns: f64| dims * (original as f64 / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (mut first, mut last) = (place(fast), place(slow));
        if s.flag_or("truncate", true)? {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, last) = (first.max(0.0), last.min(dims - 1.0));
        let span = if first == last { 0.001 } else { last - first };
        let blend = |(i, f): (usize, f64)| {
            let stretched = ((i as f64 - first) / span).clamp(0.0, 1.0);
            f / factor * stretched + f * (1.0 - stretched)
        };
        let scaled = frequencies(theta, self.head_dim).into_iter().enumerate().map(blend).collect();
        let context = self.trained.max((original as f64 * factor) as usize);
        Ok((scaled, yarn_attention(s, factor)?, context))
    }
}

/// Frequencies, the factor on cosines and sines, the longest sequence.
type Scaled = (Vec<f64>, f64, usize);

fn rope((frequencies, factor, context): Scaled) -> (Rope, usize) {
    (Rope { inv_freq: frequencies.into_iter().map(|f| f as f32).collect(), factor: factor as f32 }, context)
}

/// θ^(−2i/d) for i in 0..d/2.
fn frequencies(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-((2 * i) as f64) / head_dim as f64)).collect()
}

/// What YaRN multiplies cosines and sines by.
fn yarn_attention(s: &Fields<'_>, factor: f64) -> Result<f64, CheckpointError> {
    if !s.is_null("attention_factor") {
        return s.positive("attention_factor", 1e3);
    }
    let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    // Zero means absent.
    let given = |field: &str| {
        if s.value(field).and_then(serde_json::Value::as_f64) == Some(0.0) { Ok(0.0) } else { s.positive_or(field, 1e3, 0.0) }
    };
    let (numerator, denominator) = (given("mscale")?, given("mscale_all_dim")?);
    Ok(if numerator > 0.0 && denominator > 0.0 { scale(numerator) / scale(denominator) } else { scale(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::path::Path;

    fn rotations(family: Family, config: Value) -> Result<Rotations, CheckpointError> {
        parse(&Fields::root(Path::new("config.json"), &config).unwrap(), family, 64, 4096)
    }

    fn rope(config: Value) -> Rope {
        rotations(Family::Llama, config).unwrap().full
    }

    #[test]
    fn default_frequencies_fall_from_one_to_almost_one_over_theta() {
        let r = rope(json!({"rope_theta": 100000.0}));
        assert_eq!(r.inv_freq.len(), 32);
        assert_eq!(r.inv_freq[0], 1.0);
        assert_eq!(r.inv_freq[16], 100000f64.powf(-0.5) as f32);
        assert_eq!(
            r,
            rope(json!({"rope_theta": 100000.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}})),
            "within the trained length"
        );
    }

    /// Values of transformers' `_compute_llama3_parameters` for Llama 3.2 (θ 500000, factor 32, 1/4, 8192, d 64).
    #[test]
    fn llama3_keeps_short_and_stretches_long_wavelengths() {
        let r = rope(json!({"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}));
        let plain = rope(json!({"rope_theta": 500000.0}));
        assert_eq!(r.inv_freq[0], plain.inv_freq[0]);
        assert_eq!(r.inv_freq[31], (500000f64.powf(-62.0 / 64.0) / 32.0) as f32);
        let between = (0..32).filter(|&i| r.inv_freq[i] < plain.inv_freq[i] && r.inv_freq[i] > plain.inv_freq[i] / 32.0).count();
        assert!(between > 0, "some wavelengths are blended");
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let r = rope(json!({"rope_scaling": {"type": "linear", "factor": 4.0}}));
        let plain = rope(json!({}));
        assert!(r.inv_freq.iter().zip(&plain.inv_freq).all(|(a, b)| *a == b / 4.0));
    }

    #[test]
    fn yarn_keeps_fast_and_stretches_slow_dimensions_and_the_context() {
        let yarn = |extra: Value| {
            let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048});
            scaling.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            rotations(Family::Qwen3, json!({"rope_theta": 10000.0, "rope_scaling": scaling})).unwrap()
        };
        let (r, plain) = (yarn(json!({})), rope(json!({"rope_theta": 10000.0})));
        assert_eq!(r.full.inv_freq[0], plain.inv_freq[0]);
        assert_eq!(r.full.inv_freq[31], plain.inv_freq[31] / 4.0);
        assert_eq!((r.full.factor, r.context), ((0.1 * 4f64.ln() + 1.0) as f32, 8192));
        assert_eq!(yarn(json!({"attention_factor": 1.5})).full.factor, 1.5);
        let ratio = (0.1 * 0.5 * 4f64.ln() + 1.0) / (0.1 * 2.0 * 4f64.ln() + 1.0);
        assert_eq!(yarn(json!({"mscale": 0.5, "mscale_all_dim": 2.0})).full.factor, ratio as f32);
        assert_ne!(yarn(json!({"truncate": false})).full.inv_freq, r.full.inv_freq);
    }

    #[test]
    fn transformers_5_parameters_are_read() {
        assert_eq!(rope(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})).inv_freq[16], 0.1);
        let both = json!({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}});
        let r = rotations(Family::Gemma3, both).unwrap();
        assert_eq!((r.full.inv_freq[16], r.windowed.inv_freq[16]), (0.0125, 0.01));
    }

    #[test]
    fn gemma_has_a_rotation_of_its_own_in_layers_with_a_window() {
        let r = rotations(Family::Gemma3, json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}})).unwrap();
        assert_eq!((r.full.inv_freq[16], r.windowed.inv_freq[16]), (0.001 / 8.0, 0.01));
        let r = rotations(Family::Gemma3, json!({"rope_theta": 100.0, "rope_local_base_freq": 10000.0})).unwrap();
        assert_eq!((r.full.inv_freq[16], r.windowed.inv_freq[16]), (0.1, 0.01));
        let r = rotations(Family::Mistral, json!({"rope_theta": 100.0})).unwrap();
        assert_eq!(r.full, r.windowed);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (config, named) in [
            (json!({"rope_scaling": {"type": "longrope", "factor": 4.0}}), "`longrope`"),
            (json!({"rope_scaling": {"rope_type": "mrope"}}), "`mrope`"),
            (json!({"rope_parameters": {"rope_type": "proportional"}}), "`proportional`"),
            (json!({"rope_parameters": {"partial_rotary_factor": 0.5}}), "`rope_parameters.partial_rotary_factor`"),
            (json!({"rope_scaling": {"type": "linear"}}), "`rope_scaling.factor`"),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}}), "`rope_scaling.alpha`"),
            (json!({"rope_scaling": {"type": "yarn", "factor": 0.0}}), "`rope_scaling.factor`"),
            (json!({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}}), "`rope_scaling.beta_fast`"),
            (json!({"rope_scaling": 4}), "`rope_scaling`"),
        ] {
            let error = rotations(Family::Llama, config.clone()).unwrap_err().to_string();
            assert!(error.contains(named), "{config}: {error}");
        }
    }
}
