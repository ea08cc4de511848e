//! `prefix pin`, `list` and `drop`.

use super::{Context, generate};
use crate::cli::{Pin, Prefix};
use crate::failure::Failure;
use crate::format;
use skip_client::protocol::{ChatMessage, PinPrefix};

pub async fn run(context: &Context, command: Prefix) -> Result<(), Failure> {
    match command {
        Prefix::Pin(args) => pin(context, args).await,
        Prefix::List => context.show(&context.connect().await?.prefixes().await?, format::prefixes),
        Prefix::Drop { name } => context.show(&context.connect().await?.drop_prefix(&name).await?, format::prefix),
    }
}

async fn pin(context: &Context, Pin { prompt, file, system, name }: Pin) -> Result<(), Failure> {
    let text = generate::prompt(prompt.as_deref(), file.as_deref(), "prefix pin")?;
    let wanted = match system {
        true => PinPrefix { name, messages: vec![ChatMessage::new("system", text)], ..PinPrefix::default() },
        false => PinPrefix { name, prompt: Some(text.into()), ..PinPrefix::default() },
    };
    context.show(&context.connect().await?.pin_prefix(&wanted).await?, format::prefix)
}
