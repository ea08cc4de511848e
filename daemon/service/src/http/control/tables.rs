//! `/skipd/v1/tables…` and `/skipd/v1/tiers`: everybody may look, administrators may set.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, body, check_control};
use crate::update;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use skip_client::protocol::{Phase, SetTable};
use skip_client::{Error, ErrorKind};

/// `GET /skipd/v1/tables`.
pub async fn show(State(daemon): Shared) -> Reply {
    Ok(reply::json(StatusCode::OK, &daemon.show_tables()?))
}

/// `GET /skipd/v1/tables/{phase}`.
pub async fn phase(State(daemon): Shared, Path(phase): Path<String>) -> Reply {
    let phase = parse_phase(&phase)?;
    Ok(reply::json(StatusCode::OK, daemon.show_tables()?.phase(phase)))
}

/// `GET /skipd/v1/tiers`.
pub async fn tiers(State(daemon): Shared) -> Reply {
    Ok(reply::json(StatusCode::OK, &daemon.tables()?.tiers()))
}

/// `PUT /skipd/v1/tables/{phase}`.
pub async fn set(State(daemon): Shared, Path(phase): Path<String>, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let phase = parse_phase(&phase)?;
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    let (selector, options) = SetTable::from_json(&body)?.into_parts();
    let table = daemon.tables()?.set(phase, selector, options).await?;
    Ok(reply::json(StatusCode::OK, &table))
}

/// `POST /skipd/v1/tables/confirm`.
pub async fn confirm(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    Ok(reply::json(StatusCode::OK, &daemon.tables()?.confirm().await?))
}

/// `POST /skipd/v1/tables/revert`.
pub async fn revert(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    Ok(reply::json(StatusCode::OK, &daemon.tables()?.revert().await?))
}

/// `POST /skipd/v1/tables/reload`.
pub async fn reload(State(daemon): Shared, request: Request) -> Reply {
    check_control(&daemon, &request)?;
    let tables = daemon.tables()?.reload().await?;
    // The updater may have put one there.
    update::look(&daemon);
    Ok(reply::json(StatusCode::OK, &tables))
}

fn parse_phase(name: &str) -> Result<Phase, Error> {
    let found = Phase::ALL.into_iter().find(|phase| phase.name() == name);
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no phase `{name}`: prefill and decode are")).at("phase"))
}
