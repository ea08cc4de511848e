//! What the daemon was told to do: flags over drop-in files over the main file, checked once at the start.
//! Everything after this module deals in [`Config`], in which no value is missing or nonsense.

mod file;
mod listen;
mod settings;

pub use listen::{Key, Listen};
pub use settings::{Cli, Settings};

use crate::faulty::Pretence;
use crate::tables::OnDrift;
use skip_kernels::system::System;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the socket is bound when nobody says otherwise.
pub const SYSTEM_SOCKET: &str = "/run/skipd/skipd.sock";
/// The main configuration file; `skipd.d/*.toml` beside it are read after it.
pub const SYSTEM_CONFIG: &str = "/etc/skipd/skipd.toml";
/// The administrator's own tables.
pub const SYSTEM_TABLES: &str = "/etc/skipd/tables.json";
/// The root of trust that is shipped.
pub const SYSTEM_TRUST: &str = "/usr/share/skipd/trust/root.json";
/// Most requests at once: each may have two tables in device memory, in three classes.
const MAX_RUNNING: usize = 256;

/// Why the configuration cannot be used; each message names the key or file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file that was named, or a drop-in, cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that is not TOML, or has a key that no flag has.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, key and reason.
        message: String,
    },
    /// A key that must be given.
    #[error("{0} must be given, as a flag or in the configuration file")]
    Missing(&'static str),
    /// A value that is known but not built into this binary.
    #[error("{key} {value}: not built yet ({instead})")]
    NotBuilt {
        /// The flag.
        key: &'static str,
        /// What was asked.
        value: String,
        /// What there is.
        instead: &'static str,
    },
    /// A value outside its range.
    #[error("{key}: {reason}")]
    Invalid {
        /// The flag.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Which message bus to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bus {
    /// The system bus.
    System,
    /// The session bus.
    Session,
    /// None at all.
    None,
    /// An address such as `unix:path=/tmp/bus`.
    Address(String),
}

impl Bus {
    /// The one that is to be joined, as far as a configuration tells that is otherwise of no use.
    pub fn of(cli: &Cli) -> Self {
        let settings = cli.settings.clone().over(files(cli).unwrap_or_default());
        Self::named(settings.bus.as_deref()).unwrap_or(Bus::System)
    }

    fn named(name: Option<&str>) -> Result<Self, ConfigError> {
        Ok(match name.unwrap_or("system") {
            "system" => Bus::System,
            "session" => Bus::Session,
            "none" => Bus::None,
            address if address.contains(':') => Bus::Address(address.to_owned()),
            other => return Err(unknown("--bus", other, "system, session, none or a bus address")),
        })
    }
}

/// What the files say.
fn files(cli: &Cli) -> Result<Settings, ConfigError> {
    match &cli.config {
        Some(path) => file::read(path, true),
        None => file::read(Path::new(SYSTEM_CONFIG), false),
    }
}

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvChoice {
    /// bfloat16.
    Bf16,
    /// IEEE binary16, the default.
    Fp16,
}

/// What the model runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// CUDA where it can be used, else the CPU; status says why.
    Auto,
    /// The processor.
    Cpu,
    /// CUDA, or no start.
    Cuda,
}

/// Whether CUDA kernels are tried before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QualifyChoice {
    /// Those of which no record tells.
    Auto,
    /// All, at every start.
    Always,
    /// None: they are used as they are.
    Off,
}

/// Arithmetic of the matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionChoice {
    /// What is fastest on this processor.
    Auto,
    /// float32 activations.
    Float32,
    /// bfloat16 activations where the processor multiplies them.
    Bfloat16,
}

