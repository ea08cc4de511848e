//! Building a request and sending it.

use crate::client::Client;
use crate::generation::Generation;
use crate::protocol::error::Error;
use crate::protocol::{
    ChatMessage, GenerationOptions, LogitBias, Priority, Prompt, RequestTables, ResponseFormat, SkipdOptions, Stop, StructuredOutputs,
    Tool, ToolChoice, milliseconds,
};

/// A chat under construction: its messages.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    messages: Vec<ChatMessage>,
}

/// A text completion under construction: its prompt.
#[derive(Clone, Debug)]
pub struct Text {
    prompt: Prompt,
}

/// A request under construction; nothing is sent before `send`. The client is the async one or the [blocking](crate::blocking) one.
#[derive(Clone, Debug)]
#[must_use = "a request is sent by `send`"]
pub struct RequestBuilder<'a, Kind, C = Client> {
    pub(crate) client: &'a C,
    kind: Kind,
    options: GenerationOptions,
}

impl<'a, C> RequestBuilder<'a, Chat, C> {
    pub(crate) fn chat(client: &'a C) -> Self {
        Self { client, kind: Chat::default(), options: GenerationOptions::new() }
    }

    /// Adds a message.
    pub fn message(mut self, message: ChatMessage) -> Self {
        self.kind.messages.push(message);
        self
    }

    /// Adds messages.
    pub fn messages(mut self, messages: impl IntoIterator<Item = ChatMessage>) -> Self {
        self.kind.messages.extend(messages);
        self
    }

    /// Adds a message of the user.
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(ChatMessage::new("user", text))
    }

    /// Adds a system message.
    pub fn system(self, text: impl Into<String>) -> Self {
        self.message(ChatMessage::new("system", text))
    }

    /// Adds an earlier answer of the model.
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.message(ChatMessage::new("assistant", text))
    }

    /// Adds a function that the model may call.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.options.tools.push(tool);
        self
    }

    /// Whether it is to call, and which.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.options.tool_choice = Some(choice);
        self
    }

    /// Whether one answer may hold several calls.
    pub fn parallel_tool_calls(mut self, several: bool) -> Self {
        self.options.parallel_tool_calls = Some(several);
        self
    }

    pub(crate) fn into_chat(self) -> (Vec<ChatMessage>, GenerationOptions) {
        (self.kind.messages, self.options)
    }
}

impl RequestBuilder<'_, Chat> {
    /// Sends the request; the answer streams. An error here means that nothing was started.
    pub async fn send(self) -> Result<Generation, Error> {
        self.client.send_chat(self.kind.messages, self.options).await
    }
}

impl<'a, C> RequestBuilder<'a, Text, C> {
    pub(crate) fn text(client: &'a C, prompt: Prompt) -> Self {
        Self { client, kind: Text { prompt }, options: GenerationOptions::new() }
    }

    pub(crate) fn into_text(self) -> (Prompt, GenerationOptions) {
        (self.kind.prompt, self.options)
    }
}

impl RequestBuilder<'_, Text> {
    /// Sends the request; the answer streams. An error here means that nothing was started.
    pub async fn send(self) -> Result<Generation, Error> {
        self.client.send_text(self.kind.prompt, self.options).await
    }
}

impl<Kind, C> RequestBuilder<'_, Kind, C> {
    /// At most this many new tokens.
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.options.max_tokens = Some(tokens);
        self
    }

    /// 0 is greedy.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.options.temperature = Some(temperature);
        self
    }

    /// Keep the smallest set of tokens whose probability reaches this.
    pub fn top_p(mut self, top_p: f32) -> Self {
        self.options.top_p = Some(top_p);
        self
    }

    /// Keep this many most likely tokens; 0 keeps all.
    pub fn top_k(mut self, top_k: u32) -> Self {
        self.options.top_k = Some(top_k);
        self
    }

    /// Drop tokens less likely than this times the most likely.
    pub fn min_p(mut self, min_p: f32) -> Self {
        self.options.min_p = Some(min_p);
        self
    }

    /// Seed of the draw.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// Taken from a token's logit for each time it was drawn.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.options.frequency_penalty = Some(penalty);
        self
    }

    /// Taken from a token's logit once it was drawn.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.options.presence_penalty = Some(penalty);
        self
    }

    /// Adds to a token's logit.
    pub fn logit_bias(mut self, token: u32, bias: f32) -> Self {
        self.options.logit_bias.get_or_insert_with(LogitBias::default).0.push((token, bias));
        self
    }

    /// The answer is JSON that this schema admits.
    pub fn json_schema(mut self, schema: serde_json::Value) -> Self {
        self.options.response_format = Some(ResponseFormat::schema(schema));
        self
    }

    /// The answer is a JSON object.
    pub fn json_object(mut self) -> Self {
        self.options.response_format = Some(ResponseFormat::JsonObject);
        self
    }

    /// The answer matches this regular expression from beginning to end.
    pub fn regex(mut self, regex: impl Into<String>) -> Self {
        self.options.structured_outputs = Some(StructuredOutputs::Regex(regex.into()));
        self
    }

    /// The answer is one of these texts.
    pub fn choice(mut self, choices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.structured_outputs = Some(StructuredOutputs::Choice(choices.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds a string that ends the answer.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.options.stop.get_or_insert_with(Stop::default).0.push(text.into());
        self
    }

    /// Log-probabilities of the drawn token and this many most likely ones.
    pub fn logprobs(mut self, top: u8) -> Self {
        self.options.logprobs = Some(top);
        self
    }

    /// Do not end at an end-of-sequence token.
    pub fn ignore_eos(mut self, ignore: bool) -> Self {
        self.options.ignore_eos = ignore;
        self
    }

    /// Scheduling class.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.own().priority = Some(priority);
        self
    }

    /// Give up this long after the request arrived; the daemon refuses one of no length.
    pub fn deadline(mut self, after: std::time::Duration) -> Self {
        self.own().deadline_ms = Some(milliseconds(after));
        self
    }

    /// Whether pages of an earlier prompt with the same beginning may be used.
    pub fn prefix_reuse(mut self, reuse: bool) -> Self {
        self.own().prefix_reuse = Some(reuse);
        self
    }

    /// Tables of this request alone, for callers who may set tables.
    pub fn tables(mut self, tables: RequestTables) -> Self {
        self.own().tables = Some(tables);
        self
    }

    /// Replaces all options.
    pub fn options(mut self, options: GenerationOptions) -> Self {
        self.options = options;
        self
    }

    fn own(&mut self) -> &mut SkipdOptions {
        self.options.skipd.get_or_insert_with(SkipdOptions::default)
    }
}
