//! Completions and man pages, from the one definition.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::CommandFactory;
use std::io::Write;
use std::path::Path;

pub fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "skipctl", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// One page a command: `skipctl.1`, `skipctl-set-table.1`, …
pub fn man(dir: &Path) -> Result<(), Failure> {
    let wrong = |error| Failure::Io(dir.display().to_string(), error);
    std::fs::create_dir_all(dir).map_err(wrong)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(wrong)
}
