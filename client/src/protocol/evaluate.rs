//! Job `evaluate`: what it takes.

use super::error::Error;
use super::fields::{Fields, whole_paths};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Options of job `evaluate`; all may be left out. Files are read on the daemon's machine; their paths are absolute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluateOptions {
    /// Tokens of a RULER item with its answer; longer items of other sets are cut to it. None: as long as a request may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_context: Option<usize>,
    /// Which phases skip, besides dense: `prefill`, `decode`, `both`; `dense` alone scores without comparing. Empty: every phase that has a table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arm: Vec<String>,
    /// The tier of the checkpoint's ladders to try; None: the tables in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Items of each RULER task; 0: no RULER.
    pub samples: usize,
    /// RULER tasks; empty: all that can be made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
    /// Text for haystacks; empty: what the system has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corpus: Vec<String>,
    /// SQuAD's JSON, for qa_1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qa_1: Option<String>,
    /// HotpotQA's JSON, for qa_2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qa_2: Option<String>,
    /// MMLU: CSV or JSONL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mmlu: Option<String>,
    /// Questions of MMLU.
    pub mmlu_samples: usize,
    /// A folder of LongBench's JSONL files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longbench: Option<String>,
    /// Questions of own: JSONL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_file: Option<String>,
    /// Dense scores of an earlier run, instead of running dense again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Names the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The largest drop of the mean score that passes, 0 to 1.
    pub max_drop: f64,
    /// Tokens an answer may think before it counts.
    pub thinking_budget: usize,
    /// Chooses the items.
    pub seed: u64,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self {
            max_context: None,
            arm: Vec::new(),
            tier: None,
            samples: 8,
            tasks: Vec::new(),
            corpus: Vec::new(),
            qa_1: None,
            qa_2: None,
            mmlu: None,
            mmlu_samples: 200,
            longbench: None,
            tasks_file: None,
            baseline: None,
            label: None,
            max_drop: 0.03,
            thinking_budget: 0,
            seed: 0,
        }
    }
}

/// Most items of a task.
const MOST: usize = 10_000;

impl EvaluateOptions {
    /// Reads a job's options.
    ///
    /// # Errors
    /// Names the option that is unknown, of another type, or out of range.
    pub fn from_map(options: &Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Fields::new(options.clone());
        let d = Self::default();
        let found = Self {
            max_context: fields.optional("max_context")?,
            arm: fields.optional("arm")?.unwrap_or_default(),
            tier: fields.optional("tier")?,
            samples: fields.optional("samples")?.unwrap_or(d.samples),
            tasks: fields.optional("tasks")?.unwrap_or_default(),
            corpus: fields.optional("corpus")?.unwrap_or_default(),
            qa_1: fields.optional("qa_1")?,
            qa_2: fields.optional("qa_2")?,
            mmlu: fields.optional("mmlu")?,
            mmlu_samples: fields.optional("mmlu_samples")?.unwrap_or(d.mmlu_samples),
            longbench: fields.optional("longbench")?,
            tasks_file: fields.optional("tasks_file")?,
            baseline: fields.optional("baseline")?,
            label: fields.optional("label")?,
            max_drop: fields.optional("max_drop")?.unwrap_or(d.max_drop),
            thinking_budget: fields.optional("thinking_budget")?.unwrap_or_default(),
            seed: fields.optional("seed")?.unwrap_or_default(),
        };
        fields.end()?;
        if let Some(arm) = found.arm.iter().find(|arm| !["dense", "prefill", "decode", "both"].contains(&arm.as_str())) {
            return Err(Error::invalid("arm", format!("`{arm}` is none of dense, prefill, decode, both")));
        }
        if !(0.0..=1.0).contains(&found.max_drop) {
            return Err(Error::invalid("max_drop", format!("{} is not from 0 to 1", found.max_drop)));
        }
        for (name, count) in [("samples", found.samples), ("mmlu_samples", found.mmlu_samples)] {
            if count > MOST {
                return Err(Error::invalid(name, format!("at most {MOST}")));
            }
        }
        if found.thinking_budget > 1 << 20 {
            return Err(Error::invalid("thinking_budget", "at most 1048576"));
        }
        whole_paths("corpus", &found.corpus)?;
        let files = [("qa_1", &found.qa_1), ("qa_2", &found.qa_2), ("mmlu", &found.mmlu), ("longbench", &found.longbench)];
        for (name, path) in files.into_iter().chain([("tasks_file", &found.tasks_file), ("baseline", &found.baseline)]) {
            whole_paths(name, path)?;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_go_there_and_back_and_what_is_wrong_is_named() {
        let read = |options: Value| EvaluateOptions::from_map(options.as_object().unwrap());
        let options =
            EvaluateOptions { max_context: Some(4096), arm: vec!["both".into()], mmlu: Some("/a".into()), ..EvaluateOptions::default() };
        assert_eq!(read(serde_json::to_value(&options).unwrap()).unwrap(), options);
        for (options, param) in [
            (json!({"arm": ["some"]}), "arm"),
            (json!({"max_drop": 2}), "max_drop"),
            (json!({"items": 1}), "items"),
            (json!({"samples": 20_000}), "samples"),
            (json!({"corpus": [""]}), "corpus"),
            (json!({"mmlu": "mmlu.csv"}), "mmlu"),
            (json!({"baseline": "../a.json"}), "baseline"),
        ] {
            assert_eq!(read(options).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
