//! Tables: show, set, confirm, revert, reload; checking and exporting files.

pub mod check;
pub mod export;

use super::{Context, options};
use crate::cli::SetTable;
use crate::failure::Failure;
use crate::format;
use skip_client::protocol::SetTableOptions;

pub async fn show(context: &Context) -> Result<(), Failure> {
    context.show(&context.connect().await?.tables().await?, format::tables)
}

pub async fn tiers(context: &Context) -> Result<(), Failure> {
    context.show(&context.connect().await?.tiers().await?, format::tiers)
}

pub async fn set(context: &Context, args: SetTable) -> Result<(), Failure> {
    let selector = options::selector(&args.selector)?;
    let options =
        SetTableOptions { persist: args.persist, confirm_within: args.confirm_within.map(|time| time.as_secs_f64()), force: args.force };
    let table = context.connect().await?.set_table(args.phase.into(), selector, options).await?;
    context.show(&table, format::table)
}

pub async fn confirm(context: &Context) -> Result<(), Failure> {
    context.show(&context.connect().await?.confirm().await?, format::tables)
}

pub async fn revert(context: &Context) -> Result<(), Failure> {
    context.show(&context.connect().await?.revert().await?, format::tables)
}

pub async fn reload(context: &Context) -> Result<(), Failure> {
    context.show(&context.connect().await?.reload().await?, format::tables)
}
