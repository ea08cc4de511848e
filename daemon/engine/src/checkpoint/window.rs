//! Which layers see only a window of keys, and how many: what transformers makes of the families' fields.

use super::CheckpointError;
use super::family::Family;
use super::fields::Fields;
use serde_json::Value;

/// A window where config.json names none, as in transformers.
const UNLESS_TOLD: usize = 4096;

/// Keys of the window and which layers have it; None where no layer has one, or none that is shorter than the context.
pub(super) fn parse(
    config: &Fields<'_>,
    family: Family,
    layers: usize,
    context: usize,
) -> Result<Option<(usize, Vec<bool>)>, CheckpointError> {
    let listed = listed(config, layers)?;
    let switched = config.flag_or("use_sliding_window", false)?;
    let kinds = match family {
        Family::Llama => {
            if switched || listed.as_ref().is_some_and(|kinds| kinds.contains(&true)) {
                let field = if switched { "use_sliding_window" } else { "layer_types" };
                return Err(config.bad(field, "a llama has no windows".into()));
            }
            return Ok(None);
        }
        Family::Mistral => listed.unwrap_or_else(|| vec![true; layers]),
        Family::Qwen2 | Family::Qwen3 if !switched => return Ok(None),
        Family::Qwen2 | Family::Qwen3 => {
            // Zero is allowed: every layer.
            let full = if config.value("max_window_layers").and_then(Value::as_u64) == Some(0) {
                0
            } else {
                config.count_or("max_window_layers", 1 << 10, 28)?
            };
            listed.unwrap_or_else(|| (0..layers).map(|layer| layer >= full).collect())
        }
        Family::Gemma3 => {
            let named = if config.is_null("sliding_window_pattern") { "_sliding_window_pattern" } else { "sliding_window_pattern" };
            let pattern = config.count_or(named, 1 << 10, 6)?;
            listed.unwrap_or_else(|| (1..=layers).map(|n| !n.is_multiple_of(pattern)).collect())
        }
    };
    if !kinds.contains(&true) {
        return Ok(None);
    }
    let keys = if config.is_null("sliding_window") && config.has("sliding_window") {
        if family == Family::Mistral {
            return Ok(None);
        }
        return Err(config.bad("sliding_window", "missing, and there are layers with a window".into()));
    } else {
        config.count_or("sliding_window", 1 << 24, UNLESS_TOLD)?
    };
    // Gemma's layers differ in more than what they see.
    Ok((keys < context || family == Family::Gemma3).then_some((keys, kinds)))
}

/// `layer_types`, where it is there: which layers have a window.
fn listed(config: &Fields<'_>, layers: usize) -> Result<Option<Vec<bool>>, CheckpointError> {
    let field = "layer_types";
    let Some(value) = config.value(field) else { return Ok(None) };
    let list = value.as_array().ok_or_else(|| config.bad(field, "not a list".into()))?;
    if list.len() != layers {
        return Err(config.bad(field, format!("{} entries for {layers} layers", list.len())));
    }
    let kind = |value: &Value| match value.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        Some(other) => {
            Err(CheckpointError::Unsupported { what: "layer type", name: other.to_owned(), supported: "full_attention, sliding_attention" })
        }
        None => Err(config.bad(field, format!("{value} is not a string"))),
    };
    list.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn windows(family: Family, config: Value) -> Result<Option<(usize, Vec<bool>)>, CheckpointError> {
        parse(&Fields::root(Path::new("config.json"), &config).unwrap(), family, 4, 8192)
    }

    fn some(keys: usize, layers: [bool; 4]) -> Option<(usize, Vec<bool>)> {
        Some((keys, layers.to_vec()))
    }

    #[test]
    fn each_family_says_in_its_own_way_which_layers_have_a_window() {
        let (t, f) = (true, false);
        let types = json!(["full_attention", "sliding_attention", "full_attention", "full_attention"]);
        for (family, config, expected) in [
            (Family::Llama, json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]}), None),
            (Family::Mistral, json!({"sliding_window": 100}), some(100, [t; 4])),
            (Family::Mistral, json!({"sliding_window": null}), None),
            (Family::Mistral, json!({}), some(4096, [t; 4])),
            (Family::Mistral, json!({"sliding_window": 8192}), None),
            (Family::Qwen2, json!({"sliding_window": 100}), None),
            (Family::Qwen2, json!({"sliding_window": 100, "use_sliding_window": true, "max_window_layers": 2}), some(100, [f, f, t, t])),
            (Family::Qwen3, json!({"sliding_window": 100, "use_sliding_window": true, "max_window_layers": 0}), some(100, [t; 4])),
            (Family::Qwen3, json!({"sliding_window": 100, "use_sliding_window": true}), None),
            (Family::Qwen3, json!({"sliding_window": 9, "use_sliding_window": true, "layer_types": types}), some(9, [f, t, f, f])),
            (Family::Gemma3, json!({"sliding_window": 512}), some(512, [t; 4])),
            (Family::Gemma3, json!({"sliding_window": 512, "sliding_window_pattern": 3}), some(512, [t, t, f, t])),
            (Family::Gemma3, json!({"sliding_window": 512, "layer_types": types}), some(512, [f, t, f, f])),
        ] {
            assert_eq!(windows(family, config.clone()).unwrap(), expected, "{family:?} {config}");
        }
    }

    #[test]
    fn other_layers_and_lists_that_do_not_fit_are_refused() {
        for (family, config, named) in [
            (Family::Qwen3, json!({"layer_types": ["full_attention", "linear_attention", "x", "y"]}), "`linear_attention`"),
            (Family::Qwen3, json!({"layer_types": ["full_attention"]}), "1 entries for 4 layers"),
            (Family::Gemma3, json!({"layer_types": 3}), "`layer_types`"),
            (Family::Gemma3, json!({"sliding_window": null}), "`sliding_window`"),
            (Family::Mistral, json!({"sliding_window": 0}), "`sliding_window`"),
            (Family::Llama, json!({"use_sliding_window": true}), "`use_sliding_window`"),
        ] {
            let error = windows(family, config.clone()).unwrap_err().to_string();
            assert!(error.contains(named), "{config}: {error}");
        }
    }
}
