//! Pins the clocks of a profile as root, and restores them: the oneshot behind `skipd-profile@.service`.

use clap::{Parser, Subcommand};
use serde::Serialize;
use skip_platform::nvml::{Gpus, Library};
use skip_platform::{Board, PinError, Profiles, StateFile, apply, memory, nvpmodel, restore, restore_of, watch, zones};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const CODES: &str = "\
Exit codes:
  0   apply: every node of the profile is pinned; restore: all nodes are back, or nothing was pinned
  1   the state file cannot be read or written
  2   wrong usage
  3   apply: some nodes are pinned, others are refused or absent; restore: some nodes refuse, and the snapshot is kept
  4   apply: the profile is for another board or power mode; nothing was written
  5   apply: no node can be pinned; nothing is left changed
  6   there is no such profile, or it is wrong
  7   restore: the snapshot is of another boot; nothing was written";

/// Pins the clocks of a profile, and restores them
#[derive(Debug, Parser)]
#[command(name = "skipd-profile", version, after_help = CODES)]
struct Cli {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// The board's files lie under this folder instead of /
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Where the snapshot is kept [default: run/skipd-profile/state.json under the root]
    #[arg(long, global = true, value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Pin the clocks of a profile, after restoring those of an earlier one
    Apply {
        /// The profile
        name: String,
    },
    /// Restore what was there before
    Restore {
        /// Only if it was this profile that changed it
        #[arg(long, value_name = "NAME")]
        of: Option<String>,
    },
    /// Show the board, its profiles, and how its clocks stand
    Show,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let board = Board::at(&cli.root);
    let state = cli.state.clone().map_or_else(|| StateFile::of_root(&cli.root), StateFile::at);
    let (code, text) = match &cli.command {
        Command::Apply { name } => pin(&board, &state, name, cli.json),
        Command::Restore { of } => put_back(&board, &state, of.as_deref(), cli.json),
        Command::Show => show(&board, &state, cli.json),
    };
    // Nobody may be there to read it; the exit code says the rest.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    ExitCode::from(code)
}

/// As JSON, or as text.
fn printed<T: Serialize>(value: &T, json: bool, text: impl FnOnce(&T) -> String) -> String {
    if json { serde_json::to_string_pretty(value).unwrap_or_else(|error| error.to_string()) } else { text(value) }
}

fn failed(code: u8, error: &dyn std::fmt::Display, json: bool) -> (u8, String) {
    #[derive(Serialize)]
    struct Failed {
        error: String,
    }
    (code, printed(&Failed { error: error.to_string() }, json, |failed| format!("skipd-profile: {}", failed.error)))
}

fn pin(board: &Board, state: &StateFile, name: &str, json: bool) -> (u8, String) {
    let profile = match Profiles::new(board.sysfs()).load(name) {
        Ok(profile) => profile,
        Err(error) => return failed(6, &error, json),
    };
    match apply(board, &profile, state) {
        Ok(applied) => {
            let text = printed(&applied, json, |applied| {
                let nodes = applied.nodes.iter().map(|node| format!("  {}\n", node.words())).collect::<String>();
                let notes = applied.notes.iter().map(|note| format!("note: {note}\n")).collect::<String>();
                format!("{}: {}\n{nodes}{notes}", applied.profile, if applied.whole { "pinned" } else { "partly pinned" })
            });
            (if applied.whole { 0 } else { 3 }, text)
        }
        Err(PinError::Nothing { profile, nodes }) => {
            let nodes = nodes.iter().map(|node| format!("\n  {}", node.words())).collect::<String>();
            failed(5, &format!("nothing of profile {profile} can be pinned here{nodes}"), json)
        }
        Err(error @ (PinError::Board { .. } | PinError::Mode { .. })) => failed(4, &error, json),
        Err(error @ PinError::Earlier(_)) => failed(3, &error, json),
        Err(error) => failed(1, &error, json),
    }
}

fn put_back(board: &Board, state: &StateFile, of: Option<&str>, json: bool) -> (u8, String) {
    let restored = of.map_or_else(|| restore(board, state), |of| restore_of(board, state, of));
    match restored {
        Ok(restored) => {
            let text = printed(&restored, json, |restored| {
                let Some(profile) = &restored.profile else { return "nothing is pinned".into() };
                let left = restored.left.iter().map(|line| format!("left: {line}\n"));
                let failed = restored.failed.iter().map(|line| format!("refused: {line}\n"));
                format!("{profile}: {} nodes restored\n{}", restored.written, left.chain(failed).collect::<String>())
            });
            (if restored.failed.is_empty() { 0 } else { 3 }, text)
        }
        Err(error @ PinError::OtherBoot { .. }) => failed(7, &error, json),
        Err(error) => failed(1, &error, json),
    }
}

fn show(board: &Board, state: &StateFile, json: bool) -> (u8, String) {
    #[derive(Serialize)]
    struct Shown {
        board: skip_platform::Identity,
        mode: Option<String>,
        profiles: Vec<String>,
        clocks: skip_platform::Watched,
        gpus: Vec<skip_platform::Devfreq>,
        nvml: Vec<skip_platform::nvml::Gpu>,
        emc: Option<skip_platform::Devfreq>,
        emc_cap: Option<u64>,
        zones: Vec<skip_platform::Zone>,
        memory: skip_platform::Memory,
    }
    let files = board.sysfs();
    let gpus = skip_platform::gpu_devfreqs(files);
    let nvml = if gpus.is_empty() && files.root().as_os_str() == "/" { Library::open() } else { None };
    let shown = Shown {
        board: board.identify(),
        mode: board.mode().ok(),
        profiles: Profiles::new(files).names(),
        clocks: watch(files, state),
        nvml: nvml.and_then(|library| library.read().ok()).unwrap_or_default(),
        emc: skip_platform::emc(files),
        emc_cap: nvpmodel::emc_cap(files).ok(),
        zones: zones(files),
        memory: memory(files),
        gpus,
    };
    let text = printed(&shown, json, |shown| {
        let board = &shown.board;
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
        let applied = shown.clocks.profile.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let reasons = shown.clocks.reasons.iter().chain(&shown.clocks.refused).map(|line| format!("  {line}\n")).collect::<String>();
        format!(
            "board     {} ({})\nL4T       {}\nmode      {}\nprofiles  {}\nclocks    {}{applied}\n{reasons}",
            or(&board.model),
            board.kind.name(),
            or(&board.l4t),
            or(&shown.mode),
            shown.profiles.join(" "),
            shown.clocks.state.name(),
        )
    });
    (0, text)
}
