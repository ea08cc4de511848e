//! `GET /v1/models` and `/v1/models/{id}`.

use super::Shared;
use super::reply::{self, Reply};
use crate::request_id::unix_seconds;
use crate::state::{Model, unknown_model};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use skip_client::protocol::{ModelCard, ModelList};

/// The loaded model; none while its folder is being read.
pub async fn list(State(daemon): Shared) -> Reply {
    let data = daemon.model().map(|model| card(model)).into_iter().collect();
    Ok(reply::json(StatusCode::OK, &ModelList { object: "list".into(), data }))
}

/// One model by name; `default` is the loaded one.
pub async fn one(State(daemon): Shared, Path(id): Path<String>) -> Reply {
    match daemon.model() {
        Some(model) => {
            model.check_name(Some(&id))?;
            Ok(reply::json(StatusCode::OK, &card(model)))
        }
        None => Err(unknown_model(&id, "no model").into()),
    }
}

fn card(model: &Model) -> ModelCard {
    ModelCard {
        id: model.name.clone(),
        object: "model".into(),
        created: unix_seconds(model.created),
        owned_by: "skipd".into(),
        max_model_len: Some(model.context()),
    }
}
