//! The daemon: configuration, bus, socket, table store, metrics, and the engine behind them.

use clap::Parser;
use skipd::config::{Bus, Cli, Config, ConfigError, SYSTEM_CONFIG};
use skipd::unconfigured::{self, Patience};
use skipd::{model, process, qualify, renderer};
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::Instant;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let started = Instant::now();
    if std::env::args_os().nth(1).is_some_and(|first| first == qualify::CHILD_FLAG) {
        return qualify::child_main();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == renderer::FLAG) {
        return renderer::child_main(std::env::args_os().skip(2));
    }
    let cli = Cli::parse();
    let config = match Config::load(cli.clone()) {
        Ok(config) => config,
        Err(error) if unconfigured::is_service() => return tell_callers(cli, &error),
        Err(error) => return fail(&error, 2),
    };
    let filter = EnvFilter::try_from_default_env().or_else(|_| EnvFilter::try_new(&config.log));
    let filter = match filter {
        Ok(filter) => filter,
        Err(error) => return fail(&format!("--log: {error}"), 2),
    };
    let colours = std::io::stderr().is_terminal();
    // A log that cannot be written (a full disk, a reader that is gone) is no reason to stop serving, and to say so there would panic.
    let log = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(colours).with_target(false).init();
    // The engine has its own threads; these carry sockets and the bus.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("io").enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}"), 1),
    };
    let result = runtime.block_on(process::run(config, started, model::open));
    // A blocking task (a prompt being tokenised, a folder being read) must not hold up the end.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_code()),
    }
}

/// A service has callers, who are told what is wrong with the configuration. Exit code 2: no start will be better. 1: the next one will.
fn tell_callers(cli: Cli, error: &ConfigError) -> ExitCode {
    let code = fail(error, 2);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return code };
    let bus = Bus::of(&cli);
    let problem = move || {
        let error = Config::load(cli.clone()).err()?;
        Some(format!(
            "skipd is not configured: {error}; put it right in {SYSTEM_CONFIG} (see skipd(8)), then systemctl restart skipd.service"
        ))
    };
    let end = runtime.block_on(unconfigured::answer(&bus, Patience::default(), problem));
    runtime.shutdown_background();
    match end {
        unconfigured::End::Idle => code,
        unconfigured::End::Configured => ExitCode::FAILURE,
    }
}

fn fail(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    // Nobody may be there to read it; the exit code says the rest.
    let _ = writeln!(std::io::stderr(), "skipd: {error}");
    ExitCode::from(code)
}
