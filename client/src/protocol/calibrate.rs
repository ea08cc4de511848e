//! Job `calibrate`: what it takes and what it finds.

use super::error::Error;
use super::fields::{Fields, whole_paths};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Options of job `calibrate`; all may be left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrateOptions {
    /// `prefill`, `decode` or `both`.
    pub phase: CalibratePhase,
    /// Longest prompt that is calibrated, in tokens; None: as long as a request may be. Beyond it attention is dense.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seqlen: Option<usize>,
    /// First length of the first bin, in tokens.
    pub bin_min: usize,
    /// From one bin to the next, in tokens.
    pub bin_step: usize,
    /// Shares of tiles to skip, each above 0 and below 1: a tier of the ladder each.
    pub target_sparsity: Vec<f64>,
    /// The tier to put in force; where no length reaches it, the highest that one does. None: .75, or the highest tier if that is not one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy: Option<f64>,
    /// Advice is `on` while mass / share stays below this.
    pub mass_ratio: f64,
    /// Files and folders of text, on the daemon's machine, absolute; empty: what the system has of documentation, licences and source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corpus: Vec<String>,
    /// Prompts a bin.
    pub samples: usize,
    /// Tokens drawn behind each prompt to measure decode.
    pub decode_tokens: u32,
    /// Chooses the texts.
    pub seed: u64,
    /// Prompts a bin, of other texts of the same kinds, to run under the new tables and tell what they skip; 0: none.
    pub check: usize,
    /// Folder for what was measured, absolute, to go on after a restart; None: in the daemon's state folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<String>,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self {
            phase: CalibratePhase::Prefill,
            max_seqlen: None,
            bin_min: 4096,
            bin_step: 2048,
            target_sparsity: vec![0.5, 0.6, 0.75, 0.8],
            deploy: None,
            mass_ratio: 0.3,
            corpus: Vec::new(),
            samples: 8,
            decode_tokens: 32,
            seed: 0,
            check: 0,
            cache_dir: None,
        }
    }
}

/// What is calibrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalibratePhase {
    /// Prompts.
    #[default]
    Prefill,
    /// Tokens drawn.
    Decode,
    /// Both.
    Both,
}

/// Most of each, so that a slip does not keep the daemon busy for days.
const MOST_TIERS: usize = 16;
const MOST_SAMPLES: usize = 256;
const MOST_DECODED: u32 = 1024;

impl CalibrateOptions {
    /// Reads a job's options.
    ///
    /// # Errors
    /// Names the option that is unknown, of another type, or out of range.
    pub fn from_map(options: &Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Fields::new(options.clone());
        let defaults = Self::default();
        let found = Self {
            phase: fields.optional("phase")?.unwrap_or_default(),
            max_seqlen: fields.optional("max_seqlen")?,
            bin_min: fields.optional("bin_min")?.unwrap_or(defaults.bin_min),
            bin_step: fields.optional("bin_step")?.unwrap_or(defaults.bin_step),
            target_sparsity: fields.optional("target_sparsity")?.unwrap_or(defaults.target_sparsity),
            deploy: fields.optional("deploy")?,
            mass_ratio: fields.optional("mass_ratio")?.unwrap_or(defaults.mass_ratio),
            corpus: fields.optional("corpus")?.unwrap_or_default(),
            samples: fields.optional("samples")?.unwrap_or(defaults.samples),
            decode_tokens: fields.optional("decode_tokens")?.unwrap_or(defaults.decode_tokens),
            seed: fields.optional("seed")?.unwrap_or_default(),
            check: fields.optional("check")?.unwrap_or_default(),
            cache_dir: fields.optional("cache_dir")?,
        };
        fields.end()?;
        found.validate()
    }

    fn validate(self) -> Result<Self, Error> {
        let outside = |share: &f64| !(*share > 0.0 && *share < 1.0);
        if self.target_sparsity.is_empty() || self.target_sparsity.len() > MOST_TIERS {
            return Err(Error::invalid("target_sparsity", format!("from 1 to {MOST_TIERS} shares")));
        }
        if let Some(share) = self.target_sparsity.iter().find(|share| outside(share)) {
            return Err(Error::invalid("target_sparsity", format!("{share} is not a share above 0 and below 1")));
        }
        if let Some(share) = self.deploy.filter(|share| !self.target_sparsity.contains(share)) {
            return Err(Error::invalid("deploy", format!("{share} is none of the target_sparsity")));
        }
        if !(self.mass_ratio > 0.0 && self.mass_ratio.is_finite()) {
            return Err(Error::invalid("mass_ratio", format!("{} is not above 0", self.mass_ratio)));
        }
        if !(1..=MOST_SAMPLES).contains(&self.samples) {
            return Err(Error::invalid("samples", format!("from 1 to {MOST_SAMPLES}")));
        }
        if self.check > MOST_SAMPLES {
            return Err(Error::invalid("check", format!("at most {MOST_SAMPLES}")));
        }
        if !(1..=MOST_DECODED).contains(&self.decode_tokens) {
            return Err(Error::invalid("decode_tokens", format!("from 1 to {MOST_DECODED}")));
        }
        whole_paths("corpus", &self.corpus)?;
        whole_paths("cache_dir", &self.cache_dir)?;
        Ok(self)
    }

