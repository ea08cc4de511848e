//! `run`: TensorRT Edge-LLM's flags, also as its users' scripts spell them.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// `run`.
#[derive(Debug, Args)]
#[command(after_long_help = "Edge-LLM's own spelling of each option is taken too: --inputFile, --outputFile, --batchSize, …")]
pub struct Run {
    /// Requests: Edge-LLM's input.json
    #[arg(long, alias = "inputFile", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub input_file: PathBuf,

    /// Where answers go: Edge-LLM's output.json, written whole when all have ended
    #[arg(long, alias = "outputFile", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output_file: PathBuf,

    /// Requests at once, instead of the file's batch_size
    #[arg(long, alias = "batchSize", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: Option<u32>,

    /// Tokens of an answer at most, instead of the file's max_generate_length
    #[arg(long, alias = "maxGenerateLength", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_generate_length: Option<u32>,

    /// Ask the first request this many times before, and leave the answers out
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warmup: u32,

    /// Print answers as they end
    #[arg(long, alias = "dumpOutput")]
    pub dump_output: bool,

    /// Say at the end what prompts and answers took
    #[arg(long, alias = "dumpProfile")]
    pub dump_profile: bool,

    /// Write that as JSON
    #[arg(long, alias = "profileOutputFile", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub profile_output_file: Option<PathBuf>,

    /// Edge-LLM's engine: skipd has its checkpoint already
    #[arg(long, alias = "engineDir", value_name = "DIR", hide = true)]
    pub engine_dir: Option<PathBuf>,
}
