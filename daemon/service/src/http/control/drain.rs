//! `POST /skipd/v1/drain`: no new requests from now on; answers when the running ones have ended.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, check_control, health};
use crate::lifecycle::Stage;
use axum::extract::{Request, State};
use axum::http::StatusCode;

/// Drains.
pub async fn post(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    tracing::info!("draining by request");
    daemon.life.advance(Stage::Draining);
    if let Some(model) = daemon.model() {
        // An engine that has ended is as idle as one can be.
        model.engine.drain().await;
    }
    Ok(reply::json(StatusCode::OK, &health::readiness(&daemon)))
}
