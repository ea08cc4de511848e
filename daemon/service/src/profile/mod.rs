//! The board's clocks: looked at every two seconds and shown everywhere; pinned and put back by units of systemd, which are root where the daemon
//! is not. While something holds them down, background requests are held back.

mod hold;
mod systemd;
#[cfg(test)]
mod tests;
mod units;

pub use units::Units;

use crate::config::Config;
use crate::state::Daemon;
use hold::Hold;
use skip_client::protocol::{BoardStatus, ClockState, ClockStatus, ProfileInfo, ProfileShow};
use skip_client::{Error, ErrorKind};
use skip_platform::{Board, ClockState as Found, ProfileError, Profiles, StateFile, Strain, fits, watch};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use systemd::Systemd;
use tokio::time::Instant;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// The board, and what was last seen of its clocks.
pub struct Clocks {
    board: Board,
    state: StateFile,
    units: Arc<dyn Units>,
    strain: Mutex<Strain>,
    seen: Mutex<Seen>,
    /// Held while clocks are written: a look in between would say what does not last.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Seen {
    status: Option<ClockStatus>,
    throttles: u64,
    hold: Hold,
}

impl Clocks {
    /// Those of the configured board, written by systemd's units.
    pub fn new(config: &Config) -> Self {
        let root = config.board_root.clone().unwrap_or_else(|| PathBuf::from("/"));
        Self::of(&root, Arc::new(Systemd))
    }

