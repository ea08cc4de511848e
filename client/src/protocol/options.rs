//! How to generate: the options that chat, text completions and the bus share.

use super::bias::LogitBias;
use super::error::{Error, ErrorKind};
use super::fields::Fields;
use super::form::{ResponseFormat, StructuredOutputs};
use super::prompt::Stop;
use super::tables::Selector;
use super::tools::{Tool, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// Most log-probabilities that can be asked for beside the drawn token.
pub const MAX_LOGPROBS: u8 = 20;
/// Most stop strings.
pub const MAX_STOPS: usize = 16;

/// Options of a generation; a missing one takes the model's default (its generation config), else the stated one.
/// On the bus they are the keys of the `a{sv}`, with those of `skipd` beside them at the top level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GenerationOptions {
    /// At most this many new tokens, at least 1. `max_completion_tokens` is read as the same. Default: what fits the context (chat), 16 (text).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 to 2; 0 is greedy. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Keep the smallest set of tokens whose probability reaches this, in (0, 1]. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Keep this many most likely tokens; 0 (or −1 on the wire) keeps all. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this times the most likely, in [0, 1]. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Seed of the draw; without one the daemon takes a random one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Taken from a token's logit for each time it was drawn, −2 to 2. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Taken from a token's logit once it was drawn, −2 to 2. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Added to tokens' logits; at most 300 entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<LogitBias>,
    /// The form of the answer. Default `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// The form of the answer, as vLLM asks for it; one of the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_outputs: Option<StructuredOutputs>,
    /// Functions the model may call (chat).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Whether it is to call, and which. Default `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether one answer may hold several calls. Default true; a named function is called once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Strings that end the answer and are not part of it; at most 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Log-probabilities wanted: this many most likely tokens beside the drawn one (0 to 20); none at all by default.
    /// On the wire an integer `logprobs` for text, `logprobs: true` and `top_logprobs` for chat.
    #[serde(skip)]
    pub logprobs: Option<u8>,
    /// Do not end at an end-of-sequence token. Default false.
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_eos: bool,
    /// Leave special tokens out of the text. Default true.
    #[serde(skip_serializing_if = "is_true")]
    pub skip_special_tokens: bool,
    /// Send the answer as it comes, as server-sent events. Default false. (The bus always streams.)
    #[serde(skip_serializing_if = "is_false")]
    pub stream: bool,
    /// How to stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Free name of the end user; ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// skipd's own options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipd: Option<SkipdOptions>,
}

/// Options that travel as JSON text on the bus.
const AS_TEXT: [&str; 5] = ["response_format", "structured_outputs", "tools", "tool_choice", "logit_bias"];

fn is_false(value: &bool) -> bool {
    !value
}

fn is_true(value: &bool) -> bool {
    *value
}

/// OpenAI's `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOptions {
    /// Send a last chunk without choices that holds the usage. Default false.
    #[serde(default)]
    pub include_usage: bool,
}

/// skipd's own options of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipdOptions {
    /// Scheduling class. Default interactive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Give up this many milliseconds after the request arrived; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whether pages of an earlier prompt with the same beginning may be used. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_reuse: Option<bool>,
    /// Tables of this request alone, for callers who may set tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<RequestTables>,
}

/// Scheduling class; a higher one pauses a lower one at a step boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Best effort.
    Background,
    /// A person or a task waits.
    #[default]
    Interactive,
    /// A control loop waits.
    Control,
}

/// A table override of one request; a missing phase keeps the table in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestTables {
    /// For the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Selector>,
    /// For the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Selector>,
}

impl StreamOptions {
    /// What else OpenAI defines here changes nothing that is said.
    fn take(mut fields: Fields) -> Result<Self, Error> {
        Ok(Self { include_usage: fields.optional("include_usage")?.unwrap_or(false) })
    }
}

impl SkipdOptions {
    fn take(mut fields: Fields) -> Result<Self, Error> {
        let own = Self {
            priority: fields.optional("priority")?,
            deadline_ms: fields.optional("deadline_ms")?.map(deadline).transpose()?,
            prefix_reuse: fields.optional("prefix_reuse")?,
            tables: fields.inner("tables")?.map(RequestTables::take).transpose()?,
        };
        fields.end()?;
        Ok(own)
    }
}

