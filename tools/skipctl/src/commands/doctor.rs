//! `doctor`: what serving needs of this machine, and what mends what is wrong.

use super::Context;
use crate::cli::Doctor;
use crate::doctor::{Machine, Places, Report, State, examine};
use crate::failure::Failure;
use std::path::PathBuf;

pub async fn run(context: &Context, args: &Doctor) -> Result<(), Failure> {
    let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let places = Places::of(context.socket.as_deref(), context.bus.as_deref(), env);
    let machine = Machine::at(&args.root, args.config.as_deref(), None).asked(places).await;
    let report = examine(&machine);
    context.show(&report, Report::text)?;
    match report.count(State::Failure) {
        0 => Ok(()),
        failures => Err(Failure::Unwell(failures)),
    }
}
