//! From what was asked to what the engine takes: defaults filled in, prompt tokenised, tables resolved.

use super::calls::Expected;
use super::{Ask, Input, steering};
use crate::peer::Peer;
use crate::request_id::RequestId;
use crate::state::{Daemon, Model};
use skip_client::protocol::{GenerationOptions, Phase, Priority, Prompt, RequestTables, Tool};
use skip_client::{Error, ErrorKind};
use skip_engine::handle::{self, ClientId, Request, TableSet};
use skip_kernels::sampling::SamplingParams;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

/// OpenAI's default for text completions.
const TEXT_MAX_TOKENS: u32 = 16;
/// Longest stop string, bytes: text is held back for as long as one may be coming.
const MAX_STOP_BYTES: usize = 1024;

/// A request ready for the engine, and what the service keeps of it.
pub struct Plan {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) stops: Vec<String>,
    pub(super) skip_special: bool,
    pub(super) wants_logprobs: bool,
    /// Where the model was told of functions.
    pub(super) calls: Option<Expected>,
    /// The field that asks for changed logits.
    pub(super) steered_by: Option<&'static str>,
    pub(super) arrived: Instant,
}

impl Plan {
    /// Tokenises on a thread where waiting is allowed: prompts may be megabytes.
    pub(super) async fn new(daemon: &Daemon, model: &Model, peer: &Peer, ask: Ask, arrived: Instant) -> Result<Self, Error> {
        let Ask { id, input, options, .. } = ask;
        let is_chat = matches!(input, Input::Chat(_));
        let (steering, steered_by) = steering::steering(model, &options).await?;
        let tools = steering::told(&options).to_vec();
        let calls = expected(model, &tools, options.parallel_tool_calls.unwrap_or(true));
        let prompt = tokenise(model, input, tools).await?;
        if prompt.is_empty() {
            return Err(Error::invalid(if is_chat { "messages" } else { "prompt" }, "the prompt is empty"));
        }
        let own = options.skipd.clone().unwrap_or_default();
        let tables = match &own.tables {
            Some(wanted) => Some(resolve(model, wanted)?),
            None => None,
        };
        let stops = options.stop.clone().map(|stop| stop.0).unwrap_or_default();
        if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
            return Err(Error::invalid("stop", format!("a stop string has 1 to {MAX_STOP_BYTES} bytes")));
        }
        let max_tokens = match options.max_tokens {
            Some(n) => n,
            None => default_max_tokens(daemon, model, prompt.len(), is_chat),
        };
        let request = Request {
            prompt,
            max_tokens,
            sampling: sampling(model, &options),
            ignore_eos: options.ignore_eos,
            priority: match own.priority.unwrap_or_default() {
                Priority::Background => handle::Priority::Background,
                Priority::Interactive => handle::Priority::Interactive,
                Priority::Control => handle::Priority::Control,
            },
            deadline: own.deadline_ms.and_then(|ms| arrived.checked_add(Duration::from_millis(ms))),
            client: ClientId(peer.id()),
            tables,
            steering,
            reuse: own.prefix_reuse.unwrap_or(true),
            measure: false,
        };
        let wants_logprobs = options.logprobs.is_some();
        Ok(Self { id, request, stops, skip_special: options.skip_special_tokens, wants_logprobs, calls, steered_by, arrived })
    }
}

/// The calls that an answer may hold; None where the model is told of no functions.
fn expected(model: &Model, tools: &[Tool], several: bool) -> Option<Expected> {
    let form = model.text.calls().filter(|_| !tools.is_empty())?.clone();
    let most = if several && form.several { u32::MAX } else { 1 };
    Some(Expected { form, functions: tools.iter().map(|tool| tool.name().to_owned()).collect(), most })
}

async fn tokenise(model: &Model, input: Input, tools: Vec<Tool>) -> Result<Vec<u32>, Error> {
    let text = model.text.clone();
    let span = tracing::Span::current();
    let task = tokio::task::spawn_blocking(move || {
        span.in_scope(|| match input {
            Input::Chat(messages) => text.encode_chat(&messages, &tools),
            Input::Raw(Prompt::Text(prompt)) if prompt.is_empty() => Ok(Vec::new()),
            Input::Raw(Prompt::Text(prompt)) => text.encode(&prompt),
            Input::Raw(Prompt::Tokens(ids)) => Ok(ids),
        })
    });
    task.await.map_err(|_| Error::new(ErrorKind::Internal, "the tokenizer failed"))?
}

/// A chat answer may take what the context has left, up to the configured number: what is reserved for it, others cannot have.
fn default_max_tokens(daemon: &Daemon, model: &Model, prompt: usize, is_chat: bool) -> u32 {
    let wanted = if is_chat { daemon.config.default_max_tokens } else { TEXT_MAX_TOKENS };
    let room = model.context().saturating_sub(u32::try_from(prompt).unwrap_or(u32::MAX));
    // With no room at all the engine refuses, with the counts.
    wanted.min(room).max(1)
}

fn sampling(model: &Model, options: &GenerationOptions) -> SamplingParams {
    let defaults = &model.defaults;
    SamplingParams {
        temperature: options.temperature.or(defaults.temperature).unwrap_or(1.0),
        top_k: options.top_k.or(defaults.top_k).unwrap_or(0),
        top_p: options.top_p.or(defaults.top_p).unwrap_or(1.0),
        min_p: options.min_p.or(defaults.min_p).unwrap_or(0.0),
        seed: options.seed.unwrap_or_else(random_seed),
        logprobs: options.logprobs,
        edits: None,
    }
}

/// The standard library keys each of these hashers at random; no more is needed of a seed.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A phase that is not named keeps the table in force.
fn resolve(model: &Model, wanted: &RequestTables) -> Result<TableSet, Error> {
    let mut tables = model.tables.in_force();
    if let Some(selector) = &wanted.prefill {
        tables.prefill = model.tables.resolve(Phase::Prefill, selector).map_err(|e| e.at("skipd.tables.prefill"))?;
    }
    if let Some(selector) = &wanted.decode {
        tables.decode = model.tables.resolve(Phase::Decode, selector).map_err(|e| e.at("skipd.tables.decode"))?;
    }
    Ok(tables)
}
