//! skipd's own routes under `/skipd/v1`; they mirror the bus.

pub mod drain;
pub mod jobs;
pub mod prefixes;
pub mod requests;
pub mod status;
pub mod tables;
pub mod tokenize;
pub mod update;

use super::reply::{self, Reply};
use axum::http::{StatusCode, Uri};
use skip_client::protocol::ErrorBody;
use skip_client::{Error, ErrorKind};

/// Routes whose names are taken and whose work is not built.
pub async fn later(uri: Uri) -> Reply {
    let error = Error::new(ErrorKind::Unsupported, format!("{} is not built yet", uri.path()));
    Ok(reply::json(StatusCode::NOT_IMPLEMENTED, &ErrorBody::from(error)))
}
