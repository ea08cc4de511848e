//! Commands and options: the one definition that parser, help, man pages and completions come from.

mod run;

use crate::failure::EXIT_CODES;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use skip_tables::Tier;
use std::path::PathBuf;
use std::time::Duration;

pub use run::Run;

/// Where help lists what every command takes.
const GLOBAL: &str = "Connection and output";

/// Talks to skipd, the daemon that answers long prompts with skip-softmax attention.
#[derive(Debug, Parser)]
#[command(name = "skipctl", version, after_help = EXIT_CODES, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The daemon's socket; default: $SKIPD_SOCKET, /run/skipd/skipd.sock, $XDG_RUNTIME_DIR/skipd.sock
    #[arg(long, value_name = "PATH", global = true, help_heading = GLOBAL, conflicts_with = "bus", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,

    /// Talk over a bus instead: `system`, `session`, or an address such as unix:path=/run/bus
    #[arg(long, value_name = "BUS", global = true, help_heading = GLOBAL)]
    pub bus: Option<String>,

    /// Print JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the daemon is and does
    Status {
        /// Wait until it is ready, at most this long (30s, 2m)
        #[arg(long, value_name = "TIME", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Show requests, rates, skipped shares and memory as they change; Ctrl-C ends it
    Top {
        /// Look once; so it does with --json, and where standard output is no terminal
        #[arg(long)]
        once: bool,
        /// Time between two looks (500ms, 2s)
        #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
        interval: Duration,
    },
    /// Continue a text; it streams to stdout, the usage goes to stderr
    Generate(Generate),
    /// Chat: one message, or a conversation on a terminal
    Chat(Chat),
    /// Answer a file of requests, in TensorRT Edge-LLM's formats: input.json to output.json
    Run(Run),
    /// Put a table in force for new requests; running ones keep theirs
    SetTable(SetTable),
    /// Keep the tables that are on trial (set-table --confirm-within)
    Confirm,
    /// Take back the tables that are on trial
    Revert,
    /// Show, check, export or reload tables
    #[command(subcommand)]
    Table(Table),
    /// List the tiers of the checkpoint's ladders
    Tiers,
    /// Pin beginnings of prompts in the cache, shared between all users
    #[command(subcommand)]
    Prefix(Prefix),
    /// Take signed updates of tables, and go back
    #[command(subcommand)]
    Update(Update),
    /// Pin the board's clocks by a profile, and put them back
    #[command(subcommand)]
    Profile(Profile),
    /// Make a checkpoint folder of a GGUF file
    Import {
        /// The GGUF file
        #[arg(value_hint = ValueHint::FilePath)]
        gguf: PathBuf,
        /// The folder to make; must be absent or empty
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Try the CUDA kernels of the loaded checkpoint again; the next start goes by what is found
    Qualify,
    /// Measure the checkpoint, and write and load its ladder of scale tables
    Calibrate(Calibrate),
    /// Ask the same items dense and under the tables, and judge the difference
    Evaluate(Evaluate),
    /// Time and score every tier on this device, and keep it as price.json
    Price(Price),
    /// Draw what price measured as one page; needs no daemon
    Report(Report),
    /// List, show or cancel the daemon's jobs
    #[command(subcommand)]
    Job(Job),
    /// Measure the daemon: first token and rates, dense and skipping in turn
    Bench(Bench),
    /// Let running requests finish and take no new ones; ends when the daemon is idle
    Drain,
    /// Look at what serving needs of this machine, and say what mends what is wrong; needs no daemon and no root
    Doctor(Doctor),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The text to continue; `-` or none: standard input
    pub prompt: Option<String>,

    /// Read the text from a file
    #[arg(long, short, value_name = "FILE", conflicts_with = "prompt", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub options: Options,
}

/// `chat`.
#[derive(Debug, Args)]
pub struct Chat {
    /// The message; none: a conversation on a terminal, else all of standard input as one message
    pub message: Option<String>,

    /// A system message to begin with
    #[arg(long, short, value_name = "TEXT")]
    pub system: Option<String>,

    #[command(flatten)]
    pub options: Options,
}

/// How to generate.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Generation")]
pub struct Options {
    /// At most this many new tokens
    #[arg(long, short = 'n', value_name = "N")]
    pub max_tokens: Option<u32>,

    /// 0 is greedy
    #[arg(long, short, value_name = "T")]
    pub temperature: Option<f32>,

    /// Keep the most likely tokens that together reach this probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Keep this many most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,

    /// Drop tokens less likely than this times the most likely
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,

    /// Seed of the draw
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,

    /// End the answer at this text; may be given again
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// Hold the answer to a JSON schema, read from a file
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,

    /// Hold the answer to a regular expression, from its beginning to its end
    #[arg(long, value_name = "RE", conflicts_with = "schema")]
    pub regex: Option<String>,

    /// Do not end at an end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,

    /// With --json: log-probabilities, with this many alternatives a token
    #[arg(long, value_name = "N")]
    pub logprobs: Option<u8>,

    /// Scheduling class
    #[arg(long, value_name = "CLASS", value_enum)]
    pub priority: Option<Priority>,

    /// Give up after this time (500ms, 30s)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub deadline: Option<Duration>,

    /// Compute the whole prompt, even if its beginning is known
    #[arg(long)]
    pub no_prefix_reuse: bool,

    /// Prefill table of this request alone: a tier, `none`, or a table file
    #[arg(long, value_name = "SELECTOR")]
    pub prefill_table: Option<String>,

    /// Decode table of this request alone
    #[arg(long, value_name = "SELECTOR")]
    pub decode_table: Option<String>,

    /// Do not print the usage line
    #[arg(long, short)]
    pub quiet: bool,
}

/// Scheduling class of a request.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Priority {
    /// Best effort
    Background,
    /// Somebody waits
    Interactive,
    /// A control loop waits
    Control,
}

