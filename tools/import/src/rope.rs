//! Rotation scaling: GGUF's keys, or Llama 3's stored divisors, to what config.json calls `rope_scaling`.

use crate::ImportError;
use crate::gguf::Gguf;
use serde_json::{Map, Value, json};

/// `rope_scaling`, None for an unscaled rotation; `key` gives a key of the architecture.
pub(crate) fn scaling(gguf: &mut Gguf, key: impl Fn(&str) -> String, theta: f64, head_dim: usize) -> Result<Option<Value>, ImportError> {
    let divisors = llama3(gguf, theta, head_dim)?;
    let factor_key = key("rope.scaling.factor");
    let factor = match gguf.positive_opt(&factor_key)? {
        Some(factor) => Some(factor),
        // What older files have.
        None => gguf.positive_opt(&key("rope.scale_linear"))?,
    };
    let named = gguf.text_opt(&key("rope.scaling.type"))?;
    // llama.cpp takes a factor without a type for linear.
    let kind = named.unwrap_or(if factor.is_some() { "linear" } else { "none" });
    let needed = || ImportError::MissingKey { key: factor_key.clone() };
    let scaled = match kind {
        "none" => None,
        "linear" => {
            Some(factor.ok_or_else(needed)?).filter(|&factor| factor != 1.0).map(|factor| json!({"rope_type": "linear", "factor": factor}))
        }
        "yarn" => Some(yarn(gguf, &key, factor.ok_or_else(needed)?)?),
        other => {
            return Err(ImportError::Unsupported {
                what: "rope scaling",
                name: other.to_owned(),
                supported: "none, linear, yarn, Llama 3's divisors",
            });
        }
    };
    match (divisors, scaled) {
        (Some(_), Some(_)) => Err(ImportError::key(&key("rope.scaling.type"), "beside frequency divisors in `rope_freqs.weight`")),
        (divisors, scaled) => Ok(divisors.or(scaled)),
    }
}

fn yarn(gguf: &Gguf, key: &impl Fn(&str) -> String, factor: f64) -> Result<Value, ImportError> {
    for (name, neutral) in [("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_log_multiplier", 0.0)] {
        let key = key(name);
        // Zero, too, is a value that changes the arithmetic.
        if gguf.has(&key) && gguf.number(&key)? != neutral {
            return Err(ImportError::key(&key, format!("other than {neutral} is not supported")));
        }
    }
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), json!("yarn"));
    scaling.insert("factor".into(), json!(factor));
    scaling.insert("original_max_position_embeddings".into(), json!(gguf.count(&key("rope.scaling.original_context_length"), 1 << 24)?));
    for (name, field) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
        if let Some(turns) = gguf.positive_opt(&key(&format!("rope.scaling.{name}")))? {
            scaling.insert(field.into(), json!(turns));
        }
    }
    // llama.cpp multiplies what the factor gives; config.json has the product.
    let attention = match gguf.positive_opt(&key("rope.scaling.attn_factor"))? {
        Some(attention) => Some(attention),
        None => gguf.positive_opt(&key("rope.scaling.yarn_attn_factor"))?,
    };
    if let Some(attention) = attention.filter(|&a| a != 1.0) {
        scaling.insert("attention_factor".into(), json!(attention * (0.1 * factor.ln() + 1.0)));
    }
    Ok(Value::Object(scaling))
}

/// Llama 3.1 and later store per-dimension divisors instead of the four numbers they come from. All published ones have
/// low 1, high 4 and 8,192 original positions; the factor is the largest divisor. Taken only if these numbers give the stored divisors.
fn llama3(gguf: &mut Gguf, theta: f64, head_dim: usize) -> Result<Option<Value>, ImportError> {
    const NAME: &str = "rope_freqs.weight";
    let Some(shape) = gguf.shape(NAME) else { return Ok(None) };
    if shape != [head_dim / 2] {
        return Err(ImportError::tensor(NAME, format!("shape {shape:?}; expected [{}]", head_dim / 2)));
    }
    let divisors = gguf.rows(NAME, 0..1)?;
    let (low, high, original) = (1.0, 4.0, 8192.0);
    let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max)).round();
    for (i, &found) in divisors.iter().enumerate() {
        let wavelength = std::f64::consts::TAU * theta.powf((2 * i) as f64 / head_dim as f64);
        let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - smooth) / factor + smooth);
        let off = (expected - f64::from(found)).abs();
        if off.is_nan() || off > 1e-3 * expected {
            return Err(ImportError::tensor(NAME, "frequency divisors other than Llama 3's are not supported"));
        }
    }
    Ok(Some(json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original as u64})))
}
