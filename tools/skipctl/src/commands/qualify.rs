//! `qualify`: has the daemon try the CUDA kernels of its checkpoint again, and shows what it found.

use super::{Context, job};
use crate::failure::Failure;
use crate::format;
use serde_json::Map;
use skip_client::protocol::Qualification;
use skip_client::{Error, ErrorKind};

pub async fn run(context: &Context) -> Result<(), Failure> {
    let client = context.connect().await?;
    let found: Qualification = job::finish(&client, "qualify", Map::new()).await?;
    context.show(&found, format::qualification)?;
    match found.refused().count() {
        0 => Ok(()),
        n => Err(Error::new(ErrorKind::DeviceFault, format!("{n} of {} kernels are refused", found.kernels.len())).into()),
    }
}
