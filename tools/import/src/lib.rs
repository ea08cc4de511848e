//! Turns a GGUF file into a Hugging Face checkpoint folder: config, bfloat16 safetensors, tokenizer, chat template.
//!
//! [`import`] streams tensor by tensor in little memory, and the folder appears whole or not at all.

mod error;
mod family;
mod gguf;
mod ladder;
mod model;
mod quant;
mod rope;
mod staging;
mod tensors;
mod tokenizer;
mod weights;

pub use error::ImportError;

use gguf::Gguf;
use model::Model;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use skip_tables::Digest;
use staging::Staging;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading the GGUF file to know it by its SHA-256.
    Hash,
    /// Writing the weights.
    Weights,
}

/// How far a stage is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which stage.
    pub stage: Stage,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// `llama`, `qwen2`, `qwen3` or `gemma3`.
    pub architecture: &'static str,
    /// The model's name as the file gives it.
    pub name: Option<String>,
    /// Tensors written.
    pub tensors: usize,
    /// Length of model.safetensors.
    pub bytes: u64,
    /// SHA-256 of the GGUF file, hexadecimal.
    pub gguf_sha256: String,
    /// SHA-256 of model.safetensors: the checkpoint's content hash.
    pub checkpoint_hash: Digest,
    /// Whether a ladder of scale tables was added (to checkpoints that the importer knows).
    pub ladder: bool,
}

/// Imports `gguf` into the folder `dir`, which must be absent or empty.
///
/// Weights are the file's dequantised values rounded to bfloat16 (nearest even).
///
/// # Errors
/// Typed, naming the file, key or tensor; nothing is left in `dir` then.
pub fn import(gguf: &Path, dir: &Path, mut progress: impl FnMut(Progress)) -> Result<Report, ImportError> {
    let mut file = Gguf::open(gguf)?;
    let model = Model::read(&mut file)?;
    let plans = tensors::plan(&model, &file)?;
    let tokenizer = tokenizer::convert(&file, &model)?;
    let name = file.text_opt("general.name")?.map(str::to_owned);
    let staging = Staging::new(dir)?;
    let gguf_sha256 = hash_file(gguf, &mut progress)?;
    let (checkpoint_hash, bytes) = weights::write(&mut file, &plans, model.head_dim, &staging.path("model.safetensors"), &mut progress)?;

    let mut config = model.config();
    for (key, value) in tokenizer.generation.as_object().into_iter().flatten() {
        config.insert(key.clone(), value.clone());
    }
    let ladder = ladder::keys(&gguf_sha256, checkpoint_hash, &today());
    config.extend(ladder.clone().unwrap_or_default());
    staging.write("config.json", &pretty(&Value::Object(config)))?;
    staging.write("generation_config.json", &pretty(&tokenizer.generation))?;
    staging.write("tokenizer.json", &pretty(&tokenizer.tokenizer))?;
    staging.write("tokenizer_config.json", &pretty(&tokenizer.config))?;
    staging.write("special_tokens_map.json", &pretty(&tokenizer.special_map))?;
    staging.commit()?;
    Ok(Report {
        architecture: model.family.name(),
        name,
        tensors: plans.len(),
        bytes,
        gguf_sha256,
        checkpoint_hash,
        ladder: ladder.is_some(),
    })
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn hash_file(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<String, ImportError> {
    let mut file = File::open(path).map_err(ImportError::io(path))?;
    let total = file.metadata().map_err(ImportError::io(path))?.len();
    let (mut hash, mut buffer, mut done) = (Sha256::new(), vec![0; 1 << 20], 0);
    loop {
        let n = file.read(&mut buffer).map_err(ImportError::io(path))?;
        if n == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..n]);
        done += n as u64;
        progress(Progress { stage: Stage::Hash, done, total });
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The date in UTC, `YYYY-MM-DD`.
fn today() -> String {
    let days = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    date(days)
}

/// Days since 1970-01-01 to a date (Hinnant's `civil_from_days`, for days ≥ 0).
fn date(days: u64) -> String {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_787), "2026-11-30");
    }
}
