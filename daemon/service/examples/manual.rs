//! Prints skipd's man page, made of the one definition of its flags; for packages.

use clap::CommandFactory;

fn main() -> std::io::Result<()> {
    let command = skipd::config::Cli::command();
    clap_mangen::Man::new(command).section("8").render(&mut std::io::stdout().lock())
}
