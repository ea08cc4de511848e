//! `/skipd/v1/update…`: everybody may look, administrators may apply and roll back.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, body, check_control};
use crate::update::{self, Bundle, MAX_ARCHIVE};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use skip_client::protocol::ApplyUpdate;

/// `GET /skipd/v1/update`.
pub async fn show(State(daemon): Shared) -> Reply {
    Ok(reply::json(StatusCode::OK, &update::show(&daemon).await?))
}

/// `POST /skipd/v1/update/apply`: an archive, or JSON that names a path.
pub async fn apply(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let body = body::read(request.into_body(), MAX_ARCHIVE).await?;
    // No archive begins so: its first bytes are a name below `metadata` or `targets`.
    let bundle = match body.first() {
        Some(b'{') => Bundle::At(ApplyUpdate::from_json(&body)?),
        _ => Bundle::Archive(body.into()),
    };
    Ok(reply::json(StatusCode::OK, &update::apply(&daemon, bundle).await?))
}

/// `POST /skipd/v1/update/rollback`.
pub async fn roll_back(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    Ok(reply::json(StatusCode::OK, &update::roll_back(&daemon).await?))
}
