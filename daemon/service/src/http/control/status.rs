//! `GET /skipd/v1/status`.

use crate::http::Shared;
use crate::http::reply::{self, Reply};
use crate::status;
use axum::extract::State;
use axum::http::StatusCode;

/// What the daemon is and does.
pub async fn get(State(daemon): Shared) -> Reply {
    Ok(reply::json(StatusCode::OK, &status::report(&daemon)))
}
