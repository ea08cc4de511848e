//! `update apply`, `rollback` and `show`.

use super::Context;
use crate::cli::Update;
use crate::failure::Failure;
use crate::{format, output};
use skip_client::protocol::{ApplyUpdate, UpdateShow};
use skip_client::{Client, Error, ErrorKind};
use std::path::Path;
use std::time::Duration;

/// Between two looks at the trial.
const POLL: Duration = Duration::from_millis(200);

pub async fn run(context: &Context, command: Update) -> Result<(), Failure> {
    let client = context.connect().await?;
    let shown = match command {
        Update::Show => client.update().await?,
        Update::Rollback => client.roll_back_update().await?,
        Update::Apply { bundle, relax_expiry, no_wait } => {
            let taken = apply(&client, &bundle, relax_expiry).await?;
            if no_wait { taken } else { verdict(&client, taken).await? }
        }
    };
    context.show(&shown, format::update)
}

async fn apply(client: &Client, bundle: &Path, relax_expiry: bool) -> Result<UpdateShow, Failure> {
    let failed = |error| Failure::Io(bundle.display().to_string(), error);
    let path = bundle.canonicalize().map_err(failed)?;
    if path.is_dir() || relax_expiry {
        let path = path.into_os_string().into_string().map_err(|_| Failure::Usage("the bundle's path is not UTF-8".into()))?;
        return Ok(client.apply_update(&ApplyUpdate { path, relax_expiry }).await?);
    }
    // The archive itself: the daemon need not be able to read where it lies.
    Ok(client.apply_update_archive(std::fs::read(&path).map_err(failed)?).await?)
}

/// Waits for the end of the trial.
async fn verdict(client: &Client, taken: UpdateShow) -> Result<UpdateShow, Failure> {
    let Some(slot) = taken.probation.map(|probation| probation.slot.slot) else { return Ok(client.update().await?) };
    output::note(&format!("{slot} is verified and on trial"));
    loop {
        let shown = client.update().await?;
        let on_trial = shown.probation.as_ref().is_some_and(|probation| probation.slot.slot == slot);
        if shown.active.as_ref().is_some_and(|active| active.slot == slot) {
            return Ok(shown);
        }
        if !on_trial {
            let reason = shown.reason.unwrap_or_else(|| format!("{slot} was given up"));
            return Err(Error::new(ErrorKind::TableRefused, reason).into());
        }
        tokio::time::sleep(POLL).await;
    }
}
