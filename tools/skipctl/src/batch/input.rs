//! Reading input.json. A fault of one request is that request's; a fault of what holds for all is the file's.

use serde_json::{Map, Value, json};
use skip_client::protocol::{ChatMessage, GenerationOptions, SkipdOptions, unsupported};
use skip_client::{Error, ErrorKind};
use std::collections::BTreeSet;

/// Largest batch that is taken: as many requests are under way at once.
const MAX_BATCH: u64 = 1024;

/// What the command line says over the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// Instead of `batch_size`.
    pub batch_size: Option<u32>,
    /// Instead of `max_generate_length`.
    pub max_generate_length: Option<u32>,
}

/// A file of requests.
#[derive(Debug)]
pub struct Batch {
    /// Requests at once.
    pub size: usize,
    /// In the file's order.
    pub items: Vec<Item>,
    /// For people: what the file says and nobody looks at.
    pub notes: Vec<String>,
}

/// One request of a file.
#[derive(Debug)]
pub struct Item {
    /// Its messages as output.json repeats them: contents as lists of parts.
    pub messages: Value,
    /// What to ask, or why it is not asked.
    pub request: Result<Request, Error>,
}

/// What to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Messages, or their texts as one.
    pub prompt: Prompt,
    /// How to generate.
    pub options: GenerationOptions,
}

/// What an answer continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// For the chat template.
    Chat(Vec<ChatMessage>),
    /// As it is (`apply_chat_template: false`).
    Raw(String),
}

