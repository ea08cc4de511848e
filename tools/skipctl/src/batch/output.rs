//! Writing output.json.

use super::input::{Item, Prompt};
use serde_json::{Value, json};
use skip_client::protocol::{ErrorBody, FinishReason, LogprobEntry};
use skip_client::{Answer, Error};
use std::path::Path;

/// What stands in `output_text` of a request that failed: scripts leave out what has exactly these words.
pub const FAILED: &str = "TensorRT Edge LLM cannot handle this request. Fails.";

/// The whole file.
pub fn document(input: &Path, responses: Vec<Value>) -> Value {
    json!({"input_file": input, "responses": responses})
}

/// One answer, or one failure, in its place; `size` is how many requests make a batch.
pub fn response(index: usize, size: usize, item: &Item, outcome: &Result<Answer, Error>) -> Value {
    let raw = match &item.request {
        Ok(request) => match &request.prompt {
            Prompt::Raw(text) => text.as_str(),
            Prompt::Chat(_) => "",
        },
        Err(_) => "",
    };
    let stops = item.request.as_ref().is_ok_and(|request| request.options.stop.is_some());
    let mut response = json!({
        "output_text": outcome.as_ref().map_or(FAILED, |answer| answer.text.as_str()),
        "request_idx": index,
        "batch_idx": index % size.max(1),
        "finish_reason": outcome.as_ref().map_or("error", |answer| finish_reason(answer.reason, stops)),
        "messages": item.messages,
        // Templates are rendered in the daemon, which does not tell the text.
        "formatted_system_prompt": "",
        "formatted_complete_request": raw,
    });
    match outcome {
        Ok(answer) => {
            if !answer.logprobs.is_empty() {
                response["logprobs"] = answer.logprobs.iter().map(step).collect();
            }
            response["usage"] = json!(answer.usage);
        }
        Err(error) => response["error"] = json!(ErrorBody::from(error.clone()).error),
    }
    response
}

/// Edge-LLM's words. The daemon does not tell a stop string from an end token: `stop` is either, where there are stop strings.
fn finish_reason(reason: FinishReason, stops: bool) -> &'static str {
    match reason {
        FinishReason::Stop if stops => "stop",
        FinishReason::Stop => "end-id",
        other => other.name(),
    }
}

/// The most likely tokens of a step, descending; ids are not told.
fn step(entry: &LogprobEntry) -> Value {
    let one =
        |token: &str, bytes: &Option<Vec<u8>>, logprob: f32| json!({"token_id": null, "token": token, "bytes": bytes, "logprob": logprob});
    entry.top_logprobs.iter().map(|top| one(&top.token, &top.bytes, top.logprob)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::input::{Batch, Overrides};
    use super::*;
    use skip_client::ErrorKind;
    use skip_client::protocol::{TopLogprob, Usage};

    fn item(request: Value) -> Item {
        let file = json!({"apply_chat_template": false, "requests": [request]});
        Batch::parse(file.to_string().as_bytes(), Overrides::default()).unwrap().items.remove(0)
    }

    fn answer(reason: FinishReason) -> Result<Answer, Error> {
        let top = TopLogprob { token: "a".into(), logprob: -0.5, bytes: Some(vec![97]) };
        let entry = LogprobEntry { token: "a".into(), logprob: -0.5, bytes: Some(vec![97]), top_logprobs: vec![top] };
        Ok(Answer { text: "a".into(), logprobs: vec![entry], tool_calls: Vec::new(), reason, usage: Usage::default() })
    }

    #[test]
    fn an_answer_has_every_key_that_scripts_read() {
        let item = item(json!({"messages": [{"role": "user", "content": "Once"}]}));
        let response = response(5, 4, &item, &answer(FinishReason::Stop));
        let expected = json!({"output_text": "a", "request_idx": 5, "batch_idx": 1, "finish_reason": "end-id",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Once"}]}], "formatted_system_prompt": "",
            "formatted_complete_request": "Once", "logprobs": [[{"token_id": null, "token": "a", "bytes": [97], "logprob": -0.5}]],
            "usage": Usage::default()});
        assert_eq!(response, expected);
    }

    #[test]
    fn ends_are_told_in_edge_llms_words() {
        let stops = item(json!({"messages": [{"role": "user", "content": "a"}], "stop": ["x"]}));
        assert_eq!(response(0, 1, &stops, &answer(FinishReason::Stop))["finish_reason"], "stop");
        assert_eq!(response(0, 1, &stops, &answer(FinishReason::Length))["finish_reason"], "length");
    }

    #[test]
    fn a_failure_has_the_words_that_scripts_look_for_and_its_reason() {
        let item = item(json!({"messages": "none"}));
        let error = item.request.clone().unwrap_err();
        let failed = response(0, 1, &item, &Err(error));
        assert_eq!((&failed["output_text"], &failed["finish_reason"]), (&json!(FAILED), &json!("error")));
        assert_eq!(failed["error"]["param"], "requests[0].messages");
        assert_eq!(failed["error"]["code"], ErrorKind::InvalidRequest.code());
        assert_eq!(failed["messages"], json!([]));
    }
}
