//! OpenAI's `logit_bias`: token ids and what is added to their logits.

use super::error::Error;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// Most entries.
pub const MAX_BIASES: usize = 300;

/// Token ids, each once, and what is added to their logits, −100 to 100. On the wire an object whose keys are the ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias(pub Vec<(u32, f32)>);

impl LogitBias {
    pub(super) fn read(entries: Map<String, Value>) -> Result<Self, Error> {
        if entries.len() > MAX_BIASES {
            return Err(Error::invalid("logit_bias", format!("{} entries; at most {MAX_BIASES}", entries.len())));
        }
        let mut biases: Vec<(u32, f32)> = Vec::with_capacity(entries.len());
        for (id, bias) in entries {
            let wrong = |what: &str| Error::invalid(format!("logit_bias.{id}"), what);
            let token: u32 = id.parse().map_err(|_| wrong("is not a token id"))?;
            let bias =
                bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(|| wrong("must be a number in [-100, 100]"))?;
            if biases.iter().any(|&(other, _)| other == token) {
                return Err(wrong("is there twice"));
            }
            biases.push((token, bias as f32));
        }
        Ok(Self(biases))
    }
}

impl Serialize for LogitBias {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, bias)| (id.to_string(), bias)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<LogitBias, Error> {
        LogitBias::read(value.as_object().unwrap().clone())
    }

    #[test]
    fn ids_and_biases_are_read_within_their_limits() {
        assert_eq!(read(json!({"5": 1, "7": -100})), Ok(LogitBias(vec![(5, 1.0), (7, -100.0)])));
        assert_eq!(serde_json::to_value(LogitBias(vec![(5, 0.5)])).unwrap(), json!({"5": 0.5}));
        for (wrong, name) in [
            (json!({"x": 1}), "logit_bias.x"),
            (json!({"-1": 1}), "logit_bias.-1"),
            (json!({"5": 101}), "logit_bias.5"),
            (json!({"5": "1"}), "logit_bias.5"),
            (json!({"5": 1, "05": 1}), "logit_bias.05"),
            ((0..301).map(|i| (i.to_string(), json!(0))).collect::<Map<_, _>>().into(), "logit_bias"),
        ] {
            assert_eq!(read(wrong).unwrap_err().param.as_deref(), Some(name));
        }
    }
}
