//! Fields that OpenAI (or vLLM) defines and skipd does not do: refused where they would change the output, else named and ignored.

use super::error::{Error, ErrorKind};
use super::prompt::ChatMessage;
use serde_json::{Map, Value};

/// Fields that would change the output. A value that asks for nothing (zero, false, empty, `auto`) is let through.
pub const CHANGES_OUTPUT: &[&str] = &[
    "audio",
    "bad_words",
    "best_of",
    "chat_template",
    "chat_template_kwargs",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "length_penalty",
    "min_tokens",
    "modalities",
    "prediction",
    "reasoning_effort",
    "repetition_penalty",
    "stop_token_ids",
    "suffix",
    "truncate_prompt_tokens",
    "typical_p",
    "use_beam_search",
    "verbosity",
    "web_search_options",
];

/// Fields of a message that say something which no template, or only a model with ears, would show.
pub const OF_A_MESSAGE: &[&str] = &["function_call", "audio"];

/// Refuses messages that hold more than is read: what a template leaves out would be lost without a word.
pub fn check_messages(messages: &[ChatMessage]) -> Result<(), Error> {
    for (index, message) in messages.iter().enumerate() {
        for &name in OF_A_MESSAGE {
            if message.other.get(name).is_some_and(|value| !asks_for_nothing(name, value)) {
                let words = format!("`{name}` of a message is not supported and would be lost");
                return Err(Error::new(ErrorKind::Unsupported, words).at(format!("messages[{index}].{name}")));
            }
        }
    }
    Ok(())
}

/// Refuses unknown fields that would change the output; returns the names of the others, for [`super::names::IGNORED_HEADER`].
pub fn check(unknown: &Map<String, Value>) -> Result<Vec<String>, Error> {
    let mut ignored = Vec::new();
    for (name, value) in unknown {
        if !CHANGES_OUTPUT.contains(&name.as_str()) {
            ignored.push(name.clone());
        } else if !asks_for_nothing(name, value) {
            return Err(Error::new(ErrorKind::Unsupported, format!("`{name}` is not supported and would change the output")).at(name));
        }
    }
    Ok(ignored)
}

/// Whether a value is the default that many clients send along.
fn asks_for_nothing(name: &str, value: &Value) -> bool {
    match (name, value) {
        ("repetition_penalty" | "length_penalty" | "best_of" | "typical_p", value) => value.as_f64() == Some(1.0),
        ("function_call", Value::String(choice)) => choice == "auto" || choice == "none",
        ("modalities", Value::Array(kinds)) => kinds.iter().all(|kind| kind == "text"),
        (_, Value::Null | Value::Bool(false)) => true,
        (_, Value::Number(number)) => number.as_f64() == Some(0.0),
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        (_, Value::Object(fields)) => fields.is_empty(),
        (_, Value::Bool(true)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn verdict(value: Value) -> Result<Vec<String>, Error> {
        check(value.as_object().unwrap())
    }

    #[test]
    fn what_changes_the_output_is_refused_by_name() {
        for field in [
            json!({"repetition_penalty": 1.1}),
            json!({"functions": [{}]}),
            json!({"guided_json": {"type": "object"}}),
            json!({"best_of": 2}),
            json!({"min_tokens": 3}),
        ] {
            let error = verdict(field.clone()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported);
            assert_eq!(error.param.as_ref(), field.as_object().unwrap().keys().next());
        }
    }

    #[test]
    fn calls_in_a_message_are_refused_by_place_and_empty_ones_pass() {
        let messages = |value: Value| ChatMessage::list(value).unwrap();
        for (name, value) in [("function_call", json!({"name": "f"})), ("audio", json!({"id": "a"}))] {
            let error =
                check_messages(&messages(json!([{"role": "user", "content": "a"}, {"role": "assistant", name: value}]))).unwrap_err();
            assert_eq!((error.kind, error.param), (ErrorKind::Unsupported, Some(format!("messages[1].{name}"))));
        }
        let plain = json!([{"role": "assistant", "content": "a", "audio": {}, "function_call": null, "name": "x"}]);
        assert_eq!(check_messages(&messages(plain)), Ok(()));
    }

    #[test]
    fn defaults_pass_and_the_rest_is_named() {
        let harmless =
            json!({"repetition_penalty": 1, "functions": [], "function_call": "auto", "best_of": 1, "store": true, "metadata": {}});
        assert_eq!(verdict(harmless).unwrap(), ["store", "metadata"]);
    }
}
