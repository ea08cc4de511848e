//! Every option once: a flag and a configuration key of the same name.

use clap::{Args, Parser};
use serde::Deserialize;
use std::path::PathBuf;

/// The command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "skipd", version, about = "Serves a language model on this machine's socket and bus, skipping negligible attention tiles")]
pub struct Cli {
    /// Read this file (and skipd.d/*.toml beside it) instead of /etc/skipd/skipd.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// For tests: report a device fault at this step, as a broken device would
    #[arg(long, value_name = "STEP", hide = true)]
    pub inject_fault_at_step: Option<u64>,
    /// For tests: let this step never end, as a device that hangs would
    #[arg(long, value_name = "STEP", hide = true, conflicts_with = "inject_fault_at_step")]
    pub inject_stall_at_step: Option<u64>,
    /// For tests: the folder below which proc/meminfo and the control groups are looked for
    #[arg(long, value_name = "DIR", hide = true)]
    pub memory_root: Option<PathBuf>,
    /// For tests: the folder below which the board's files lie
    #[arg(long, value_name = "DIR", hide = true)]
    pub board_root: Option<PathBuf>,
    /// The options that a file may set too.
    #[command(flatten)]
    pub settings: Settings,
}

/// What flags and files may set; None: not said here.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// Checkpoint folder: config.json, safetensors, tokenizer.json
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The name clients see beside `default`; the folder's name unless set
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// auto, cpu or cuda
    #[arg(long)]
    pub backend: Option<String>,
    /// Trying the CUDA kernels before they are used: auto (once a device, driver and set of kernel files), always or off [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub qualify: Option<String>,
    /// system, session, none, or a bus address, which must then be there [default: system, if there is one]
    #[arg(long)]
    pub bus: Option<String>,
    /// Unix socket to serve HTTP on [default: /run/skipd/skipd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Loopback address and port to serve HTTP on too, for clients that know no Unix socket; takes a key [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// File with the key of --listen, 16 characters or more; not readable by others
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Type of cached keys and values: fp16 or bf16
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<String>,
    /// Low-precision copy of the keys for scanning: none
    #[arg(long, value_name = "FORMAT")]
    pub kv_shadow: Option<String>,
    /// Worker threads [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// auto, float32 or bfloat16 arithmetic in matrix products
    #[arg(long)]
    pub precision: Option<String>,
    /// Prompt tokens a step [default: by measured speed]
    #[arg(long, value_name = "TOKENS")]
    pub chunk: Option<usize>,
    /// Tokens the cache holds for all requests together
    #[arg(long, value_name = "TOKENS")]
    pub kv_tokens: Option<usize>,
    /// Requests that may wait before more are refused as busy [default: 64]
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Requests that may run at once
    #[arg(long, value_name = "N")]
    pub max_running: Option<usize>,
    /// Share of the time that requests and jobs of the background class may compute while nothing else does, 1 to 100 [default: 100]
    #[arg(long, value_name = "PERCENT")]
    pub background_duty: Option<u32>,
    /// New tokens of a request that names no number, if the context has as many left [default: 1024]
    #[arg(long, value_name = "TOKENS")]
    pub default_max_tokens: Option<u32>,
    /// Where persisted tables lie [default: $STATE_DIRECTORY or /var/lib/skipd]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The administrator's tables [default: /etc/skipd/tables.json]
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,
    /// The root of trust of updates, until one of them brings a newer [default: /usr/share/skipd/trust/root.json]
    #[arg(long, value_name = "FILE")]
    pub update_trust: Option<PathBuf>,
    /// warn, or dense: what to do when a table skips far more than its tier stands for [default: warn]
    #[arg(long, value_name = "WHAT")]
    pub on_drift: Option<String>,
    /// How long a stop lets running requests finish before it cancels them [default: 2.5]
    #[arg(long, value_name = "SECONDS")]
    pub drain_seconds: Option<f64>,
    /// Largest request body [default: 32]
    #[arg(long, value_name = "MIB")]
    pub max_body_mib: Option<usize>,
    /// Connections at once [default: 128]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<usize>,
    /// Members of this group may generate [default: skipd]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Members of this group may claim control priority [default: administrators alone]
    #[arg(long, value_name = "NAME")]
    pub control_group: Option<String>,
    /// Log filter as RUST_LOG spells it, which wins over it [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

impl Settings {
    /// These values, and `below` where they say nothing.
    pub fn over(self, below: Settings) -> Settings {
        macro_rules! overlay {
            ($($field:ident)*) => { Settings { $($field: self.$field.or(below.$field)),* } };
        }
        overlay!(model model_name backend qualify bus socket listen key_file kv kv_shadow threads precision chunk kv_tokens queue max_running
                 background_duty
                 default_max_tokens state_dir tables update_trust on_drift drain_seconds max_body_mib max_connections group control_group log)
    }
}
