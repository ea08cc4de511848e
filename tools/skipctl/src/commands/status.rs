//! `status` and `drain`.

use super::Context;
use crate::failure::Failure;
use crate::{format, output};
use skip_client::{Client, ErrorKind};
use std::time::Duration;

pub async fn run(context: &Context, wait: Option<Duration>) -> Result<(), Failure> {
    let client = match wait {
        Some(time) => wait_ready(context, time).await?,
        None => context.connect().await?,
    };
    context.show(&client.status().await?, format::status)
}

/// Waits for the daemon to appear and to be ready.
async fn wait_ready(context: &Context, time: Duration) -> Result<Client, Failure> {
    let give_up = tokio::time::Instant::now() + time;
    loop {
        match context.connect().await {
            Ok(client) => {
                client.wait_ready(give_up.saturating_duration_since(tokio::time::Instant::now())).await?;
                return Ok(client);
            }
            Err(Failure::Client(error)) if error.kind == ErrorKind::Unreachable && tokio::time::Instant::now() < give_up => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

pub async fn drain(context: &Context) -> Result<(), Failure> {
    context.connect().await?.drain().await?;
    if context.json { output::json(&serde_json::json!({"drained": true})) } else { output::text_line("drained: nothing is running") }
}
