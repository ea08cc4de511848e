//! Opens a checkpoint's folder and starts an engine on it.

use crate::config::{BackendChoice, Config, KvChoice, PrecisionChoice};
use crate::device::{self, Choice, Chosen};
use crate::fallback::place;
use crate::faults::{Faults, Rung};
use crate::faulty::start;
use crate::forms::Forms;
use crate::load::{LoadError, is_device_fault};
use crate::state::{Daemon, Model, SamplingDefaults};
use crate::tables::{Opened, Paths};
use crate::text;
use serde_json::{Map, Value};
use skip_engine::EngineOptions;
use skip_engine::checkpoint::Checkpoint;
use skip_engine::decoder;
use skip_engine::engine::{CacheSize, EngineError};
use skip_kernels::cpu::{self, CpuBackend, CpuOptions, Precision};
use skip_kernels::cuda::{self, CudaBackend, CudaOptions};
use skip_kernels::system::System;
use skip_kernels::{KernelError, KvFormat};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The model of a configuration: folder, tokenizer and tables are read here, the weights by the engine's thread afterwards.
pub fn open(daemon: &Daemon) -> Result<Model, LoadError> {
    let config = &daemon.config;
    let failed = |reason: String| LoadError::Model { path: config.model.display().to_string(), reason };
    let checkpoint = Arc::new(Checkpoint::open(&config.model).map_err(|e| failed(e.to_string()))?);
    let defaults = sampling_defaults(&config.model).map_err(failed)?;
    let tables =
        Opened::read(Paths { state_dir: config.state_dir.clone(), admin: config.tables_file.clone(), checkpoint: config.model.clone() });
    let cpu = CpuOptions { threads: config.threads, precision: precision(config.precision) };
    let needs = device::needs(&checkpoint, kv_format(config.kv)).map_err(failed)?;
    let choice = device::choose(daemon, &checkpoint, needs).map_err(failed)?;
    let architecture = checkpoint.architecture();
    let (family, layers, vocabulary) = (architecture.family.name(), architecture.layers as u32, architecture.vocab);
    let voting_layers = (0..architecture.layers).filter(|&layer| architecture.window(layer).is_none()).count() as u32;
    let start_on = |choice: &Choice| {
        // What is not relied on any more has no more faults to show.
        let pretence = config.pretence.filter(|_| choice.rung != Rung::Cpu);
        let options = engine_options(config, &choice.chosen, tables.in_force());
        let room = room_for_cache(&choice.chosen, &checkpoint, &options, cpu, &config.system());
        let options = EngineOptions { cache_room: room, ..options };
        match &choice.chosen {
            Chosen::Cpu => {
                let system = config.system();
                start(options, &config.model_name, checkpoint.clone(), pretence, move || Ok(CpuBackend::within(cpu, system)))
            }
            Chosen::Cuda { options: cuda, .. } => {
                let cuda = CudaOptions { max_samples: options.max_running, ..cuda.clone() };
                let open = move || CudaBackend::new(cuda).map_err(|error| KernelError::Device(error.to_string()));
                start(options, &config.model_name, checkpoint.clone(), pretence, open)
            }
        }
    };
    let (may_fall_back, rung) = (config.backend == BackendChoice::Auto, choice.rung);
    let refused = |error: &EngineError| {
        if is_device_fault(error) {
            Faults::record(&config.state_dir, SystemTime::now(), rung, &error.to_string());
        }
    };
    let placing = place(choice, may_fall_back, &daemon.life, start_on, refused);
    // The vocabulary is parsed while the engine's thread reads the weights.
    let (text, (engine, choice)) = std::thread::scope(|scope| {
        let text = scope.spawn(|| text::open(&config.model, vocabulary));
        let placed = tokio::runtime::Handle::current().block_on(placing);
        (text.join().unwrap_or_else(|_| Err("parsing the vocabulary panicked".into())), placed)
    });
    let text = text.map_err(failed).inspect_err(|_| engine.shutdown())?;
    let tables = tables.serve(engine.clone(), config.on_drift);
    Ok(Model {
        name: config.model_name.clone(),
        family,
        layers,
        voting_layers,
        forms: Forms::new(text.clone(), &engine.model().eos),
        engine,
        text,
        defaults,
        tables,
        backend_reason: choice.reason,
        degraded: choice.degraded,
        kernel_notes: choice.kernel_notes,
        rung: choice.rung,
        needs,
        created: SystemTime::now(),
    })
}

fn engine_options(config: &Config, chosen: &Chosen, tables: skip_engine::handle::TableSet) -> EngineOptions {
    let defaults = match chosen {
        Chosen::Cpu => EngineOptions::default(),
        Chosen::Cuda { .. } => device::gpu_defaults(),
    };
    EngineOptions {
        kv_format: kv_format(config.kv),
        cache: config.kv_tokens.map_or(CacheSize::Auto, |tokens| CacheSize::Tokens(tokens as u32)),
        queue_limit: config.queue as u32,
        max_running: config.max_running.unwrap_or(defaults.max_running),
        chunk: config.chunk,
        background_duty: config.background_duty,
        tables,
        ..defaults
    }
}

