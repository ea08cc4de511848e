//! `GET /health`, `/ready` and `/metrics`.

use super::Shared;
use super::reply::{self, Reply};
use crate::metrics;
use crate::state::Daemon;
use axum::extract::State;
use axum::http::StatusCode;
use skip_client::protocol::{Ready, State as Life};
use skip_client::{Error, ErrorKind};

/// The process lives.
pub async fn live() -> Reply {
    Ok(reply::json(StatusCode::OK, &serde_json::json!({"status": "ok"})))
}

/// 200 when requests are served, else 503; with state and progress.
pub async fn ready(State(daemon): Shared) -> Reply {
    let body = readiness(&daemon);
    let status = if body.state == Life::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(reply::json(status, &body))
}

/// State, progress and reason.
pub fn readiness(daemon: &Daemon) -> Ready {
    let stage = daemon.life.stage();
    Ready { state: stage.state(), progress: f64::from(stage.progress()), reason: stage.reason().unwrap_or_default() }
}

/// Prometheus text.
pub async fn metrics(State(daemon): Shared) -> Reply {
    let text = metrics::render(&daemon).map_err(|_| Error::new(ErrorKind::Internal, "metrics cannot be written"))?;
    Ok(reply::with_type(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text))
}
