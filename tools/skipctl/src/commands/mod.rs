//! One file a command, and what they share: the connection and the interrupt.

mod bench;
mod calibrate;
mod chat;
mod doctor;
mod evaluate;
mod generate;
mod import;
mod job;
mod meta;
mod options;
mod prefix;
mod price;
mod profile;
mod qualify;
mod report;
mod run;
mod status;
mod stream;
mod tables;
mod top;
mod update;

use crate::cli::{Cli, Command, Table};
use crate::failure::Failure;
use crate::output;
use skip_client::Client;
use std::path::PathBuf;

/// Where the daemon is, and how to print.
pub struct Context {
    socket: Option<PathBuf>,
    bus: Option<String>,
    json: bool,
}

impl Context {
    async fn connect(&self) -> Result<Client, Failure> {
        Ok(match (&self.bus, &self.socket) {
            (Some(address), _) => Client::connect_bus(address).await?,
            (None, Some(path)) => Client::connect_socket(path).await?,
            (None, None) => Client::connect().await?,
        })
    }

    /// Prints JSON where wanted, else the text.
    fn show<T: serde::Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.json { output::json(value) } else { output::text_line(text(value).trim_end()) }
    }
}

/// Runs a command; Ctrl-C ends it, and dropping it cancels its request.
pub async fn run(cli: Cli) -> Result<(), Failure> {
    let context = Context { socket: cli.socket, bus: cli.bus, json: cli.json };
    match cli.command {
        // A conversation takes Ctrl-C itself: it ends the answer, not the program. For the live view it is the end.
        Command::Chat(args) => chat::run(&context, args).await,
        Command::Top { once, interval } => top::run(&context, once, interval).await,
        // And for a job it is the order to end.
        Command::Calibrate(args) => calibrate::run(&context, args).await,
        Command::Evaluate(args) => evaluate::run(&context, args).await,
        Command::Price(args) => price::run(&context, args).await,
        Command::Qualify => qualify::run(&context).await,
        // It puts clocks back first.
        Command::Bench(args) => bench::run(&context, args).await,
        command => tokio::select! {
            result = dispatch(&context, command) => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        },
    }
}

async fn dispatch(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Status { wait } => status::run(context, wait).await,
        Command::Generate(args) => generate::run(context, args).await,
        Command::Chat(args) => chat::run(context, args).await,
        Command::Top { once, interval } => top::run(context, once, interval).await,
        Command::Run(args) => run::run(context, args).await,
        Command::SetTable(args) => tables::set(context, args).await,
        Command::Confirm => tables::confirm(context).await,
        Command::Revert => tables::revert(context).await,
        Command::Table(Table::Show) => tables::show(context).await,
        Command::Table(Table::Check { file, checkpoint }) => tables::check::run(context, &file, checkpoint.as_deref()),
        Command::Table(Table::Export(args)) => tables::export::run(context, args).await,
        Command::Table(Table::Reload) => tables::reload(context).await,
        Command::Tiers => tables::tiers(context).await,
        Command::Prefix(command) => prefix::run(context, command).await,
        Command::Update(command) => update::run(context, command).await,
        Command::Profile(command) => profile::run(context, command).await,
        Command::Import { gguf, dir } => import::run(context, gguf, dir).await,
        Command::Qualify => qualify::run(context).await,
        Command::Calibrate(args) => calibrate::run(context, args).await,
        Command::Evaluate(args) => evaluate::run(context, args).await,
        Command::Price(args) => price::run(context, args).await,
        Command::Report(args) => report::run(context, &args),
        Command::Job(command) => job::run(context, command).await,
        Command::Bench(args) => bench::run(context, args).await,
        Command::Drain => status::drain(context).await,
        Command::Doctor(args) => doctor::run(context, &args).await,
        Command::Completions { shell } => meta::completions(shell),
        Command::Man { dir } => meta::man(&dir),
    }
}
