//! The command line of skipd: asks, generates, sets tables, imports; over the socket or the bus.

mod batch;
mod cli;
mod commands;
mod doctor;
mod failure;
mod format;
mod output;
mod report;
mod saved;

use clap::Parser;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let json = cli.json;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::report(&Failure::Io("the runtime".into(), error), json),
    };
    let result = runtime.block_on(commands::run(cli));
    // A thread that still waits for a line of input must not hold up the end.
    runtime.shutdown_background();
    match result {
        Ok(()) | Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(failure) => failure::report(&failure, json),
    }
}
