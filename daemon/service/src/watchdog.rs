//! systemd's watchdog, fed by what the engine gets done. A runtime that still answers is no sign that anything is computed.

use crate::state::Daemon;
use sd_notify::NotifyState;
use skip_engine::EngineState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks within the time that systemd waits: what is stuck right behind one is still found in time, and one that comes late harms nothing.
const LOOKS: u32 = 4;
/// How long loading may go without a sign: a tensor from a slow disk, a kernel that is tried, a cache that is allocated.
const LOADING_PATIENCE: Duration = Duration::from_secs(180);

/// Tells systemd that the daemon lives, for as long as it does; returns at once where nobody wants to know.
pub async fn feed(daemon: Arc<Daemon>) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
    let mut looks = tokio::time::interval(limit / LOOKS);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pulse = Pulse::new(Instant::now());
    let mut told_of_silence = false;
    loop {
        looks.tick().await;
        let alive = pulse.beats(Sign::of(&daemon), Instant::now());
        if alive {
            crate::process::notify(&[NotifyState::Watchdog]);
            // An idle engine has no reason to turn before the next look.
            if let Some(model) = daemon.model() {
                model.engine.nudge();
            }
        } else if !told_of_silence {
            tracing::error!("the engine gets nothing done: the watchdog is no longer fed");
        }
        told_of_silence = !alive;
    }
}

/// How far the daemon is.
#[derive(Clone, Debug, PartialEq)]
enum Sign {
    /// No requests are served yet; what is done, as it is told.
    Loading(String),
    /// The engine's loop has turned so often.
    Serving(u64),
}

impl Sign {
    fn of(daemon: &Daemon) -> Self {
        let stage = daemon.life.stage();
        let engine = daemon.model().map(|model| &model.engine);
        match engine.map(|engine| (engine.state(), engine.turns())) {
            None => Sign::Loading(format!("{stage:?}")),
            // A daemon that drains while it loads goes on loading.
            Some((EngineState::Loading { progress }, _)) => Sign::Loading(format!("{stage:?} {progress}")),
            Some((_, turns)) => Sign::Serving(turns),
        }
    }
}

/// The last sign that was another one than before.
struct Pulse {
    sign: Option<Sign>,
    since: Instant,
}

impl Pulse {
    fn new(now: Instant) -> Self {
        Self { sign: None, since: now }
    }

    /// Whether there is life: something has moved since the last look, or the model is loading, which has longer.
    fn beats(&mut self, sign: Sign, now: Instant) -> bool {
        if self.sign.as_ref() != Some(&sign) {
            (self.sign, self.since) = (Some(sign), now);
            return true;
        }
        matches!(sign, Sign::Loading(_)) && now.duration_since(self.since) < LOADING_PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn loading(share: &str) -> Sign {
        Sign::Loading(share.into())
    }

    #[test]
    fn an_engine_beats_once_a_turn() {
        let now = Instant::now();
        let mut pulse = Pulse::new(now);
        assert!(pulse.beats(Sign::Serving(7), now));
        assert!(!pulse.beats(Sign::Serving(7), now), "it has not turned since");
        assert!(pulse.beats(Sign::Serving(8), now));
        assert!(!pulse.beats(Sign::Serving(8), now + LOADING_PATIENCE));
    }

    #[test]
    fn loading_may_take_its_time_but_not_for_ever() {
        let start = Instant::now();
        let mut pulse = Pulse::new(start);
        assert!(pulse.beats(loading("0"), start));
        assert!(pulse.beats(loading("0"), start + LOADING_PATIENCE / 2));
        assert!(!pulse.beats(loading("0"), start + LOADING_PATIENCE));
        let progress = start + 2 * LOADING_PATIENCE;
        assert!(pulse.beats(loading("0.5"), progress));
        assert!(pulse.beats(loading("0.5"), progress + LOADING_PATIENCE / 2), "progress buys as much time again");
    }

    #[test]
    fn the_patience_of_loading_ends_with_it() {
        let now = Instant::now();
        let mut pulse = Pulse::new(now);
        assert!(pulse.beats(loading("1"), now));
        assert!(pulse.beats(Sign::Serving(0), now));
        assert!(!pulse.beats(Sign::Serving(0), now));
    }

    #[tokio::test]
    async fn an_idle_daemon_s_sign_moves_when_its_engine_is_nudged() {
        let daemon = testing::daemon(Duration::ZERO).await;
        let before = Sign::of(&daemon);
        assert!(matches!(before, Sign::Serving(_)), "{before:?}");
        let moved = async {
            while Sign::of(&daemon) == before {
                daemon.model().unwrap().engine.nudge();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), moved).await.expect("the sign moves");
    }
}