/// Edge-LLM's defaults, which differ from skipd's.
fn defaults() -> [(&'static str, Value); 4] {
    [("temperature", json!(1.0)), ("top_p", json!(0.8)), ("top_k", json!(50)), ("max_generate_length", json!(256))]
}

/// What holds for all requests of a file.
struct Shared {
    /// Options in skipd's names.
    options: Map<String, Value>,
    logit_bias: Option<Value>,
    num_logprobs: Option<Value>,
    template: bool,
    reuse: bool,
}

impl Batch {
    /// Reads a file.
    ///
    /// # Errors
    /// The file is no such batch, or says something for all requests that cannot be done; `param` names the field.
    pub fn parse(bytes: &[u8], overrides: Overrides) -> Result<Self, Error> {
        let file: Value =
            serde_json::from_slice(bytes).map_err(|error| Error::new(ErrorKind::InvalidRequest, format!("not JSON: {error}")))?;
        let Value::Object(mut file) = file else { return Err(Error::new(ErrorKind::InvalidRequest, "not a JSON object")) };
        let requests = match file.shift_remove("requests") {
            Some(Value::Array(requests)) if !requests.is_empty() => requests,
            Some(Value::Array(_)) => return Err(Error::invalid("requests", "holds no request")),
            _ => return Err(Error::invalid("requests", "must be a list of requests")),
        };
        let mut notes = Vec::new();
        let size = batch_size(file.shift_remove("batch_size"), overrides.batch_size)?;
        if let Some(length) = overrides.max_generate_length {
            file.insert("max_generate_length".into(), length.into());
        }
        let shared = Shared::take(&mut file, &mut notes)?;
        // What holds for all is wrong for all: it is told once, before anything is asked.
        shared.request(&mut Map::new(), Prompt::Raw(String::new()))?;
        let ignored = unsupported::check(&file)?;
        notes.extend(ignored.iter().map(|name| format!("{name} is not read")));
        let mut unread = BTreeSet::new();
        let items = requests.into_iter().enumerate().map(|(index, request)| Item::read(index, request, &shared, &mut unread)).collect();
        notes.extend(unread.iter().map(|name| format!("requests[].{name} is not read")));
        Ok(Self { size, items, notes })
    }
}

fn batch_size(of_file: Option<Value>, over: Option<u32>) -> Result<usize, Error> {
    let size = match (over, of_file) {
        (Some(size), _) => Some(u64::from(size)),
        (None, None | Some(Value::Null)) => Some(1),
        (None, Some(size)) => size.as_u64(),
    };
    size.filter(|size| (1..=MAX_BATCH).contains(size))
        .map(|size| size as usize)
        .ok_or_else(|| Error::invalid("batch_size", format!("must be a whole number from 1 to {MAX_BATCH}")))
}

fn flag(object: &mut Map<String, Value>, name: &str, default: bool) -> Result<bool, Error> {
    match object.shift_remove(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(value),
        Some(_) => Err(Error::invalid(name, "must be true or false")),
    }
}

/// One of some words; none is the first.
fn word(object: &mut Map<String, Value>, name: &str, words: [&str; 2]) -> Result<bool, Error> {
    match object.shift_remove(name) {
        None | Some(Value::Null) => Ok(true),
        Some(Value::String(value)) if words.contains(&value.as_str()) => Ok(value == words[0]),
        Some(_) => Err(Error::invalid(name, format!("must be `{}` or `{}`", words[0], words[1]))),
    }
}

fn refused(name: &str, words: &str) -> Error {
    Error { kind: ErrorKind::Unsupported, ..Error::invalid(name, words) }
}

impl Shared {
    fn take(file: &mut Map<String, Value>, notes: &mut Vec<String>) -> Result<Self, Error> {
        let template = flag(file, "apply_chat_template", true)?;
        if !flag(file, "add_generation_prompt", true)? && template {
            return Err(refused(
                "add_generation_prompt",
                "false is not supported: an answer begins where the template's prompt for one ends",
            ));
        }
        let says_thinking = file.contains_key("enable_thinking");
        if flag(file, "enable_thinking", false)? {
            return Err(refused("enable_thinking", "true is not supported: chat templates get no variables of a request"));
        }
        if says_thinking && template {
            notes.push("enable_thinking: false is not passed to the chat template: a model that thinks by default does".into());
        }
        match file.shift_remove("available_lora_weights") {
            None | Some(Value::Null) => {}
            Some(Value::Object(weights)) if weights.is_empty() => {}
            Some(Value::Object(_)) => notes.push("available_lora_weights is not read: requests that name one are refused".into()),
            Some(_) => return Err(Error::invalid("available_lora_weights", "must be an object")),
        }
        let reuse = word(file, "context_cache_lookup_policy", ["use_cache", "bypass"])?;
        // Which pages are kept for later is the daemon's to decide.
        word(file, "context_cache_commit_policy", ["including_generated_tokens", "prefill_state_only"])?;
        let mut options = Map::new();
        for (name, default) in defaults() {
            let value = file.shift_remove(name).filter(|value| !value.is_null()).unwrap_or(default);
            options.insert(name.into(), value);
        }
        Ok(Self { options, logit_bias: file.shift_remove("logit_bias"), num_logprobs: file.shift_remove("num_logprobs"), template, reuse })
    }

    /// A request from its own fields and those of all.
    fn request(&self, own: &mut Map<String, Value>, prompt: Prompt) -> Result<Request, Error> {
        let mut keys = self.options.clone();
        let mut either =
            |name: &str, shared: &Option<Value>| own.shift_remove(name).or_else(|| shared.clone()).filter(|value| !value.is_null());
        let bias = either("logit_bias", &self.logit_bias);
        let logprobs = either("num_logprobs", &self.num_logprobs).filter(|count| count.as_u64() != Some(0));
        let stop = either("stop", &None);
        keys.extend(
            [("logit_bias", bias), ("logprobs", logprobs), ("stop", stop)].into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))),
        );
        if let Some(length) = keys.shift_remove("max_generate_length") {
            keys.insert("max_tokens".into(), length);
        }
        let mut options = GenerationOptions::from_bus(keys).map_err(|error| {
            let param = error.param.as_deref().map(|param| match param {
                "max_tokens" => "max_generate_length".to_owned(),
                "logprobs" => "num_logprobs".to_owned(),
                other => other.to_owned(),
            });
            Error { param, ..error }
        })?;
        if !self.reuse {
            options.skipd = Some(SkipdOptions { prefix_reuse: Some(false), ..SkipdOptions::default() });
        }
        Ok(Request { prompt, options })
    }
}

