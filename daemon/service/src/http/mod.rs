//! The socket's HTTP face: OpenAI's routes, health and metrics, and skipd's own control routes; one file a route.

mod arrival;
mod body;
mod chat;
mod completions;
mod control;
mod door;
mod follow;
mod health;
mod models;
pub(crate) mod reply;
mod server;
mod sse;

pub use door::Tcp;
pub use server::serve;

use crate::peer::{Peer, Right};
use crate::state::Daemon;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::{delete, get, post};
use reply::{Refusal, Reply};
use skip_client::protocol::names;
use skip_client::{Error, ErrorKind};
use std::sync::Arc;

/// The daemon, shared by all handlers.
type Shared = State<Arc<Daemon>>;

/// All routes. The peer is an extension of each request, put there by [`serve`].
pub fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route(names::CHAT_COMPLETIONS, post(chat::post))
        .route(names::COMPLETIONS, post(completions::post))
        .route(names::MODELS, get(models::list))
        .route(&format!("{}/{{*id}}", names::MODELS), get(models::one))
        .route(names::HEALTH, get(health::live))
        .route(names::READY, get(health::ready))
        .route(names::METRICS, get(health::metrics))
        .route(names::STATUS, get(control::status::get))
        .route(names::REQUESTS, get(control::requests::get))
        .route(names::TABLES, get(control::tables::show))
        .route(names::TIERS, get(control::tables::tiers))
        .route(names::TABLES_CONFIRM, post(control::tables::confirm))
        .route(names::TABLES_REVERT, post(control::tables::revert))
        .route(names::TABLES_RELOAD, post(control::tables::reload))
        .route(&format!("{}/{{phase}}", names::TABLES), get(control::tables::phase).put(control::tables::set))
        .route(names::TOKENIZE, post(control::tokenize::post))
        .route(names::DRAIN, post(control::drain::post))
        .route(names::PREFIXES, get(control::prefixes::list).post(control::prefixes::pin))
        .route(&format!("{}/{{name}}", names::PREFIXES), delete(control::prefixes::drop_one))
        .route(names::JOBS, get(control::jobs::list).post(control::jobs::start))
        .route(&format!("{}/{{id}}", names::JOBS), get(control::jobs::show))
        .route(&format!("{}/{{id}}/cancel", names::JOBS), post(control::jobs::cancel))
        .route(names::PROFILE, get(control::profile::show))
        .route(names::PROFILE_APPLY, post(control::profile::apply))
        .route(names::PROFILE_RELEASE, post(control::profile::release))
        .route(names::UPDATE, get(control::update::show))
        .route(names::UPDATE_APPLY, post(control::update::apply))
        .route(names::UPDATE_ROLLBACK, post(control::update::roll_back))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(follow::follow))
        .with_state(daemon)
}

async fn unknown_route(uri: Uri) -> Reply {
    Err(Error::new(ErrorKind::NotFound, format!("there is no {}", uri.path())).into())
}

async fn wrong_method(method: Method, uri: Uri) -> Reply {
    Err(Error::new(ErrorKind::MethodNotAllowed, format!("{} does not take {method}", uri.path())).into())
}

/// Who sent a request.
fn peer(request: &Request) -> Result<Arc<Peer>, Refusal> {
    let known = request.extensions().get::<Arc<Peer>>().cloned();
    known.ok_or_else(|| Error::new(ErrorKind::AccessDenied, "the connection has no credentials").into())
}

/// Refuses peers without the right to control.
fn check_control(daemon: &Daemon, request: &Request) -> Result<(), Refusal> {
    Ok(daemon.authority.check(&*peer(request)?, Right::Control)?)
}

#[cfg(test)]
mod tests;
