//! `/skipd/v1/jobs…`: everybody may see how far they are, administrators may start and cancel them and see what they find.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, body, check_control, peer};
use crate::jobs;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use skip_client::protocol::StartJob;

/// `GET /skipd/v1/jobs`.
pub async fn list(State(daemon): Shared, request: Request) -> Reply {
    Ok(reply::json(StatusCode::OK, &daemon.jobs.list(&daemon.authority, &*peer(&request)?)))
}

/// `GET /skipd/v1/jobs/{id}`.
pub async fn show(State(daemon): Shared, Path(id): Path<String>, request: Request) -> Reply {
    let peer = peer(&request)?;
    Ok(reply::json(StatusCode::OK, &daemon.jobs.find(&id)?.status_for(&daemon.authority, &peer)))
}

/// `POST /skipd/v1/jobs`.
pub async fn start(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let peer = peer(&request)?;
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    let wanted = StartJob::from_json(&body)?;
    Ok(reply::json(StatusCode::OK, &jobs::start(&daemon, &wanted.kind, &wanted.options, &peer)?.status()))
}

/// `POST /skipd/v1/jobs/{id}/cancel`.
pub async fn cancel(State(daemon): Shared, Path(id): Path<String>, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let job = daemon.jobs.find(&id)?;
    job.cancel();
    Ok(reply::json(StatusCode::OK, &job.status()))
}
