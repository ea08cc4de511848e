//! Server-sent events of the OpenAI routes, turned into stream events.

use crate::lines::Lines;
use crate::protocol::error::{Error, ErrorBody, ErrorKind};
use crate::protocol::{ChatLogprobs, FinishReason, LogprobEntry, StreamEvent, TextLogprobs, ToolCallDelta, TopLogprob, Usage};
use serde::Deserialize;
use std::collections::VecDeque;

/// Data of one event may span lines; more than this in all is refused.
const MAX_DATA: usize = 4 << 20;

/// Cuts events out of a body and understands their chunks.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    lines: Lines,
    data: String,
    has_data: bool,
    ready: VecDeque<StreamEvent>,
    reason: Option<FinishReason>,
    usage: Option<Usage>,
    finished: bool,
}

/// Chat chunk or text chunk: what both have, as far as it is needed.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<DeltaText>,
    text: Option<String>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Deserialize)]
struct DeltaText {
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ToolCallDelta>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Logprobs {
    Chat(ChatLogprobs),
    Text(TextLogprobs),
}

impl SseParser {
    /// Adds what a read returned.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.lines.push(bytes);
    }

    /// The next event; None: more bytes are needed, or the terminal event has been given out.
    pub(crate) fn next_event(&mut self) -> Result<Option<StreamEvent>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.finished {
                return Ok(None);
            }
            let Some(line) = self.lines.next_line()? else { return Ok(None) };
            self.line(&line)?;
        }
    }

    /// One line: a field, a comment (begins with a colon), or the empty line that ends an event.
    fn line(&mut self, line: &str) -> Result<(), Error> {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return if std::mem::take(&mut self.has_data) { self.event(&data) } else { Ok(()) };
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field != "data" {
            return Ok(());
        }
        let value = value.strip_prefix(' ').unwrap_or(value);
        if self.has_data {
            self.data.push('\n');
        }
        self.has_data = true;
        self.data.push_str(value);
        if self.data.len() > MAX_DATA {
            return Err(Error::new(ErrorKind::Protocol, format!("an event is longer than {MAX_DATA} bytes")));
        }
        Ok(())
    }

    fn event(&mut self, data: &str) -> Result<(), Error> {
        if data == "[DONE]" {
            self.finished = true;
            let reason = self.reason.ok_or_else(|| Error::new(ErrorKind::Protocol, "the stream ended without a finish reason"))?;
            let usage = self.usage.take().unwrap_or_default();
            let error = reason.error_kind().map(|kind| Error::new(kind, format!("the request ended early: {reason}")));
            self.ready.push_back(StreamEvent::Finished { reason, usage, error });
            return Ok(());
        }
        if data.starts_with("{\"error\"")
            && let Ok(body) = serde_json::from_str::<ErrorBody>(data)
        {
            self.finished = true;
            self.ready.push_back(early_end(body.into_error(500))?);
            return Ok(());
        }
        let chunk: Chunk =
            serde_json::from_str(data).map_err(|error| Error::new(ErrorKind::Protocol, format!("a chunk is not understood: {error}")))?;
        self.usage = chunk.usage.or(self.usage.take());
        for choice in chunk.choices {
            let (content, calls) = choice.delta.map_or((None, Vec::new()), |delta| (delta.content, delta.tool_calls));
            let text = choice.text.or(content).unwrap_or_default();
            let logprobs = match choice.logprobs {
                Some(Logprobs::Chat(list)) => list.content,
                Some(Logprobs::Text(lists)) => entries(lists),
                None => Vec::new(),
            };
            if !text.is_empty() || !logprobs.is_empty() {
                self.ready.push_back(StreamEvent::Text { text, logprobs });
            }
            self.ready.extend(calls.into_iter().map(|call| StreamEvent::ToolCall { call }));
            self.reason = choice.finish_reason.or(self.reason);
        }
        Ok(())
    }
}

/// The end that an error event stands for: with the counts it carries it is a terminal event, without it is the error alone.
fn early_end(mut error: Error) -> Result<StreamEvent, Error> {
    let Some(usage) = error.details.get("usage").and_then(|usage| Usage::deserialize(usage).ok()) else { return Err(error) };
    error.details.shift_remove("usage");
    Ok(StreamEvent::Finished { reason: FinishReason::of_error(error.kind), usage, error: Some(error) })
}

