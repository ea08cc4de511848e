//! `POST /v1/completions`.

use super::{Shared, body, follow, peer, reply, sse};
use crate::generation::{self, Ask, Input, Outcome, Running};
use crate::peer::Right;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use reply::Reply;
use serde_json::{Map, Value};
use skip_client::protocol::{
    Completion, CompletionChoice, CompletionRequest, FinishReason, LogprobEntry, TextLogprobs, ToolCallDelta, Usage, unsupported,
};
use skip_client::{Error, ErrorKind};
use sse::Envelope;

/// Continues a text.
pub async fn post(State(daemon): Shared, request: Request) -> Reply {
    let peer = peer(&request)?;
    daemon.authority.check(&peer, Right::Generate)?;
    let (id, reader) = (follow::id(&request), follow::stall(&request));
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    let request = CompletionRequest::from_json(&body)?;
    drop(body);
    let ignored = unsupported::check(&request.unknown)?;
    if request.echo {
        return Err(Error::new(ErrorKind::Unsupported, "`echo` is not supported and would change the output").at("echo").into());
    }
    let options = request.options.clone();
    let ask = Ask { id: id.clone(), model: request.model, input: Input::Raw(request.prompt), options: request.options };
    let running = generation::start(&daemon, &peer, ask).await?;
    let shape = Text { envelope: Envelope::new("cmpl", &id, running.model_name()), wants_logprobs: options.logprobs.is_some(), offset: 0 };
    let mut response = if options.stream {
        running.heed(&reader);
        let include_usage = options.stream_options.is_some_and(|stream| stream.include_usage);
        sse::respond(running, shape, include_usage)
    } else {
        whole(running, shape).await?
    };
    reply::name_ignored(&mut response, &ignored);
    Ok(response)
}

async fn whole(mut running: Running, mut shape: Text) -> Reply {
    let (answer, Outcome { reason, usage, .. }) = sse::collect(&mut running).await?;
    let logprobs = shape.logprobs(answer.logprobs);
    let answer =
        shape.completion(Some(CompletionChoice { index: 0, text: answer.text, logprobs, finish_reason: Some(reason) }), Some(usage));
    Ok(reply::json(StatusCode::OK, &answer))
}

/// The chunks of one answer.
struct Text {
    envelope: Envelope,
    wants_logprobs: bool,
    /// Where the next token begins in the text, in characters.
    offset: u32,
}

impl Text {
    fn completion(&self, choice: Option<CompletionChoice>, usage: Option<Usage>) -> Completion {
        let Envelope { id, created, model } = self.envelope.clone();
        Completion { id, object: "text_completion".into(), created, model, choices: choice.into_iter().collect(), usage }
    }

    fn logprobs(&mut self, entries: Vec<LogprobEntry>) -> Option<TextLogprobs> {
        if !self.wants_logprobs {
            return None;
        }
        let mut lists = TextLogprobs::default();
        for entry in entries {
            lists.text_offset.push(self.offset);
            self.offset += u32::try_from(entry.token.chars().count()).unwrap_or(u32::MAX);
            let mut top: Map<String, Value> = entry.top_logprobs.into_iter().map(|top| (top.token, top.logprob.into())).collect();
            // OpenAI always lists the drawn token, asked for or not.
            top.entry(entry.token.clone()).or_insert(entry.logprob.into());
            lists.top_logprobs.push(top);
            lists.token_logprobs.push(entry.logprob);
            lists.tokens.push(entry.token);
        }
        Some(lists)
    }
}

impl sse::Shape for Text {
    type Chunk = Completion;

    fn first(&mut self) -> Option<Completion> {
        None
    }

    fn text(&mut self, text: String, logprobs: Vec<LogprobEntry>) -> Completion {
        let logprobs = self.logprobs(logprobs);
        self.completion(Some(CompletionChoice { index: 0, text, logprobs, finish_reason: None }), None)
    }

    /// There are no functions here, and no calls.
    fn call(&mut self, _: ToolCallDelta) -> Completion {
        self.completion(None, None)
    }

    fn last(&mut self, reason: FinishReason) -> Completion {
        self.completion(Some(CompletionChoice { index: 0, text: String::new(), logprobs: None, finish_reason: Some(reason) }), None)
    }

    fn usage(&mut self, usage: Usage) -> Completion {
        self.completion(None, Some(usage))
    }
}