/// A time in the protocol's milliseconds, rounded up: only one of no length is 0.
pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// One of 0 would have passed on arrival, one below it before.
fn deadline(ms: i128) -> Result<u64, Error> {
    match u64::try_from(ms.min(u64::MAX.into())) {
        Ok(0) | Err(_) => Err(Error::invalid("skipd.deadline_ms", "must be at least 1")),
        Ok(ms) => Ok(ms),
    }
}

impl RequestTables {
    fn take(mut fields: Fields) -> Result<Self, Error> {
        let tables = Self { prefill: fields.optional("prefill")?, decode: fields.optional("decode")? };
        fields.end()?;
        Ok(tables)
    }
}

impl GenerationOptions {
    /// All defaults.
    pub fn new() -> Self {
        Self { skip_special_tokens: true, ..Self::default() }
    }

    /// Options from the keys of a bus call; an unknown key is an error that names it. Forms, tools and biases may also come as JSON text,
    /// which keeps the order of a schema's properties: a D-Bus dictionary has none.
    pub fn from_bus(mut keys: Map<String, Value>) -> Result<Self, Error> {
        for key in AS_TEXT {
            if let Some(Value::String(text)) = keys.get(key)
                && let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text)
            {
                keys.insert(key.to_owned(), value);
            }
        }
        let mut own = Map::new();
        for key in ["priority", "deadline_ms", "prefix_reuse", "tables"] {
            own.extend(keys.shift_remove(key).map(|value| (key.to_owned(), value)));
        }
        if !own.is_empty() {
            keys.insert("skipd".into(), Value::Object(own));
        }
        let mut fields = Fields::new(keys);
        let mut options = Self::take(&mut fields)?;
        options.logprobs = fields.optional("logprobs")?;
        options.check()?;
        fields.end()?;
        Ok(options)
    }

    /// Options as the keys of a bus call: the inverse of [`Self::from_bus`].
    pub fn to_bus(&self) -> Map<String, Value> {
        let mut keys = match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys,
            // A struct of plain fields always serialises to an object.
            _ => Map::new(),
        };
        keys.shift_remove("stream");
        keys.shift_remove("stream_options");
        for key in AS_TEXT {
            if let Some(value) = keys.get_mut(key).filter(|value| !value.is_string()) {
                *value = value.to_string().into();
            }
        }
        if let Some(Value::Object(own)) = keys.shift_remove("skipd") {
            keys.extend(own);
        }
        keys.extend(self.logprobs.map(|n| ("logprobs".to_owned(), n.into())));
        keys
    }

    /// Takes the shared fields (all but log-probabilities) from a request.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, Error> {
        if let Some(n) = fields.optional::<u32>("n")?
            && n != 1
        {
            return Err(Error { kind: ErrorKind::Unsupported, ..Error::invalid("n", "only n = 1 is supported") });
        }
        let max_completion_tokens = fields.optional("max_completion_tokens")?;
        let max_tokens = fields.optional("max_tokens")?;
        let top_k = match fields.optional::<i64>("top_k")? {
            Some(-1) => Some(0),
            Some(k) => Some(u32::try_from(k).map_err(|_| Error::invalid("top_k", format!("{k} is not a count; -1 or 0 keeps all")))?),
            None => None,
        };
        let seed = fields.optional::<i128>("seed")?.map(|seed| seed as u64);
        Ok(Self {
            max_tokens: max_completion_tokens.or(max_tokens),
            temperature: fields.optional("temperature")?,
            top_p: fields.optional("top_p")?,
            top_k,
            min_p: fields.optional("min_p")?,
            seed,
            frequency_penalty: fields.optional("frequency_penalty")?,
            presence_penalty: fields.optional("presence_penalty")?,
            logit_bias: fields.optional("logit_bias")?.map(LogitBias::read).transpose()?,
            response_format: fields.inner("response_format")?.map(ResponseFormat::take).transpose()?,
            structured_outputs: fields.inner("structured_outputs")?.map(StructuredOutputs::take).transpose()?,
            tools: fields.optional("tools")?.map(Tool::list).transpose()?.unwrap_or_default(),
            tool_choice: fields.optional("tool_choice")?.map(ToolChoice::read).transpose()?,
            parallel_tool_calls: fields.optional("parallel_tool_calls")?,
            stop: fields.optional("stop")?,
            logprobs: None,
            ignore_eos: fields.optional("ignore_eos")?.unwrap_or(false),
            skip_special_tokens: fields.optional("skip_special_tokens")?.unwrap_or(true),
            stream: fields.optional("stream")?.unwrap_or(false),
            stream_options: fields.inner("stream_options")?.map(StreamOptions::take).transpose()?,
            user: fields.optional("user")?,
            skipd: fields.inner("skipd")?.map(SkipdOptions::take).transpose()?,
        })
    }

    /// Ranges; the error names the field.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let range = |name: &str, value: Option<f32>, ok: fn(f32) -> bool, want: &str| match value {
            Some(v) if !ok(v) => Err(Error::invalid(name, format!("{v} is not in {want}"))),
            _ => Ok(()),
        };
        range("temperature", self.temperature, |v| (0.0..=2.0).contains(&v), "[0, 2]")?;
        range("top_p", self.top_p, |v| v > 0.0 && v <= 1.0, "(0, 1]")?;
        range("min_p", self.min_p, |v| (0.0..=1.0).contains(&v), "[0, 1]")?;
        range("frequency_penalty", self.frequency_penalty, |v| (-2.0..=2.0).contains(&v), "[-2, 2]")?;
        range("presence_penalty", self.presence_penalty, |v| (-2.0..=2.0).contains(&v), "[-2, 2]")?;
        self.check_forms()?;
        if self.max_tokens == Some(0) {
            return Err(Error::invalid("max_tokens", "must be at least 1"));
        }
        if self.logprobs.is_some_and(|n| n > MAX_LOGPROBS) {
            return Err(Error::invalid("logprobs", format!("at most {MAX_LOGPROBS}")));
        }
        if self.stop.as_ref().is_some_and(|stop| stop.0.len() > MAX_STOPS) {
            return Err(Error::invalid("stop", format!("at most {MAX_STOPS} stop strings")));
        }
        if self.skipd.as_ref().is_some_and(|own| own.deadline_ms == Some(0)) {
            return Err(Error::invalid("skipd.deadline_ms", "must be at least 1"));
        }
        Ok(())
    }
}