/// The checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The checkpoint's folder.
    pub model: PathBuf,
    /// The name clients see; the folder's name unless set.
    pub model_name: String,
    /// What the model runs on.
    pub backend: BackendChoice,
    /// Whether CUDA kernels are tried first.
    pub qualify: QualifyChoice,
    /// For tests: what the device pretends.
    pub pretence: Option<Pretence>,
    /// For tests: where what the system says of its memory is looked for; None: the system itself.
    pub memory_root: Option<PathBuf>,
    /// For tests: where the board's files are; None: this machine's own.
    pub board_root: Option<PathBuf>,
    /// The bus to join.
    pub bus: Bus,
    /// The bus was asked for, so that the daemon does not start without it.
    pub bus_required: bool,
    /// The socket's path.
    pub socket: PathBuf,
    /// Where HTTP is served over TCP, and the key that takes; None: nowhere.
    pub listen: Option<Listen>,
    /// Type of cached keys and values.
    pub kv: KvChoice,
    /// Worker threads; None: one a core.
    pub threads: Option<usize>,
    /// Arithmetic.
    pub precision: PrecisionChoice,
    /// Prompt tokens a step; None: by measured speed.
    pub chunk: Option<usize>,
    /// Tokens the cache holds; None: from what memory is left.
    pub kv_tokens: Option<usize>,
    /// Requests that may wait.
    pub queue: usize,
    /// Requests that may run at once; None: the engine's choice.
    pub max_running: Option<usize>,
    /// Percent of the time that background work may compute while nothing else does.
    pub background_duty: u32,
    /// New tokens of a request that names no number, if the context has as many left.
    pub default_max_tokens: u32,
    /// Mutable state: persisted tables, what was found of kernels, faults.
    pub state_dir: PathBuf,
    /// The administrator's tables.
    pub tables_file: PathBuf,
    /// The root of trust of updates.
    pub update_trust: PathBuf,
    /// What to do when a table skips far more in production than its tier stands for.
    pub on_drift: OnDrift,
    /// How long a stop waits for running requests.
    pub drain: Duration,
    /// Largest request body, bytes.
    pub max_body: usize,
    /// Connections at once.
    pub max_connections: usize,
    /// The group whose members may generate.
    pub group: String,
    /// The group whose members may claim control priority; None: administrators alone.
    pub control_group: Option<String>,
    /// Default log filter.
    pub log: String,
}

impl Config {
    /// Reads files and flags; `cli` wins.
    pub fn load(cli: Cli) -> Result<Self, ConfigError> {
        let files = files(&cli)?;
        let config = Self::check(cli.settings.over(files))?;
        let fault = cli.inject_fault_at_step.map(Pretence::Fault);
        Ok(Self {
            pretence: fault.or(cli.inject_stall_at_step.map(Pretence::Stall)),
            memory_root: cli.memory_root,
            board_root: cli.board_root,
            ..config
        })
    }

    /// Says what memory there is.
    pub fn system(&self) -> System {
        self.memory_root.as_ref().map_or_else(System::default, System::at)
    }

    /// Fills defaults and checks every value.
    pub fn check(settings: Settings) -> Result<Self, ConfigError> {
        let model = settings.model.ok_or(ConfigError::Missing("--model"))?;
        let backend = match settings.backend.as_deref().unwrap_or("auto") {
            "auto" => BackendChoice::Auto,
            "cpu" => BackendChoice::Cpu,
            "cuda" => BackendChoice::Cuda,
            other => return Err(unknown("--backend", other, "auto, cpu or cuda")),
        };
        let qualify = match settings.qualify.as_deref().unwrap_or("auto") {
            "auto" => QualifyChoice::Auto,
            "always" => QualifyChoice::Always,
            "off" => QualifyChoice::Off,
            other => return Err(unknown("--qualify", other, "auto, always or off")),
        };
        let kv = match settings.kv.as_deref().unwrap_or("fp16") {
            "fp16" => KvChoice::Fp16,
            "bf16" => KvChoice::Bf16,
            other @ ("nvfp4" | "fp8") => return Err(not_built("--kv", other, "fp16 or bf16")),
            other => return Err(unknown("--kv", other, "fp16, bf16, fp8 or nvfp4")),
        };
        match settings.kv_shadow.as_deref().unwrap_or("none") {
            "none" => {}
            other @ ("nvfp4" | "fp8") => return Err(not_built("--kv-shadow", other, "none")),
            other => return Err(unknown("--kv-shadow", other, "none, nvfp4 or fp8")),
        }
        let precision = match settings.precision.as_deref().unwrap_or("auto") {
            "auto" => PrecisionChoice::Auto,
            "float32" => PrecisionChoice::Float32,
            "bfloat16" => PrecisionChoice::Bfloat16,
            other => return Err(unknown("--precision", other, "auto, float32 or bfloat16")),
        };
        let on_drift = match settings.on_drift.as_deref().unwrap_or("warn") {
            "warn" => OnDrift::Warn,
            "dense" => OnDrift::Dense,
            other => return Err(unknown("--on-drift", other, "warn or dense")),
        };
        let bus_required = settings.bus.is_some();
        let bus = Bus::named(settings.bus.as_deref())?;
        let model_name = match settings.model_name {
            Some(name) if name.is_empty() => return Err(invalid("--model-name", "is empty")),
            Some(name) => name,
            None => folder_name(&model),
        };
        Ok(Self {
            model_name,
            backend,
            qualify,
            pretence: None,
            memory_root: None,
            board_root: None,
            bus,
            bus_required,
            on_drift,
            kv,
            precision,
            socket: settings.socket.unwrap_or_else(default_socket),
            listen: Listen::check(settings.listen.as_deref(), settings.key_file.as_deref())?,
            threads: at_least_one("--threads", settings.threads)?,
            chunk: at_least_one("--chunk", settings.chunk)?,
            kv_tokens: at_least_one("--kv-tokens", settings.kv_tokens)?,
            queue: at_least_one("--queue", settings.queue)?.unwrap_or(64),
            max_running: at_most("--max-running", at_least_one("--max-running", settings.max_running)?, MAX_RUNNING)?,
            background_duty: percent("--background-duty", settings.background_duty)?,
            default_max_tokens: at_least_one("--default-max-tokens", settings.default_max_tokens.map(|n| n as usize))?.unwrap_or(1024)
                as u32,
            state_dir: whole_path("--state-dir", settings.state_dir.unwrap_or_else(default_state_dir))?,
            tables_file: whole_path("--tables", settings.tables.unwrap_or_else(|| SYSTEM_TABLES.into()))?,
            update_trust: whole_path("--update-trust", settings.update_trust.unwrap_or_else(|| SYSTEM_TRUST.into()))?,
            drain: seconds("--drain-seconds", settings.drain_seconds, 2.5)?,
            max_body: at_least_one("--max-body-mib", settings.max_body_mib)?.unwrap_or(32).saturating_mul(1 << 20),
            max_connections: at_least_one("--max-connections", settings.max_connections)?.unwrap_or(128),
            group: settings.group.unwrap_or_else(|| "skipd".into()),
            control_group: settings.control_group,
            log: settings.log.unwrap_or_else(|| "info".into()),
            model,
        })
    }
}

