//! `/skipd/v1/profile…`: everybody may look, administrators may apply and release.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, body, check_control};
use crate::profile;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use skip_client::protocol::ApplyProfile;

/// `GET /skipd/v1/profile`.
pub async fn show(State(daemon): Shared) -> Reply {
    Ok(reply::json(StatusCode::OK, &profile::show(&daemon).await?))
}

/// `POST /skipd/v1/profile/apply`.
pub async fn apply(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    let wanted = ApplyProfile::from_json(&body)?;
    Ok(reply::json(StatusCode::OK, &profile::apply(&daemon, &wanted.name).await?))
}

/// `POST /skipd/v1/profile/release`.
pub async fn release(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    Ok(reply::json(StatusCode::OK, &profile::release(&daemon).await?))
}