impl GenerationOptions {
    /// One form at a time, and a choice of tools that are there.
    fn check_forms(&self) -> Result<(), Error> {
        let formed = self.response_format.as_ref().is_some_and(|format| *format != ResponseFormat::Text);
        if formed && self.structured_outputs.is_some() {
            return Err(Error::invalid("structured_outputs", "stands beside `response_format`: one of them"));
        }
        match &self.tool_choice {
            Some(ToolChoice::Required) if self.tools.is_empty() => Err(Error::invalid("tool_choice", "needs `tools`")),
            Some(ToolChoice::Function(name)) if self.tools.iter().all(|tool| tool.name() != name) => {
                Err(Error::invalid("tool_choice.function.name", format!("`{name}` is not among the tools")))
            }
            _ => Ok(()),
        }?;
        let calls = !self.tools.is_empty() && self.tool_choice != Some(ToolChoice::None);
        let form = if formed { Some("response_format") } else { self.structured_outputs.as_ref().map(|_| "structured_outputs") };
        match form {
            Some(name) if calls => {
                let words = "beside `tools` is not supported, unless `tool_choice` is `none`";
                Err(Error { kind: ErrorKind::Unsupported, ..Error::invalid(name, words) })
            }
            Some(name) if self.ignore_eos => Err(Error::invalid("ignore_eos", format!("an answer of a form ends with it: `{name}`"))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bus(value: Value) -> Result<GenerationOptions, Error> {
        GenerationOptions::from_bus(value.as_object().unwrap().clone())
    }

    #[test]
    fn a_deadline_is_above_zero_whoever_sends_it_and_other_values_are_named_in_json_s_words() {
        for ms in [json!(0), json!(-1), json!(-5000), json!("soon"), json!(0.5)] {
            for (keys, options) in [
                (json!({"deadline_ms": ms}), bus as fn(Value) -> _),
                (json!({"prompt": "a", "skipd": {"deadline_ms": ms}}), |body| {
                    crate::protocol::CompletionRequest::from_json(body.to_string().as_bytes()).map(|request| request.options)
                }),
            ] {
                let error = options(keys).unwrap_err();
                assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::InvalidRequest, Some("skipd.deadline_ms")), "{error}");
                assert!(error.message == "must be at least 1" || error.message.starts_with("expected a whole number"), "{error}");
            }
        }
        assert_eq!(bus(json!({"deadline_ms": 1})).unwrap().skipd.unwrap().deadline_ms, Some(1));
        assert_eq!([0, 1, 1_000_000, 1_000_001].map(|nanos| milliseconds(Duration::from_nanos(nanos))), [0, 1, 1, 2]);
    }

    #[test]
    fn bus_options_come_back() {
        let keys = json!({"max_tokens": 8, "temperature": 0.5, "stop": ["x"], "ignore_eos": true, "logprobs": 2, "priority": "control",
            "tables": {"prefill": "50%"}, "presence_penalty": 0.5, "logit_bias": {"7": 1.5}, "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "f"}}]});
        let options = bus(keys.clone()).unwrap();
        assert_eq!(options.skipd.as_ref().unwrap().priority, Some(Priority::Control));
        assert_eq!(Value::Object(options.to_bus()).as_object().unwrap().len(), keys.as_object().unwrap().len());
        assert_eq!(GenerationOptions::from_bus(options.to_bus()), Ok(options));
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (keys, name) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"min_p": 1.5}), "min_p"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": -1}), "max_tokens"),
            (json!({"n": 2}), "n"),
            (json!({"logprobs": 21}), "logprobs"),
            (json!({"deadline_ms": 0}), "skipd.deadline_ms"),
            (json!({"deadline_ms": "soon"}), "skipd.deadline_ms"),
            (json!({"priority": "urgent"}), "skipd.priority"),
            (json!({"priority": 1}), "skipd.priority"),
            (json!({"prefix_reuse": "no"}), "skipd.prefix_reuse"),
            (json!({"tables": "50%"}), "skipd.tables"),
            (json!({"tables": {"prefill": true}}), "skipd.tables.prefill"),
            (json!({"tables": {"middle": "50%"}}), "skipd.tables.middle"),
            (json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
            (json!({"stream_options": true}), "stream_options"),
            (json!({"colour": 1}), "colour"),
            (json!({"presence_penalty": 2.5}), "presence_penalty"),
            (json!({"frequency_penalty": "a"}), "frequency_penalty"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"response_format": "{}"}), "response_format.type"),
            (json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}), "structured_outputs"),
            (json!({"structured_outputs": "{\"regex\": \"a\", \"choice\": [\"b\"]}"}), "structured_outputs"),
            (json!({"structured_outputs": {"regex": "a"}, "ignore_eos": true}), "ignore_eos"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": {"type": "function", "function": {"name": "g"}}}), "tool_choice.function.name"),
            (
                json!({"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "response_format": {"type": "json_object"}}),
                "response_format",
            ),
        ] {
            assert_eq!(bus(keys.clone()).unwrap_err().param.as_deref(), Some(name), "{keys}");
        }
    }

    #[test]
    fn a_schema_on_the_bus_keeps_the_order_of_its_properties() {
        let text = r#"{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{"z":{},"a":{},"m":{}}}}}"#;
        let options = bus(json!({"response_format": text})).unwrap();
        assert_eq!(options.to_bus()["response_format"], text);
    }

    #[test]
    fn top_k_minus_one_keeps_all_and_a_negative_seed_is_a_seed() {
        let options = bus(json!({"top_k": -1, "seed": -3})).unwrap();
        assert_eq!(options.top_k, Some(0));
        assert_eq!(options.seed, Some(-3i64 as u64));
    }
}