/// The last part of the path, however it was spelt.
fn folder_name(model: &Path) -> String {
    let whole = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    whole.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// The system's socket, or the user's where there is no system directory to put one in.
fn default_socket() -> PathBuf {
    let system = PathBuf::from(SYSTEM_SOCKET);
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(user) if !rustix::process::getuid().is_root() && !system.parent().is_some_and(Path::is_dir) => {
            PathBuf::from(user).join("skipd.sock")
        }
        _ => system,
    }
}

/// systemd says where (`StateDirectory=`); else the usual place.
fn default_state_dir() -> PathBuf {
    let told = std::env::var_os("STATE_DIRECTORY").filter(|folder| !folder.is_empty());
    told.map_or_else(|| PathBuf::from("/var/lib/skipd"), PathBuf::from)
}

/// A path from the folder that skipd is started in, so that it stays the same whatever happens to that.
fn whole_path(key: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    if path.as_os_str().is_empty() {
        return Err(invalid(key, "is empty"));
    }
    std::path::absolute(path).map_err(|error| invalid(key, &error.to_string()))
}

fn not_built(key: &'static str, value: &str, instead: &'static str) -> ConfigError {
    ConfigError::NotBuilt { key, value: value.to_owned(), instead }
}

fn unknown(key: &'static str, value: &str, known: &str) -> ConfigError {
    ConfigError::Invalid { key, reason: format!("{value:?} is none of {known}") }
}

fn invalid(key: &'static str, reason: &str) -> ConfigError {
    ConfigError::Invalid { key, reason: reason.to_owned() }
}

fn at_least_one(key: &'static str, value: Option<usize>) -> Result<Option<usize>, ConfigError> {
    match value {
        Some(0) => Err(invalid(key, "must be at least 1")),
        Some(n) if n > u32::MAX as usize => Err(invalid(key, "is too large")),
        other => Ok(other),
    }
}

fn at_most(key: &'static str, value: Option<usize>, most: usize) -> Result<Option<usize>, ConfigError> {
    if value.is_some_and(|n| n > most) { Err(invalid(key, &format!("must be at most {most}"))) } else { Ok(value) }
}

fn percent(key: &'static str, value: Option<u32>) -> Result<u32, ConfigError> {
    match value.unwrap_or(100) {
        percent @ 1..=100 => Ok(percent),
        _ => Err(invalid(key, "must be between 1 and 100")),
    }
}

fn seconds(key: &'static str, value: Option<f64>, default: f64) -> Result<Duration, ConfigError> {
    let seconds = value.unwrap_or(default);
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err(invalid(key, "must be between 0 and 86400 seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests;