impl Item {
    fn read(index: usize, request: Value, shared: &Shared, unread: &mut BTreeSet<String>) -> Self {
        let at = |error: Error| {
            let param = error.param.as_ref().map_or_else(|| format!("requests[{index}]"), |param| format!("requests[{index}].{param}"));
            Error { param: Some(param), ..error }
        };
        let Value::Object(mut own) = request else {
            return Self { messages: json!([]), request: Err(at(Error::new(ErrorKind::InvalidRequest, "must be an object"))) };
        };
        let messages = own.shift_remove("messages").unwrap_or_default();
        let request = own_request(&mut own, messages.clone(), shared, unread).map_err(at);
        Self { messages: repeated(messages), request }
    }
}

fn own_request(own: &mut Map<String, Value>, messages: Value, shared: &Shared, unread: &mut BTreeSet<String>) -> Result<Request, Error> {
    match own.shift_remove("lora_name") {
        None | Some(Value::Null) => {}
        Some(Value::String(name)) if name.is_empty() => {}
        Some(_) => return Err(refused("lora_name", "adapters are not supported")),
    }
    // Pages are reused for every prompt that begins alike, and nothing is drafted: both are as wished, whatever the wish.
    flag(own, "save_system_prompt_kv_cache", false)?;
    flag(own, "disable_spec_decode", false)?;
    let messages = ChatMessage::list(messages)?;
    unsupported::check_messages(&messages)?;
    let prompt = match shared.template {
        true => Prompt::Chat(messages),
        false => Prompt::Raw(messages.into_iter().map(|message| message.content.0).collect()),
    };
    let request = shared.request(own, prompt)?;
    unread.extend(unsupported::check(own)?);
    Ok(request)
}

