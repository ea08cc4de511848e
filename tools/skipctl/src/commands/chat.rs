//! `chat`: one message and its answer, or a conversation on a terminal.

use super::{Context, generate, options, stream};
use crate::cli::Chat;
use crate::failure::Failure;
use crate::output;
use skip_client::Client;
use skip_client::protocol::{ChatMessage, GenerationOptions};
use std::io::{self, IsTerminal, Write};
use tokio::io::{AsyncBufReadExt, BufReader, Stdin};
use tokio::signal::ctrl_c;

pub async fn run(context: &Context, args: Chat) -> Result<(), Failure> {
    let options = options::generation(&args.options, context.json)?;
    let mut history: Vec<ChatMessage> = args.system.iter().map(|text| ChatMessage::new("system", text)).collect();
    let message = match &args.message {
        Some(text) if text != "-" => Some(text.clone()),
        None if io::stdin().is_terminal() => None,
        _ => Some(generate::stdin()?),
    };
    // Input that is at its end says nothing, and is answered nothing.
    if args.message.as_deref().is_none_or(|text| text == "-") && message.as_deref().is_some_and(|text| text.trim().is_empty()) {
        return Ok(());
    }
    let client = tokio::select! {
        client = context.connect() => client?,
        _ = ctrl_c() => return Err(Failure::Interrupted),
    };
    match message {
        Some(text) => {
            history.push(ChatMessage::new("user", text));
            tokio::select! {
                answer = answer(context, &client, &history, &options, &args) => answer.map(drop),
                _ = ctrl_c() => Err(Failure::Interrupted),
            }
        }
        None => converse(context, &client, history, &options, &args).await,
    }
}

async fn answer(
    context: &Context,
    client: &Client,
    history: &[ChatMessage],
    options: &GenerationOptions,
    args: &Chat,
) -> Result<String, Failure> {
    let generation = client.chat().messages(history.iter().cloned()).options(options.clone()).send().await?;
    stream::show(context, generation, &args.options).await
}

/// Lines in, answers out, until end of input. An answer that fails is taken out of the history with its question.
async fn converse(
    context: &Context,
    client: &Client,
    mut history: Vec<ChatMessage>,
    options: &GenerationOptions,
    args: &Chat,
) -> Result<(), Failure> {
    output::note("Ctrl-C stops an answer, Ctrl-D ends, /new forgets the conversation.");
    let beginning = history.len();
    let mut input = BufReader::new(tokio::io::stdin());
    while let Some(line) = prompt(&mut input).await? {
        match line.trim() {
            "" => continue,
            "/new" => history.truncate(beginning),
            "/exit" | "/quit" => break,
            text => {
                history.push(ChatMessage::new("user", text));
                let outcome = tokio::select! {
                    outcome = answer(context, client, &history, options, args) => outcome,
                    _ = ctrl_c() => Err(Failure::Interrupted),
                };
                match outcome {
                    Ok(text) => history.push(ChatMessage::new("assistant", text)),
                    Err(Failure::BrokenPipe) => return Err(Failure::BrokenPipe),
                    Err(failure) => {
                        history.pop();
                        output::note(&format!("\nskipctl: {failure}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// The next line; None at the end of input or on Ctrl-C.
async fn prompt(input: &mut BufReader<Stdin>) -> Result<Option<String>, Failure> {
    let mut err = io::stderr();
    // The prompt is a courtesy; the line is read all the same.
    let _ = err.write_all(b"> ").and_then(|()| err.flush());
    let mut line = String::new();
    tokio::select! {
        read = input.read_line(&mut line) => match read.map_err(|error| Failure::Io("standard input".into(), error))? {
            0 => { output::note(""); Ok(None) }
            _ => Ok(Some(line)),
        },
        _ = ctrl_c() => { output::note(""); Ok(None) }
    }
}
