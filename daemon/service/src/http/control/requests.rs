//! `GET /skipd/v1/requests`.

use crate::activity;
use crate::http::reply::{self, Reply};
use crate::http::{Shared, peer};
use axum::extract::{Request, State};
use axum::http::StatusCode;

/// The requests under way, as far as who asks may see them.
pub async fn get(State(daemon): Shared, request: Request) -> Reply {
    let peer = peer(&request)?;
    Ok(reply::json(StatusCode::OK, &activity::report(&daemon, &peer).await?))
}