/// A phase of generation.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PhaseArg {
    /// The prompt
    Prefill,
    /// The answer
    Decode,
}

/// `set-table`.
#[derive(Debug, Args)]
pub struct SetTable {
    /// The phase
    #[arg(value_enum)]
    pub phase: PhaseArg,

    /// A tier (50%), `none` for dense, a table file, a table as JSON, or `auto` to let the files decide again
    pub selector: String,

    /// Keep it over restarts
    #[arg(long)]
    pub persist: bool,

    /// Take it back after this time unless confirmed (60s, 5m)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub confirm_within: Option<Duration>,

    /// Accept an unreached tier, or a table of another checkpoint or geometry
    #[arg(long)]
    pub force: bool,
}

/// `calibrate`.
#[derive(Debug, Args)]
pub struct Calibrate {
    /// What to calibrate
    #[arg(long, value_enum, default_value = "prefill")]
    pub phase: CalibratePhaseArg,

    /// Longest prompt that is calibrated; default: as long as a request may be. Beyond it attention is dense
    #[arg(long, value_name = "N")]
    pub max_seqlen: Option<usize>,

    /// First length of the first bin
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub bin_min: usize,

    /// From one bin to the next
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub bin_step: usize,

    /// Share of tiles to skip, 0.5 or 50%, a tier of the ladder each; may be given again [default: 50% 60% 75% 80%]
    #[arg(long, value_name = "R", num_args = 1.., value_delimiter = ',')]
    pub target_sparsity: Vec<Tier>,

    /// The tier to put in force [default: 75%, or the highest]
    #[arg(long, value_name = "R")]
    pub deploy: Option<Tier>,

    /// Advise `on` while mass / share stays below this
    #[arg(long, value_name = "R", default_value_t = 0.3)]
    pub mass_ratio: f64,

    /// Text to measure on, files or folders on the daemon's machine; default: documentation, licences and source found there
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub corpus: Vec<PathBuf>,

    /// Prompts a bin
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub samples: usize,

    /// Tokens drawn behind each prompt to measure decode
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub decode_tokens: u32,

    /// Chooses the texts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Then run this many prompts a bin, of other texts, under the new tables, and tell what they skip
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub check: usize,

    /// Folder for what was measured, to go on after a restart; default: in the daemon's state folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache_dir: Option<PathBuf>,
}

/// `evaluate`. Files are read by the daemon, on its machine.
#[derive(Debug, Args)]
pub struct Evaluate {
    /// Tokens of a RULER item with its answer, and what longer items are cut to; default: as long as a request may be
    #[arg(long, value_name = "N")]
    pub max_context: Option<usize>,

    /// Which phases skip: prefill, decode, both, or dense to score without comparing [default: every phase that has a table]
    #[arg(long, value_name = "ARM", num_args = 1.., value_delimiter = ',', value_parser = ["prefill", "decode", "both", "dense"])]
    pub arm: Vec<String>,

    /// Try this tier of the checkpoint's ladders instead of the tables in force
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,