    /// Those of a board whose files lie under `root`.
    pub fn of(root: &Path, units: Arc<dyn Units>) -> Self {
        let (board, state) = (Board::at(root), StateFile::of_root(root));
        let strain = Mutex::new(Strain::new(board.clone(), state.clone()));
        Self { board, state, units, strain, seen: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// As they were last looked at; None: never yet.
    pub fn status(&self) -> Option<ClockStatus> {
        self.seen().status.clone()
    }

    /// Whether background requests are held back.
    pub fn holds_background(&self) -> bool {
        self.seen().status.as_ref().is_some_and(|status| status.background_held)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the board; files are read.
    fn look(&self) -> ClockStatus {
        let found = watch(self.board.sysfs(), &self.state);
        let strained = self.strain.lock().unwrap_or_else(PoisonError::into_inner).look();
        let mut seen = self.seen();
        let before = seen.status.as_ref().map_or(ClockState::Unpinned, |status| status.state);
        let state = state(found.state);
        seen.throttles += u64::from(state == ClockState::Throttled && before != ClockState::Throttled);
        let background_held = seen.hold.after(!strained.is_empty(), Instant::now());
        let held_before = seen.status.as_ref().is_some_and(|status| status.background_held);
        let status = ClockStatus {
            state,
            pins_gpu: found.pins_gpu(),
            profile: found.profile,
            reasons: found.reasons,
            refused: found.refused,
            domains: found.domains,
            throttles: seen.throttles,
            background_held,
        };
        if before != state {
            tell(&status);
        }
        if !held_before && background_held {
            tracing::warn!("background requests are held back: {}", strained.join("; "));
        } else if held_before && !background_held {
            tracing::info!("background requests are admitted again");
        }
        seen.status = Some(status.clone());
        status
    }

    /// Board and profiles; files are read.
    fn list(&self) -> (BoardStatus, Vec<ProfileInfo>) {
        let known = self.board.identify();
        let mode = self.board.mode().ok();
        let board = BoardStatus { kind: known.kind.name().to_owned(), model: known.model, l4t: known.l4t, mode };
        let profiles = Profiles::new(self.board.sysfs());
        let info = |name: String| {
            let own = profiles.is_own(&name);
            match profiles.load(&name) {
                Ok(profile) => ProfileInfo { own, about: profile.about.clone(), unfit: fits(&self.board, &profile).err().map(words), name },
                Err(error) => ProfileInfo { own, about: String::new(), unfit: Some(error.to_string()), name },
            }
        };
        (board, profiles.names().into_iter().map(info).collect())
    }

    /// Refuses a profile that is not there, is wrong, or is for another board or power mode, before anything is changed.
    fn check(&self, name: &str) -> Result<(), Error> {
        let profile = Profiles::new(self.board.sysfs()).load(name).map_err(|error| {
            let kind = match error {
                ProfileError::Unknown(..) => ErrorKind::NotFound,
                _ => ErrorKind::InvalidRequest,
            };
            Error::new(kind, error.to_string()).at("name")
        })?;
        fits(&self.board, &profile).map(drop).map_err(|error| Error::invalid("name", error.to_string()))
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn state(found: Found) -> ClockState {
    match found {
        Found::Unpinned => ClockState::Unpinned,
        Found::Pinned => ClockState::Pinned,
        Found::Throttled => ClockState::Throttled,
        Found::Uncontrolled => ClockState::Uncontrolled,
    }
}

fn tell(status: &ClockStatus) {
    let (state, profile) = (status.state.name(), status.profile.as_deref());
    match status.state {
        ClockState::Throttled | ClockState::Uncontrolled => tracing::warn!(state, profile, "clocks: {}", status.reasons.join("; ")),
        _ => tracing::info!(state, profile, "clocks"),
    }
}

/// Looks at the clocks for as long as the process lives.
pub async fn follow(daemon: Arc<Daemon>) {
    loop {
        // What is being written is looked at when it is.
        if let Ok(_turn) = daemon.clocks.turn.try_lock() {
            // A look that panicked is made again.
            let _ = look(&daemon).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// One look, which the scheduler hears of.
async fn look(daemon: &Arc<Daemon>) -> Result<ClockStatus, Error> {
    let status = blocking(daemon, |clocks| clocks.look()).await?;
    if let Some(model) = daemon.model() {
        model.engine.hold_background(status.background_held);
    }
    Ok(status)
}

async fn blocking<T: Send + 'static>(daemon: &Arc<Daemon>, read: impl FnOnce(&Clocks) -> T + Send + 'static) -> Result<T, Error> {
    let daemon = daemon.clone();
    let reading = tokio::task::spawn_blocking(move || read(&daemon.clocks)).await;
    reading.map_err(|panic| internal(format!("looking at the board failed: {panic}")))
}

/// The board, its clocks at this moment, and its profiles.
///
/// # Errors
/// A fault of ours.
pub async fn show(daemon: &Arc<Daemon>) -> Result<ProfileShow, Error> {
    match tokio::time::timeout(LOOK, daemon.clocks.turn.lock()).await {
        Ok(_turn) => seen(daemon).await,
        // They are being written, which may take its time: as they were.
        Err(_) => {
            let clocks = daemon.clocks.status().unwrap_or_default();
            let (board, profiles) = blocking(daemon, |clocks| clocks.list()).await?;
            Ok(ProfileShow { board, clocks, profiles })
        }
    }
}

async fn seen(daemon: &Arc<Daemon>) -> Result<ProfileShow, Error> {
    let clocks = look(daemon).await?;
    let (board, profiles) = blocking(daemon, |clocks| clocks.list()).await?;
    Ok(ProfileShow { board, clocks, profiles })
}

/// Pins the clocks of a profile, and tells what came of it.
///
/// # Errors
/// `NotFound`, or `InvalidRequest` where the profile is wrong or not for this board: nothing was changed. `Internal` where no clock took it, or
/// nobody does it: those of the profile before may be put back then.
pub async fn apply(daemon: &Arc<Daemon>, name: &str) -> Result<ProfileShow, Error> {
    let name = name.to_owned();
    finished(daemon, |daemon| async move {
        let _turn = daemon.clocks.turn.lock().await;
        let wanted = name.clone();
        blocking(&daemon, move |clocks| clocks.check(&wanted)).await??;
        let pinned = daemon.clocks.units.pin(&name).await;
        let shown = seen(&daemon).await?;
        pinned?;
        if shown.clocks.profile.as_deref() != Some(&*name) {
            return Err(internal(format!("nothing of profile {name} is pinned (journalctl -u skipd-profile@{name} says why)")));
        }
        tracing::info!(profile = name, refused = shown.clocks.refused.len(), "a clock profile is applied");
        Ok(shown)
    })
    .await
}

/// Puts the clocks back as they were before a profile was applied.
///
/// # Errors
/// `Internal` where some refuse, or nobody does it.
pub async fn release(daemon: &Arc<Daemon>) -> Result<ProfileShow, Error> {
    finished(daemon, |daemon| async move {
        let _turn = daemon.clocks.turn.lock().await;
        let applied = look(&daemon).await?.profile;
        let released = daemon.clocks.units.release(applied.as_deref()).await;
        let shown = seen(&daemon).await?;
        released?;
        if let Some(profile) = &shown.clocks.profile {
            return Err(internal(format!(
                "not every clock of profile {profile} could be put back: {} (journalctl -u skipd-profile@{profile} says which)",
                shown.clocks.reasons.join("; ")
            )));
        }
        if let Some(profile) = applied {
            tracing::info!(profile, "a clock profile is released");
        }
        Ok(shown)
    })
    .await
}

/// Work that is ended whoever goes on waiting for it.
async fn finished<T, F>(daemon: &Arc<Daemon>, work: impl FnOnce(Arc<Daemon>) -> F) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let done = tokio::spawn(work(daemon.clone())).await;
    done.unwrap_or_else(|panic| Err(internal(format!("writing clocks failed: {panic}"))))
}

fn internal(message: String) -> Error {
    Error::new(ErrorKind::Internal, message)
}
