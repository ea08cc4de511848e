//! What a request asks of its tokens: the form of the answer, calls of functions, penalties and biases, for the engine.

use super::{Ask, Input};
use crate::state::Model;
use skip_client::protocol::{GenerationOptions, ResponseFormat, StructuredOutputs, Tool, ToolChoice};
use skip_client::{Error, ErrorKind};
use skip_engine::calls::CallForm;
use skip_engine::grammar::{Function, Spec};
use skip_engine::handle::Steering;

/// Refuses what this model, or this kind of request, cannot do.
pub(super) fn check(model: &Model, ask: &Ask) -> Result<(), Error> {
    let unsupported = |param: String, words: &str| Err(Error::new(ErrorKind::Unsupported, words).at(param));
    let has_tools = !ask.options.tools.is_empty();
    match &ask.input {
        Input::Raw(_) if has_tools => unsupported("tools".into(), "functions are told of in conversations alone"),
        Input::Chat(_) if has_tools && model.text.calls().is_none() => {
            unsupported("tools".into(), "the model's chat template tells of no tools, or has them called in a form that is not known")
        }
        Input::Chat(messages) if model.text.calls().is_none() => {
            let holds_calls =
                |value: Option<&serde_json::Value>| value.and_then(|calls| calls.as_array()).is_some_and(|calls| !calls.is_empty());
            match messages.iter().position(|message| holds_calls(message.other.get("tool_calls"))) {
                Some(index) => {
                    let words = "the model's chat template shows no calls: `tool_calls` of a message would be lost";
                    unsupported(format!("messages[{index}].tool_calls"), words)
                }
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// The functions that the model is told of.
pub(super) fn told(options: &GenerationOptions) -> &[Tool] {
    if options.tool_choice == Some(ToolChoice::None) { &[] } else { &options.tools }
}

/// What the engine is to keep to, and the field that asks for it, if there is one.
pub(super) async fn steering(model: &Model, options: &GenerationOptions) -> Result<(Steering, Option<&'static str>), Error> {
    let bias = options.logit_bias.as_ref().map(|bias| bias.0.clone()).unwrap_or_default();
    let vocabulary = model.engine.model().vocabulary;
    if let Some((id, _)) = bias.iter().find(|(id, _)| *id >= vocabulary) {
        return Err(Error::invalid(format!("logit_bias.{id}"), format!("is outside the vocabulary of {vocabulary}")));
    }
    let mut steering = Steering {
        grammar: None,
        frequency_penalty: options.frequency_penalty.unwrap_or(0.0),
        presence_penalty: options.presence_penalty.unwrap_or(0.0),
        bias,
    };
    let asked = [
        (steering.frequency_penalty != 0.0, "frequency_penalty"),
        (steering.presence_penalty != 0.0, "presence_penalty"),
        (!steering.bias.is_empty(), "logit_bias"),
    ];
    let mut by = asked.into_iter().find(|(asks, _)| *asks).map(|(_, name)| name);
    if let Some((spec, param)) = spec(model, options) {
        steering.grammar = Some(model.forms.compile(spec, param).await?);
        by = Some(param);
    }
    Ok((steering, by))
}

/// The form that is asked for, and the field that asks for it.
fn spec(model: &Model, options: &GenerationOptions) -> Option<(Spec, &'static str)> {
    if let Some(calls) = model.text.calls().and_then(|form| calls(form, options)) {
        return Some((calls, "tools"));
    }
    match (&options.response_format, &options.structured_outputs) {
        (Some(ResponseFormat::JsonObject), _) => Some((Spec::Json(serde_json::json!({"type": "object"})), "response_format")),
        (Some(ResponseFormat::JsonSchema { json_schema }), _) => {
            Some((Spec::Json(json_schema.schema.clone()), "response_format.json_schema.schema"))
        }
        (_, Some(StructuredOutputs::Json(schema))) => Some((Spec::Json(schema.clone()), "structured_outputs.json")),
        (_, Some(StructuredOutputs::Regex(regex))) => Some((Spec::Regex(regex.clone()), "structured_outputs.regex")),
        (_, Some(StructuredOutputs::Choice(choices))) => Some((Spec::Choice(choices.clone()), "structured_outputs.choice")),
        (Some(ResponseFormat::Text) | None, None) => None,
    }
}

/// Calls are held to their form where the client asks for a call, or for strict arguments.
fn calls(form: &CallForm, options: &GenerationOptions) -> Option<Spec> {
    let tools = told(options);
    let several = options.parallel_tool_calls.unwrap_or(true);
    let function = |tool: &Tool| Function { name: tool.name().to_owned(), arguments: tool.parameters().cloned() };
    let calls = |functions, several, text| Some(Spec::Calls { form: form.clone(), functions, several, text });
    match &options.tool_choice {
        Some(ToolChoice::Required) => calls(tools.iter().map(function).collect(), several, false),
        Some(ToolChoice::Function(name)) => calls(tools.iter().filter(|tool| tool.name() == name).map(function).collect(), false, false),
        Some(ToolChoice::Auto) | None if tools.iter().any(Tool::is_strict) => {
            // The others may be called with any object.
            let strict = |tool: &Tool| Function { arguments: tool.parameters().filter(|_| tool.is_strict()).cloned(), ..function(tool) };
            calls(tools.iter().map(strict).collect(), several, true)
        }
        Some(ToolChoice::Auto | ToolChoice::None) | None => None,
    }
}