    /// The tier to put in force, where it is reached.
    pub fn wanted(&self) -> f64 {
        let highest = self.target_sparsity.iter().copied().fold(0.0, f64::max);
        self.deploy.unwrap_or(if self.target_sparsity.contains(&0.75) { 0.75 } else { highest })
    }
}

/// What job `calibrate` found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// The file that has the tables now: the checkpoint's config.json, or where that cannot be written, one in the state folder.
    pub written: String,
    /// Where the file before is kept, if there was one: the first of all in `….bak`, the last in `….bak.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// A phase each.
    pub phases: Vec<CalibratedPhase>,
    /// What tables skip of other texts, where asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub check: Vec<CheckedBin>,
    /// What a reader must know of it: bins that were kept and were of no use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Seconds it took, bins of an earlier run not counted.
    pub seconds: f64,
}

/// One phase's ladder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibratedPhase {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The tier in force; None: none was reached.
    pub deployed: Option<String>,
    /// Tiers, lowest first.
    pub tiers: Vec<CalibratedTier>,
    /// The verdict; None where nothing is skipped.
    pub advice: Option<Value>,
}

/// One tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibratedTier {
    /// `50%`.
    pub tier: String,
    /// A row a bin.
    pub rows: Vec<CalibratedRow>,
}

/// One bin of a tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibratedRow {
    /// First length, in tokens.
    pub first_length: usize,
    /// S; None: no threshold below 1 reaches the tier.
    pub s: Option<f64>,
    /// Share of tiles skipped, over all prompts and layers: at S, or the largest there is.
    pub share: f64,
    /// Share of softmax mass skipped with them.
    pub mass: f64,
    /// Smallest and largest share of a prompt.
    pub spread: [f64; 2],
}

/// One bin and phase of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckedBin {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The tier that was in force.
    pub tier: String,
    /// First length, in tokens.
    pub first_length: usize,
    /// Share skipped of all texts together.
    pub share: f64,
    /// Smallest and largest share of a text.
    pub spread: [f64; 2],
    /// Texts.
    pub texts: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(options: Value) -> Result<CalibrateOptions, Error> {
        CalibrateOptions::from_map(options.as_object().unwrap())
    }

    #[test]
    fn options_go_there_and_back() {
        assert_eq!(read(json!({})).unwrap(), CalibrateOptions::default());
        let options = CalibrateOptions {
            phase: CalibratePhase::Both,
            max_seqlen: Some(8192),
            corpus: vec!["/a".into()],
            check: 8,
            ..CalibrateOptions::default()
        };
        assert_eq!(read(serde_json::to_value(&options).unwrap()).unwrap(), options);
    }

    #[test]
    fn the_deployed_tier_is_75_percent_or_the_highest() {
        assert_eq!(CalibrateOptions::default().wanted(), 0.75);
        assert_eq!(read(json!({"target_sparsity": [0.3, 0.5]})).unwrap().wanted(), 0.5);
        assert_eq!(read(json!({"target_sparsity": [0.3, 0.5], "deploy": 0.3})).unwrap().wanted(), 0.3);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (options, field) in [
            (json!({"phases": "both"}), "phases"),
            (json!({"phase": "all"}), "phase"),
            (json!({"bin_min": -1}), "bin_min"),
            (json!({"target_sparsity": []}), "target_sparsity"),
            (json!({"target_sparsity": [50]}), "target_sparsity"),
            (json!({"deploy": 0.4}), "deploy"),
            (json!({"mass_ratio": 0}), "mass_ratio"),
            (json!({"samples": 0}), "samples"),
            (json!({"check": 1000}), "check"),
            (json!({"decode_tokens": 0}), "decode_tokens"),
            (json!({"cache_dir": ""}), "cache_dir"),
            (json!({"cache_dir": "cache"}), "cache_dir"),
            (json!({"corpus": ["/a", "./b"]}), "corpus"),
        ] {
            assert_eq!(read(options.clone()).unwrap_err().param.as_deref(), Some(field), "{options}");
        }
    }
}
