//! `/skipd/v1/prefixes…`: everybody may look, administrators may pin and drop.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, body, check_control, follow, peer};
use crate::prefixes;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use skip_client::protocol::PinPrefix;

/// `GET /skipd/v1/prefixes`.
pub async fn list(State(daemon): Shared) -> Reply {
    Ok(reply::json(StatusCode::OK, &prefixes::list(&daemon).await?))
}

/// `POST /skipd/v1/prefixes`.
pub async fn pin(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let (peer, id) = (peer(&request)?, follow::id(&request));
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    Ok(reply::json(StatusCode::OK, &prefixes::pin(&daemon, &peer, id, PinPrefix::from_json(&body)?).await?))
}

/// `DELETE /skipd/v1/prefixes/{name}`.
pub async fn drop_one(State(daemon): Shared, Path(name): Path<String>, request: Request) -> Reply {
    Ok(reply::json(StatusCode::OK, &prefixes::drop_one(&daemon, &*peer(&request)?, &name).await?))
}