    /// Items of each RULER task; 0: no RULER
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub samples: usize,

    /// RULER tasks; default: all that can be made
    #[arg(long, value_name = "TASK", num_args = 1.., value_delimiter = ',')]
    pub tasks: Vec<String>,

    /// Text for haystacks, files or folders; default: documentation, licences and source found on the system
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub corpus: Vec<PathBuf>,

    /// Questions for qa_1: SQuAD's JSON
    #[arg(long = "qa-1", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub qa_1: Option<PathBuf>,

    /// Questions for qa_2: HotpotQA's JSON
    #[arg(long = "qa-2", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub qa_2: Option<PathBuf>,

    /// MMLU: CSV or JSONL
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub mmlu: Option<PathBuf>,

    /// Questions of MMLU [default: 200]
    #[arg(long, value_name = "N")]
    pub mmlu_samples: Option<usize>,

    /// A folder of LongBench's JSONL files
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub longbench: Option<PathBuf>,

    /// Questions of own: JSONL
    #[arg(long, value_name = "JSONL", value_hint = ValueHint::FilePath)]
    pub tasks_file: Option<PathBuf>,

    /// Dense scores of an earlier run (--save-results), instead of running dense again
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub baseline: Option<PathBuf>,

    /// Write all scores
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save_results: Option<PathBuf>,

    /// Name the run
    #[arg(long, value_name = "L")]
    pub label: Option<String>,

    /// The largest drop of the mean score that passes
    #[arg(long, value_name = "R", default_value_t = 0.03)]
    pub max_drop: f64,

    /// Tokens an answer may think before it counts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub thinking_budget: usize,

    /// Chooses the items
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// `price`.
#[derive(Debug, Args)]
pub struct Price {
    /// Prompt lengths to time [default: first lengths of the tables' rows]
    #[arg(long, value_name = "N", num_args = 1.., value_delimiter = ',')]
    pub lengths: Vec<usize>,

    /// Lengths at which RULER is asked; none: accuracy is not measured
    #[arg(long, value_name = "N", num_args = 1.., value_delimiter = ',')]
    pub accuracy_lengths: Vec<usize>,

    /// Items of each RULER task [default: 8]
    #[arg(long, value_name = "N")]
    pub accuracy_samples: Option<usize>,

    /// Measured rounds of each length and tier, behind one that warms up [default: 3]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,

    /// Tokens of an answer [default: 32]
    #[arg(long, value_name = "N")]
    pub decode_tokens: Option<u32>,

    /// Text to time on, files or folders on the daemon's machine; default: what the system has
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub corpus: Vec<PathBuf>,

    /// Chooses the texts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Name the run in reports
    #[arg(long, value_name = "L")]
    pub label: Option<String>,

    /// Folder for price.json
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub work_dir: PathBuf,

    /// Do not write skip_softmax_price_list into the checkpoint's config.json
    #[arg(long)]
    pub no_write: bool,
}

/// `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// What price wrote; several are shown side by side
    #[arg(long, value_name = "FILE", num_args = 1.., required = true, value_hint = ValueHint::FilePath)]
    pub price_json: Vec<PathBuf>,

    /// The page to write
    #[arg(long, value_name = "HTML", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
}

/// Phases of a calibration.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CalibratePhaseArg {
    /// Prompts
    Prefill,
    /// Answers
    Decode,
    /// Prompts and answers
    Both,
}

/// `job …`.
#[derive(Debug, Subcommand)]
pub enum Job {
    /// List the jobs that are remembered
    List,
    /// Show how far a job is
    Show {
        /// Its id
        id: String,
    },
    /// End a job at the next chance
    Cancel {
        /// Its id
        id: String,
    },
}

