//! `POST /skipd/v1/tokenize`: the token ids of a text.

use crate::http::reply::{self, Reply};
use crate::http::{Shared, body, peer};
use crate::peer::Right;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use skip_client::protocol::{TokenizeRequest, TokenizeResponse};
use skip_client::{Error, ErrorKind};

/// Tokenises.
pub async fn post(State(daemon): Shared, request: Request) -> Reply {
    daemon.authority.check(&*peer(&request)?, Right::Generate)?;
    let body = body::read(request.into_body(), daemon.config.max_body).await?;
    let wanted = TokenizeRequest::from_json(&body)?;
    let text = daemon.ready_model()?.text.clone();
    let tokens = tokio::task::spawn_blocking(move || text.encode(&wanted.text))
        .await
        .map_err(|_| Error::new(ErrorKind::Internal, "the tokenizer failed"))??;
    Ok(reply::json(StatusCode::OK, &TokenizeResponse { tokens }))
}
