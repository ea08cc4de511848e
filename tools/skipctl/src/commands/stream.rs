//! Showing an answer as it comes.

use super::Context;
use crate::failure::Failure;
use crate::output::{self, Streamed};
use crate::{cli::Options, format};
use serde::Serialize;
use skip_client::protocol::{FinishReason, LogprobEntry, ToolCall, Usage};
use skip_client::{Error, Generation, StreamEvent};

/// A whole answer as `--json` prints it.
#[derive(Serialize)]
struct Whole {
    text: String,
    finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<LogprobEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    usage: Usage,
}

/// Prints the answer; returns its text. An early end is an error, after its text and usage were shown.
pub async fn show(context: &Context, mut generation: Generation, options: &Options) -> Result<String, Failure> {
    let mut out = Streamed::new();
    let (mut whole, mut all, mut tool_calls) = (String::new(), Vec::new(), Vec::new());
    while let Some(event) = generation.next().await {
        match event {
            Ok(StreamEvent::Text { text, logprobs }) => {
                if !context.json {
                    out.push(&text)?;
                }
                whole.push_str(&text);
                all.extend(logprobs);
            }
            Ok(StreamEvent::ToolCall { call }) => call.add_to(&mut tool_calls),
            Ok(StreamEvent::Finished { reason, usage, error }) => {
                if context.json {
                    output::json(&Whole { text: whole.clone(), finish_reason: reason, logprobs: all, tool_calls, usage })?;
                } else {
                    out.finish()?;
                    if !options.quiet {
                        output::note(&format::usage(&usage));
                    }
                }
                let early = reason.error_kind().map(|kind| Error::new(kind, format!("the request ended early: {reason}")));
                return match error.or(early) {
                    Some(error) => Err(error.into()),
                    None => Ok(whole),
                };
            }
            Ok(_) => {}
            Err(error) => {
                out.finish()?;
                return Err(error.into());
            }
        }
    }
    // A generation ends with a terminal event or an error.
    Ok(whole)
}