/// `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// Prompt lengths in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512,2048,8192", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompts: Vec<u32>,

    /// Tokens of an answer
    #[arg(long, short = 'n', value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..))]
    pub tokens: u32,

    /// Measured rounds of each, behind one that warms up
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Requests at once
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub concurrency: Vec<u32>,

    /// Prefill table to set beside dense: a tier, `none`, or a table file; default: the tables in force, else the tier nearest to 50%
    #[arg(long, value_name = "SELECTOR")]
    pub prefill_table: Option<String>,

    /// Decode table to set beside dense
    #[arg(long, value_name = "SELECTOR")]
    pub decode_table: Option<String>,

    /// Pin the clocks of this profile for the run, and put them back behind it
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,

    /// Take prompts from this text instead of skipd's documentation
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text: Option<PathBuf>,
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The daemon's configuration; skipd.d/*.toml beside it count too [default: /etc/skipd/skipd.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Look at the files below this folder instead of at this machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// `table …`.
#[derive(Debug, Subcommand)]
pub enum Table {
    /// Show which table decides in each phase, and why
    Show,
    /// Check a table file, without a daemon
    Check {
        /// Bare rows [[length, S], …], or an object with the keys of config.json
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Check it against the weights of this checkpoint too
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        checkpoint: Option<PathBuf>,
    },
    /// Write the tables in force into a config.json for TensorRT Edge-LLM
    Export(Export),
    /// Read all table files again
    Reload,
}

/// `table export`; the four long flags are Edge-LLM's own.
#[derive(Debug, Args)]
pub struct Export {
    /// The config.json to start from, or its folder; it is not changed
    #[arg(value_hint = ValueHint::AnyPath)]
    pub config: PathBuf,

    /// Where to write; default: standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// Do not ask the daemon: take what the config.json itself decides
    #[arg(long)]
    pub offline: bool,

    /// Prefill table instead of the one in force: a file, or `none` or 0 for dense
    #[arg(long, value_name = "FILE|none|0")]
    pub skip_softmax_prefill_scale_table: Option<String>,

    /// Decode table instead of the one in force: a file, or `none` or 0 for dense
    #[arg(long, value_name = "FILE|none|0")]
    pub skip_softmax_decode_scale_table: Option<String>,

    /// Prefill tier of the config.json's ladder instead of the table in force
    #[arg(long, value_name = "R")]
    pub prefill_target_sparsity: Option<String>,

    /// Decode tier of the config.json's ladder instead of the table in force
    #[arg(long, value_name = "R")]
    pub decode_target_sparsity: Option<String>,

    /// Export tables measured with another geometry than Edge-LLM's too
    #[arg(long)]
    pub force: bool,
}

/// `update …`.
#[derive(Debug, Subcommand)]
pub enum Update {
    /// Have a bundle verified and put on trial; ends when the trial has
    Apply {
        /// An archive, or a folder that the daemon can read
        #[arg(value_hint = ValueHint::AnyPath)]
        bundle: PathBuf,
        /// Where the clock is behind what has passed for sure, judge expiry at that moment; the daemon must be able to read the bundle
        #[arg(long)]
        relax_expiry: bool,
        /// Do not wait for the trial's end
        #[arg(long)]
        no_wait: bool,
    },
    /// End the trial, or go back to the update before, or to none
    Rollback,
    /// Show which update is in force, on trial, and to return to
    Show,
}

/// `profile …`.
#[derive(Debug, Subcommand)]
pub enum Profile {
    /// List the clock profiles, and which of them fit this board and its power mode
    List,
    /// Show the board and how its clocks stand
    Show,
    /// Pin the clocks of a profile, in the place of one that is applied
    Apply {
        /// The profile
        name: String,
    },
    /// Put the clocks back as they were
    Release,
}

/// `prefix …`.
#[derive(Debug, Subcommand)]
pub enum Prefix {
    /// Pin the beginning of prompts; ends when it is computed
    Pin(Pin),
    /// List what is pinned
    List,
    /// Drop a pinned prefix
    Drop {
        /// Its name
        name: String,
    },
}

/// `prefix pin`.
#[derive(Debug, Args)]
pub struct Pin {
    /// The text that prompts begin with; `-` or none: standard input
    pub prompt: Option<String>,

    /// Read the text from a file
    #[arg(long, short, value_name = "FILE", conflicts_with = "prompt", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// The text is the system message that conversations begin with, not the beginning of bare prompts
    #[arg(long, short)]
    pub system: bool,

    /// What to call it; default: prefix- and a number
    #[arg(long, short, value_name = "NAME")]
    pub name: Option<String>,
}

/// `90`, `90s`, `1.5m`, `500ms`, `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("a time must be above 0".into()),
        time => Ok(time),
    }
}

/// The same, and 0: for what the daemon judges.
fn time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit: ms, s, m, h")),
    };
    let seconds = number.trim().parse::<f64>().map_err(|_| format!("`{number}` is no number"))? * scale;
    if (0.0..=1e9).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err("a time must not be below 0".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        assert_eq!(duration("60"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "s", "-1", "0", "5 parsecs", "inf", "nan", "1e300"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
