//! set-table, confirm and revert as a state machine: no clock, no files, no engine.
//! A setting with a deadline is on trial: unless it is confirmed it goes away and what was in force before comes back.

use crate::{PerPhase, Phase, Setting};
use std::time::{Duration, Instant};

/// set-table's settings in force, and the trial that is running, if one is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retarget {
    in_force: PerPhase<Option<Setting>>,
    trial: Option<Trial>,
}

/// Settings that go away by themselves. One trial covers both phases: a set-table during it joins it and moves its deadline.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    deadline: Instant,
    phases: PerPhase<Option<OnTrial>>,
}

#[derive(Clone, Debug, PartialEq)]
struct OnTrial {
    before: Option<Setting>,
    persist: bool,
}

impl Trial {
    /// When it ends by itself.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the phase's table is on trial.
    pub fn covers(&self, phase: Phase) -> bool {
        self.phases[phase].is_some()
    }

    /// Whether confirming persists the phase's table.
    pub fn persists(&self, phase: Phase) -> bool {
        self.phases[phase].as_ref().is_some_and(|p| p.persist)
    }

    /// The setting that comes back in a phase on trial; None: the files decide again.
    pub fn before(&self, phase: Phase) -> Option<&Setting> {
        self.phases[phase].as_ref().and_then(|p| p.before.as_ref())
    }
}

/// What the caller must write to the persisted file for a transition to hold: a setting, or None to take the phase out of it.
pub type ToPersist = Vec<(Phase, Option<Setting>)>;

/// No trial is running, so there is nothing to confirm or to revert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no table is on trial: there is nothing to confirm or revert")]
pub struct NothingPending;

impl Retarget {
    /// The settings in force, which outrank every file; None: the files decide.
    pub fn in_force(&self) -> &PerPhase<Option<Setting>> {
        &self.in_force
    }

    /// The running trial.
    pub fn trial(&self) -> Option<&Trial> {
        self.trial.as_ref()
    }

    /// Puts a setting in force (None: the files decide again). With `confirm_within` it is on trial, and persists only when confirmed; without, it
    /// ends a trial of its phase for good. A setting that persists lives in the file, not here, so that a restart changes nothing.
    pub fn set(
        &mut self,
        phase: Phase,
        setting: Option<Setting>,
        persist: bool,
        confirm_within: Option<Duration>,
        now: Instant,
    ) -> ToPersist {
        let Some(within) = confirm_within else {
            self.leave_trial(phase);
            return self.settle(phase, setting, persist);
        };
        // A deadline beyond what the clock can express is no trial worth the name; a century will do.
        let deadline = now.checked_add(within).unwrap_or(now + Duration::from_secs(100 * 365 * 86_400));
        let current = std::mem::replace(&mut self.in_force[phase], setting);
        let trial = self.trial.get_or_insert_with(|| Trial { deadline, phases: PerPhase::default() });
        trial.deadline = deadline;
        let on_trial = trial.phases[phase].get_or_insert(OnTrial { before: current, persist });
        on_trial.persist = persist;
        Vec::new()
    }

    /// Keeps what is on trial.
    ///
    /// # Errors
    /// [`NothingPending`], also where the deadline passed first: then the next [`Self::tick`] reverts.
    pub fn confirm(&mut self, now: Instant) -> Result<ToPersist, NothingPending> {
        let trial = self.trial.take_if(|trial| now < trial.deadline).ok_or(NothingPending)?;
        let mut writes = Vec::new();
        for phase in Phase::ALL {
            if let Some(on_trial) = &trial.phases[phase] {
                let setting = self.in_force[phase].take();
                writes.extend(self.settle(phase, setting, on_trial.persist));
            }
        }
        Ok(writes)
    }

    /// Takes back what is on trial.
    ///
    /// # Errors
    /// [`NothingPending`].
    pub fn revert(&mut self) -> Result<(), NothingPending> {
        let trial = self.trial.take().ok_or(NothingPending)?;
        for phase in Phase::ALL {
            if let Some(on_trial) = &trial.phases[phase] {
                self.in_force[phase] = on_trial.before.clone();
            }
        }
        Ok(())
    }

    /// Reverts a trial whose deadline has passed; whether it did.
    pub fn tick(&mut self, now: Instant) -> bool {
        let over = self.trial.as_ref().is_some_and(|trial| now >= trial.deadline);
        over && self.revert().is_ok()
    }

    fn settle(&mut self, phase: Phase, setting: Option<Setting>, persist: bool) -> ToPersist {
        if persist {
            self.in_force[phase] = None;
            vec![(phase, setting)]
        } else {
            self.in_force[phase] = setting;
            Vec::new()
        }
    }

    fn leave_trial(&mut self, phase: Phase) {
        if let Some(trial) = &mut self.trial {
            trial.phases[phase] = None;
            if Phase::ALL.iter().all(|&p| !trial.covers(p)) {
                self.trial = None;
            }
        }
    }
}