/// Messages with every content as a list of parts.
fn repeated(messages: Value) -> Value {
    let Value::Array(messages) = messages else { return json!([]) };
    let parts = |mut message: Value| {
        if let Some(content) = message.get_mut("content")
            && content.is_string()
        {
            *content = json!([{"type": "text", "text": content.take()}]);
        }
        message
    };
    messages.into_iter().map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: Value) -> Result<Batch, Error> {
        Batch::parse(file.to_string().as_bytes(), Overrides::default())
    }

    fn ask(text: &str) -> Value {
        json!({"messages": [{"role": "user", "content": text}]})
    }

    #[test]
    fn a_bare_file_has_edge_llms_defaults() {
        let batch = read(json!({"requests": [ask("a"), ask("b")]})).unwrap();
        assert_eq!((batch.size, batch.items.len(), batch.notes.len()), (1, 2, 0));
        let request = batch.items[1].request.as_ref().unwrap();
        let options = &request.options;
        assert_eq!((options.temperature, options.top_p, options.top_k, options.max_tokens), (Some(1.0), Some(0.8), Some(50), Some(256)));
        assert_eq!((&options.logprobs, &options.skipd), (&None, &None));
        assert_eq!(request.prompt, Prompt::Chat(vec![ChatMessage::new("user", "b")]));
        assert_eq!(batch.items[1].messages, json!([{"role": "user", "content": [{"type": "text", "text": "b"}]}]));
    }

    #[test]
    fn a_request_has_its_own_stops_biases_and_logprobs() {
        let mut own = ask("a");
        own["stop"] = json!("###");
        own["logit_bias"] = json!({"7": 1.5});
        own["num_logprobs"] = json!(2);
        let file = json!({"batch_size": 4, "temperature": 0, "top_k": 1, "max_generate_length": 8, "logit_bias": {"9": -1}, "num_logprobs": 0,
            "context_cache_lookup_policy": "bypass", "requests": [own, ask("b")]});
        let batch = Batch::parse(file.to_string().as_bytes(), Overrides { batch_size: Some(2), max_generate_length: Some(3) }).unwrap();
        let [a, b] = [0, 1].map(|i| batch.items[i].request.clone().unwrap().options);
        assert_eq!((batch.size, a.max_tokens), (2, Some(3)), "the command line wins");
        assert_eq!((a.stop.unwrap().0, a.logprobs, a.logit_bias.unwrap().0), (vec!["###".to_owned()], Some(2), vec![(7, 1.5)]));
        assert_eq!((b.stop, b.logprobs, b.logit_bias.unwrap().0), (None, None, vec![(9, -1.0)]));
        assert_eq!(b.skipd.unwrap().prefix_reuse, Some(false));
    }

    #[test]
    fn without_the_template_the_texts_are_one_prompt() {
        let parts = json!([{"type": "text", "text": "On"}, {"type": "text", "text": "ce"}]);
        let messages = json!([{"role": "system", "content": parts}, {"role": "user", "content": " upon"}]);
        let batch =
            read(json!({"apply_chat_template": false, "add_generation_prompt": false, "requests": [{"messages": messages}]})).unwrap();
        assert_eq!(batch.items[0].request.as_ref().unwrap().prompt, Prompt::Raw("Once upon".into()));
    }

    #[test]
    fn a_fault_of_one_request_is_its_own_and_named() {
        let image = json!([{"type": "image", "image": "a.jpg"}, {"type": "text", "text": "What is this?"}]);
        for (request, param, words) in [
            (
                json!({"messages": [{"role": "user", "content": image}]}),
                "requests[1].messages[0].content",
                "type `image` are not supported",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}]}),
                "requests[1].messages[0].content",
                "`audio`",
            ),
            (json!({"messages": []}), "requests[1].messages", "at least one"),
            (json!({}), "requests[1].messages", "list"),
            (json!("hello"), "requests[1]", "must be an object"),
            (
                json!({"messages": [{"role": "user", "content": "a"}], "lora_name": "french"}),
                "requests[1].lora_name",
                "adapters are not supported",
            ),
            (json!({"messages": [{"role": "user", "content": "a"}], "stop": 7}), "requests[1].stop", "string"),
            (json!({"messages": [{"role": "user", "content": "a"}], "logit_bias": {"x": 1}}), "requests[1].logit_bias.x", "token id"),
            (json!({"messages": [{"role": "user", "content": "a"}], "num_logprobs": 99}), "requests[1].num_logprobs", "at most"),
            (
                json!({"messages": [{"role": "user", "content": "a"}], "disable_spec_decode": 1}),
                "requests[1].disable_spec_decode",
                "true or false",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a"}], "repetition_penalty": 1.2}),
                "requests[1].repetition_penalty",
                "not supported",
            ),
        ] {
            let batch = read(json!({"requests": [ask("a"), request]})).unwrap();
            assert!(batch.items[0].request.is_ok());
            let error = batch.items[1].request.as_ref().unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error}");
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn a_fault_of_the_file_is_told_before_anything_is_asked() {
        let with = |name: &str, value: Value| json!({name: value, "requests": [ask("a")]});
        for (file, param) in [
            (with("batch_size", json!(0)), "batch_size"),
            (with("batch_size", json!(1e9)), "batch_size"),
            (with("temperature", json!(-1)), "temperature"),
            (with("top_p", json!("much")), "top_p"),
            (with("max_generate_length", json!(0)), "max_generate_length"),
            (with("num_logprobs", json!(21)), "num_logprobs"),
            (with("logit_bias", json!({"1": 500})), "logit_bias.1"),
            (with("enable_thinking", json!(true)), "enable_thinking"),
            (with("add_generation_prompt", json!(false)), "add_generation_prompt"),
            (with("apply_chat_template", json!("yes")), "apply_chat_template"),
            (with("context_cache_lookup_policy", json!("sometimes")), "context_cache_lookup_policy"),
            (with("available_lora_weights", json!([])), "available_lora_weights"),
            (with("repetition_penalty", json!(1.1)), "repetition_penalty"),
            (json!({"requests": []}), "requests"),
            (json!({}), "requests"),
        ] {
            assert_eq!(read(file.clone()).unwrap_err().param.as_deref(), Some(param), "{file}");
        }
        assert!(read(json!([])).unwrap_err().message.contains("not a JSON object"));
    }

    #[test]
    fn what_is_not_read_is_noted_once() {
        let request =
            |answer: &str| json!({"messages": [{"role": "user", "content": "a"}], "answer": answer, "save_system_prompt_kv_cache": true});
        let file = json!({"comment": "x", "enable_thinking": false, "available_lora_weights": {"f": "p"}, "requests": [request("A"), request("B")]});
        let notes = read(file).unwrap().notes.join("\n");
        assert_eq!(notes.matches("requests[].answer is not read").count(), 1);
        for words in ["comment is not read", "enable_thinking: false is not passed", "available_lora_weights is not read"] {
            assert!(notes.contains(words), "{notes}");
        }
    }
}
