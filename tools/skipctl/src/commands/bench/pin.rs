//! `bench --profile`: the clocks are pinned for the run, and put back however it ends.

use crate::failure::Failure;
use crate::output;
use skip_client::Client;
use skip_client::protocol::ProfileShow;
use std::cell::OnceCell;
use tokio::signal::unix::{SignalKind, signal};

/// Clocks that were pinned for a run, or may have been.
#[derive(Default)]
pub struct Pin {
    taken: OnceCell<(Client, String)>,
}

impl Pin {
    /// Pins the clocks of a profile; one that is applied already stays afterwards.
    pub async fn take(&self, client: &Client, name: &str) -> Result<(), Failure> {
        if is_applied(&client.profiles().await?, name)? {
            output::note(&format!("{name} is applied already, and stays so"));
            return Ok(());
        }
        // From here on it is to be put back, whether or not the answer comes. It is set once: a command takes one pin.
        let _ = self.taken.set((client.clone(), name.to_owned()));
        let shown = client.apply_profile(name).await?;
        for line in &shown.clocks.refused {
            output::note(&format!("{name}: {line}"));
        }
        Ok(())
    }

    /// Puts them back, if they were pinned and no other profile has taken the place since.
    pub async fn release(&self) -> Result<(), Failure> {
        let Some((client, name)) = self.taken.get() else { return Ok(()) };
        match client.profiles().await?.clocks.profile {
            Some(other) if other != *name => output::note(&format!("{other} was applied meanwhile, and stays so")),
            _ => drop(client.release_profile().await?),
        }
        Ok(())
    }
}

/// Whether it is applied; another's place is not taken.
fn is_applied(shown: &ProfileShow, name: &str) -> Result<bool, Failure> {
    match &shown.clocks.profile {
        Some(applied) if applied != name => {
            Err(Failure::Usage(format!("profile {applied} is applied, and bench puts no other in its place: skipctl profile release")))
        }
        applied => Ok(applied.is_some()),
    }
}

/// Ends when this process is told to end.
pub async fn told_to_end() {
    let told = async |kind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        // It ends the process as ever.
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = told(SignalKind::interrupt()) => {}
        () = told(SignalKind::terminate()) => {}
        () = told(SignalKind::hangup()), if !outlives_its_terminal() => {}
    }
}

/// Started by nohup or the like: a handler would undo that.
fn outlives_its_terminal() -> bool {
    const HANGUP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & HANGUP != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::ClockStatus;

    #[test]
    fn only_a_free_board_or_one_with_the_same_profile_is_taken() {
        let shown = |profile: Option<&str>| {
            let clocks = ClockStatus { profile: profile.map(str::to_owned), ..ClockStatus::default() };
            ProfileShow { clocks, ..ProfileShow::default() }
        };
        assert!(!is_applied(&shown(None), "generic").unwrap());
        assert!(is_applied(&shown(Some("generic")), "generic").unwrap());
        let refused = is_applied(&shown(Some("thor-maxn")), "generic").unwrap_err();
        assert!(refused.to_string().contains("thor-maxn is applied"), "{refused}");
    }
}
