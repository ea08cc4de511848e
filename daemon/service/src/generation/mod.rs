//! One generation, whatever it came in by: validate → authorise → render and tokenise → submit → a stream of events.
//!
//! Socket and bus both call [`start`] and then [`Running::next`] until the end; neither knows of tokens, and nothing here knows of HTTP or D-Bus.

mod account;
mod assemble;
mod calls;
mod log;
mod plan;
mod running;
mod steering;
mod usage;

pub use running::{Event, Outcome, Running};
pub(crate) use running::{reason, refusal};

use crate::peer::{Peer, Right};
use crate::request_id::RequestId;
use crate::state::Daemon;
use plan::Plan;
use skip_client::Error;
use skip_client::protocol::{ChatMessage, GenerationOptions, Priority, Prompt, unsupported};
use std::sync::Arc;
use std::time::Instant;

/// What is asked, however it was carried.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What the request is called.
    pub id: RequestId,
    /// Model name; None: the loaded one.
    pub model: Option<String>,
    /// What to answer or continue.
    pub input: Input,
    /// How.
    pub options: GenerationOptions,
}

/// The prompt before it is tokens.
#[derive(Clone, Debug)]
pub enum Input {
    /// A conversation, rendered by the model's template.
    Chat(Vec<ChatMessage>),
    /// Text or token ids as they are.
    Raw(Prompt),
}

/// Checks, tokenises and submits a request.
///
/// # Errors
/// Access, an unknown model, a daemon that is not ready, a prompt that is empty or does not fit, a full queue: each as its own kind.
/// Nothing has been computed then.
pub async fn start(daemon: &Arc<Daemon>, peer: &Peer, ask: Ask) -> Result<Running, Error> {
    submit(daemon, peer, ask, Instant::now()).await.inspect_err(|error| {
        daemon.metrics.refused(error.kind);
        // Its words may hold what was asked.
        tracing::debug!(code = error.kind.code(), "refused");
    })
}

async fn submit(daemon: &Arc<Daemon>, peer: &Peer, ask: Ask, arrived: Instant) -> Result<Running, Error> {
    daemon.authority.check(peer, Right::Generate)?;
    if let Some(own) = &ask.options.skipd {
        if own.tables.is_some() {
            daemon.authority.check(peer, Right::Control).map_err(|e| e.at("skipd.tables"))?;
        }
        if own.priority == Some(Priority::Control) {
            daemon.authority.check(peer, Right::ControlPriority).map_err(|e| e.at("skipd.priority"))?;
        }
    }
    if let Input::Chat(messages) = &ask.input {
        unsupported::check_messages(messages)?;
    }
    let model = daemon.ready_model()?;
    model.check_name(ask.model.as_deref())?;
    steering::check(&model, &ask)?;
    let plan = Plan::new(daemon, &model, peer, ask, arrived).await?;
    Running::submit(daemon.clone(), model, plan)
}

#[cfg(test)]
mod tests;