/// Bytes that the cache may have beside everything else; None where nobody says what there is.
fn room_for_cache(chosen: &Chosen, checkpoint: &Checkpoint, options: &EngineOptions, cpu: CpuOptions, system: &System) -> Option<u64> {
    // A checkpoint that was opened has every tensor.
    let shape = decoder::shape_without_cache(checkpoint, options).ok()?;
    let ledger = match chosen {
        Chosen::Cpu => cpu::estimate(&shape, cpu, system),
        Chosen::Cuda { options: cuda, probe } => {
            cuda::estimate(&shape, probe, &CudaOptions { max_samples: options.max_running, ..cuda.clone() })
        }
    };
    ledger.map(|ledger| ledger.left())
}

fn kv_format(choice: KvChoice) -> KvFormat {
    match choice {
        KvChoice::Fp16 => KvFormat::Fp16,
        KvChoice::Bf16 => KvFormat::Bf16,
    }
}

fn precision(choice: PrecisionChoice) -> Precision {
    match choice {
        PrecisionChoice::Auto => Precision::Auto,
        PrecisionChoice::Float32 => Precision::Float32,
        PrecisionChoice::Bfloat16 => Precision::Bfloat16,
    }
}

/// Longest generation_config.json, bytes.
const MAX_GENERATION_CONFIG: u64 = 4 << 20;

/// What generation_config.json recommends, if there is one; fields it does not have are left open, and the error names one that is wrong.
fn sampling_defaults(dir: &Path) -> Result<SamplingDefaults, String> {
    let path = dir.join("generation_config.json");
    let named = |reason: String| format!("{}: {reason}", path.display());
    let mut text = Vec::new();
    match std::fs::File::open(&path).and_then(|file| file.take(MAX_GENERATION_CONFIG).read_to_end(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(SamplingDefaults::default()),
        Err(error) => return Err(named(error.to_string())),
    }
    let found: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| named(error.to_string()))?;
    recommended(&found).map_err(named)
}

fn recommended(found: &Map<String, Value>) -> Result<SamplingDefaults, String> {
    let value = |field: &str| found.get(field).filter(|value| !value.is_null());
    let number = |field: &'static str, ok: fn(f64) -> bool, want: &str| match value(field) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|v| ok(*v)) {
            Some(v) => Ok(Some(v as f32)),
            None => Err(format!("field `{field}`: {value} is not a number {want}")),
        },
    };
    // `do_sample: false` beside a temperature is how Hugging Face writes "greedy".
    let greedy = match value("do_sample") {
        None => false,
        Some(Value::Bool(sample)) => !sample,
        Some(other) => return Err(format!("field `do_sample`: {other} is neither true nor false")),
    };
    let temperature = number("temperature", |v| (0.0..=100.0).contains(&v), "from 0 to 100")?;
    let top_k = match value("top_k") {
        None => None,
        Some(value) => match value.as_i64() {
            // vLLM's way to say all of them.
            Some(-1) => Some(0),
            Some(k) if u32::try_from(k).is_ok() => Some(k as u32),
            _ => return Err(format!("field `top_k`: {value} is not a count")),
        },
    };
    Ok(SamplingDefaults {
        temperature: if greedy { Some(0.0) } else { temperature },
        top_k,
        top_p: number("top_p", |v| v > 0.0 && v <= 1.0, "above 0 and at most 1")?,
        min_p: number("min_p", |v| (0.0..=1.0).contains(&v), "from 0 to 1")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(text: &str) -> Result<SamplingDefaults, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        sampling_defaults(dir.path())
    }

    #[test]
    fn recommended_sampling_is_taken() {
        let found = defaults(r#"{"temperature": 0.7, "top_k": 20, "top_p": null, "eos_token_id": 2}"#).unwrap();
        assert_eq!(found, SamplingDefaults { temperature: Some(0.7), top_k: Some(20), top_p: None, min_p: None });
        assert_eq!(defaults(r#"{"do_sample": false, "temperature": 0.7}"#).unwrap().temperature, Some(0.0));
    }

    #[test]
    fn a_field_of_a_wrong_type_or_value_is_named() {
        for (field, values) in [
            ("do_sample", &["1", "\"no\""][..]),
            ("temperature", &["-1", "\"hot\"", "[]"]),
            ("top_k", &["1.5", "-2", "true", "1e300"]),
            ("top_p", &["0", "1.5", "\"1\""]),
            ("min_p", &["-0.1", "2"]),
        ] {
            for value in values {
                let error = defaults(&format!("{{\"{field}\": {value}}}")).unwrap_err();
                assert!(error.contains("generation_config.json") && error.contains(&format!("`{field}`")), "{field} {value}: {error}");
            }
        }
    }

    #[test]
    fn a_broken_file_is_named() {
        assert!(defaults("{").unwrap_err().contains("generation_config.json"));
    }

    #[test]
    fn no_file_recommends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(sampling_defaults(dir.path()), Ok(SamplingDefaults::default()));
    }
}