/// The parallel lists of a text completion as entries.
pub(crate) fn entries(lists: TextLogprobs) -> Vec<LogprobEntry> {
    let mut tops = lists.top_logprobs.into_iter();
    let drawn = lists.tokens.into_iter().zip(lists.token_logprobs);
    drawn
        .map(|(token, logprob)| LogprobEntry {
            token,
            logprob,
            bytes: None,
            top_logprobs: tops
                .next()
                .unwrap_or_default()
                .into_iter()
                .map(|(token, value)| TopLogprob { token, logprob: value.as_f64().unwrap_or(f64::NAN) as f32, bytes: None })
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHAT: &str = concat!(
        ": a comment\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        "event: message\r\nid: 4\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\u{e9}\"},\"finish_reason\":null}]}\r\n\r\n",
        "data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"llo\"},\n",
        "data: \"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n",
        "data: [DONE]\n\n",
    );

    fn parse(text: &str, step: usize) -> Result<Vec<StreamEvent>, Error> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for piece in text.as_bytes().chunks(step) {
            parser.push(piece);
            while let Some(event) = parser.next_event()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn text(text: &str) -> StreamEvent {
        StreamEvent::Text { text: text.into(), logprobs: vec![] }
    }

    #[test]
    fn a_chat_stream_is_understood_wherever_it_is_split() {
        let usage = Usage { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5, ..Usage::default() };
        let whole = [text("hé"), text("llo"), StreamEvent::Finished { reason: FinishReason::Length, usage, error: None }];
        for step in 1..CHAT.len() {
            assert_eq!(parse(CHAT, step).unwrap(), whole, "split every {step}");
        }
    }

    #[test]
    fn a_text_stream_carries_log_probabilities() {
        let stream = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[-0.5],\
                      \"top_logprobs\":[{\"a\":-0.5,\"b\":-1.5}],\"text_offset\":[0]},\"finish_reason\":null}]}\n\n";
        let events = parse(stream, 7).unwrap();
        let [StreamEvent::Text { logprobs, .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((logprobs[0].logprob, logprobs[0].top_logprobs[1].token.as_str()), (-0.5, "b"));
    }

    #[test]
    fn pieces_of_a_call_are_events() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\
                      \"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},\"finish_reason\":null}]}\n\n\
                      data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]}}]}\n\n";
        let begin = ToolCallDelta::begin(0, "call_1".into(), "f".into());
        let calls = [begin, ToolCallDelta::more(0, "{}".into())].map(|call| StreamEvent::ToolCall { call });
        assert_eq!(parse(stream, 11).unwrap(), calls);
    }

    #[test]
    fn an_early_end_names_its_error() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"deadline\"}]}\n\ndata: [DONE]\n\n";
        let events = parse(stream, 64).unwrap();
        let [StreamEvent::Finished { reason: FinishReason::Deadline, error: Some(error), .. }] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(error.kind, ErrorKind::Deadline);
    }

    #[test]
    fn an_error_event_with_counts_is_a_terminal_event() {
        let stream = "data: {\"error\":{\"message\":\"late\",\"type\":\"server_error\",\"code\":\"deadline_exceeded\",\
                      \"details\":{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}}}\n\n";
        let events = parse(stream, 9).unwrap();
        let [StreamEvent::Finished { reason: FinishReason::Deadline, usage, error: Some(error) }] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!((usage.total_tokens, error.message.as_str(), error.details.len()), (4, "late", 0));
    }

    #[test]
    fn an_error_event_is_that_error() {
        let stream = "data: {\"error\":{\"message\":\"gone\",\"type\":\"server_error\",\"param\":null,\"code\":\"device_fault\"}}\n\n";
        assert_eq!(parse(stream, 5).unwrap_err().kind, ErrorKind::DeviceFault);
    }

    #[test]
    fn done_without_a_reason_and_a_broken_chunk_are_protocol_errors() {
        for stream in ["data: [DONE]\n\n", "data: {\"choices\":\n\n", "data: 3\n\n"] {
            assert_eq!(parse(stream, 3).unwrap_err().kind, ErrorKind::Protocol, "{stream}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1usize..40) {
            let mut parser = SseParser::default();
            for piece in bytes.chunks(step) {
                parser.push(piece);
                while let Ok(Some(_)) = parser.next_event() {}
            }
        }
    }
}
