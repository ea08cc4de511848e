//! `POST /v1/chat/completions`.

use super::{Shared, body, follow, peer, reply, sse};
use crate::generation::{self, Ask, Input, Outcome, Running};
use crate::peer::Right;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use reply::Reply;
use skip_client::protocol::{
    Answered, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprobs, ChatRequest, Delta, FinishReason, LogprobEntry,
    ToolCallDelta, Usage, unsupported,
};
use sse::Envelope;

/// Answers a conversation.
pub async fn post(State(daemon): Shared, request: Request) -> Reply {
    let peer = peer(&request)?;
    // Before the body is read: an outsider's megabytes are not worth parsing.
    daemon.authority.check(&peer, Right::Generate)?;
    let (id, reader) = (follow::id(&request), follow::stall(&request));
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    let request = ChatRequest::from_json(&body)?;
    drop(body);
    let ignored = unsupported::check(&request.unknown)?;
    let options = request.options.clone();
    let ask = Ask { id: id.clone(), model: request.model, input: Input::Chat(request.messages), options: request.options };
    let running = generation::start(&daemon, &peer, ask).await?;
    let envelope = Envelope::new("chatcmpl", &id, running.model_name());
    let shape = Chat { envelope, wants_logprobs: options.logprobs.is_some() };
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

async fn whole(mut running: Running, shape: Chat) -> Reply {
    let (answer, Outcome { reason, usage, .. }) = sse::collect(&mut running).await?;
    // OpenAI has null, not an empty text, beside calls.
    let content = (!answer.text.is_empty() || answer.calls.is_empty()).then_some(answer.text);
    let message = Answered { role: "assistant".into(), content, tool_calls: answer.calls };
    let choice = ChatChoice { index: 0, message, logprobs: shape.logprobs(answer.logprobs), finish_reason: reason };
    let Envelope { id, created, model } = shape.envelope;
    let answer = ChatCompletion { id, object: "chat.completion".into(), created, model, choices: vec![choice], usage };
    Ok(reply::json(StatusCode::OK, &answer))
}

/// The chunks of one answer.
struct Chat {
    envelope: Envelope,
    wants_logprobs: bool,
}

impl Chat {
    fn logprobs(&self, content: Vec<LogprobEntry>) -> Option<ChatLogprobs> {
        self.wants_logprobs.then_some(ChatLogprobs { content })
    }

    fn chunk(&self, choice: Option<ChatChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        let Envelope { id, created, model } = self.envelope.clone();
        ChatChunk { id, object: "chat.completion.chunk".into(), created, model, choices: choice.into_iter().collect(), usage }
    }

    fn choice(&self, delta: Delta, logprobs: Option<ChatLogprobs>, finish_reason: Option<FinishReason>) -> ChatChunk {
        self.chunk(Some(ChatChunkChoice { index: 0, delta, logprobs, finish_reason }), None)
    }
}

impl sse::Shape for Chat {
    type Chunk = ChatChunk;

    fn first(&mut self) -> Option<ChatChunk> {
        let delta = Delta { role: Some("assistant".into()), content: Some(String::new()), ..Delta::default() };
        Some(self.choice(delta, None, None))
    }

    fn text(&mut self, text: String, logprobs: Vec<LogprobEntry>) -> ChatChunk {
        let logprobs = self.logprobs(logprobs);
        self.choice(Delta { content: Some(text), ..Delta::default() }, logprobs, None)
    }

    fn call(&mut self, call: ToolCallDelta) -> ChatChunk {
        self.choice(Delta { tool_calls: vec![call], ..Delta::default() }, None, None)
    }

    fn last(&mut self, reason: FinishReason) -> ChatChunk {
        self.choice(Delta::default(), None, Some(reason))
    }

    fn usage(&mut self, usage: Usage) -> ChatChunk {
        self.chunk(None, Some(usage))
    }
}
