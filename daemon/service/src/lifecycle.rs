//! What the daemon is doing, as one value that everybody can watch: starting → loading → ready → draining, or failed.

use skip_client::protocol::State;
use tokio::sync::watch;

/// The state with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// The process has begun.
    Starting,
    /// Weights are being read; the share done, 0 to 1.
    Loading(f32),
    /// CUDA kernels are tried before they are used: this one, so many of so many done.
    Qualifying {
        /// The kernel.
        kernel: String,
        /// Tried so far.
        done: usize,
        /// All.
        total: usize,
    },
    /// Requests are served.
    Ready,
    /// What runs is finished, nothing new is taken.
    Draining,
    /// The model could not be loaded, or the engine ended; with the reason.
    Failed(String),
}

impl Stage {
    /// The word on the wire.
    pub fn state(&self) -> State {
        match self {
            Stage::Starting => State::Starting,
            Stage::Loading(_) | Stage::Qualifying { .. } => State::Loading,
            Stage::Ready => State::Ready,
            Stage::Draining => State::Draining,
            Stage::Failed(_) => State::Failed,
        }
    }

    /// Share loaded.
    pub fn progress(&self) -> f32 {
        match self {
            Stage::Starting | Stage::Qualifying { .. } | Stage::Failed(_) => 0.0,
            Stage::Loading(share) => *share,
            Stage::Ready | Stage::Draining => 1.0,
        }
    }

    /// Why requests are refused, for a person; None where they are not.
    pub fn reason(&self) -> Option<String> {
        match self {
            Stage::Starting => Some("the daemon is starting".into()),
            Stage::Loading(share) => Some(format!("the model is loading ({:.0} %)", share * 100.0)),
            Stage::Qualifying { kernel, done, total } => Some(format!("CUDA kernels are tried first: {kernel} ({done} of {total} done)")),
            Stage::Ready => None,
            Stage::Draining => Some("the daemon is draining and takes no new requests".into()),
            Stage::Failed(reason) => Some(reason.clone()),
        }
    }

    /// Whether `next` may follow. Draining and failed are final but that draining may fail.
    fn may_become(&self, next: &Stage) -> bool {
        match (self, next) {
            (Stage::Failed(_), _) => false,
            (Stage::Draining, next) => matches!(next, Stage::Failed(_)),
            (Stage::Ready, Stage::Starting | Stage::Loading(_) | Stage::Qualifying { .. }) => false,
            _ => true,
        }
    }
}

/// Owns the stage; clones share it.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    stage: watch::Sender<Stage>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { stage: watch::Sender::new(Stage::Starting) }
    }
}

impl Lifecycle {
    /// The stage now.
    pub fn stage(&self) -> Stage {
        self.stage.borrow().clone()
    }

    /// Moves on; a step backwards (loading after draining) is ignored.
    pub fn advance(&self, next: Stage) {
        self.stage.send_if_modified(|stage| {
            let changed = *stage != next && stage.may_become(&next);
            if changed {
                *stage = next;
            }
            changed
        });
    }

    /// For waiting on changes.
    pub fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_is_not_undone_by_a_late_load() {
        let life = Lifecycle::default();
        life.advance(Stage::Loading(0.5));
        life.advance(Stage::Draining);
        life.advance(Stage::Loading(0.9));
        life.advance(Stage::Ready);
        assert_eq!(life.stage(), Stage::Draining);
        life.advance(Stage::Failed("device".into()));
        life.advance(Stage::Ready);
        assert_eq!(life.stage(), Stage::Failed("device".into()));
    }

    #[test]
    fn only_ready_has_no_reason_to_refuse() {
        for stage in [Stage::Starting, Stage::Loading(0.25), Stage::Draining, Stage::Failed("x".into())] {
            assert!(stage.reason().is_some());
        }
        let qualifying = Stage::Qualifying { kernel: "k".into(), done: 2, total: 9 };
        assert!(qualifying.reason().unwrap().contains("k (2 of 9 done)"));
        assert_eq!(qualifying.state(), State::Loading);
        assert_eq!(Stage::Ready.reason(), None);
        assert!(Stage::Loading(0.25).reason().unwrap().contains("25 %"));
    }
}
