//! Which slot is in force, which is on trial, and what comes next: no files, only transitions.

use crate::manifest::SlotName;
use serde::{Deserialize, Serialize};

/// How often a slot on trial is begun before it is given up: each start of the daemon that does not end in a verdict costs one.
pub const TRIES: u32 = 3;

/// What `state.json` holds. Nothing at all: the checkpoint's own tables, or dense.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The committed slot.
    pub active: Option<SlotName>,
    /// The one committed before it, to return to.
    pub previous: Option<SlotName>,
    /// A slot that has not shown yet that it is good.
    pub trial: Option<SlotName>,
    /// How often the trial may still be begun.
    pub tries_left: u32,
    /// Why the last trial ended without a commit, or the last slot was left.
    pub reason: Option<String>,
}

/// What beginning a trial came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// There is none.
    NoTrial,
    /// Use this slot, once the state after it is on disk: the try is spent before it is used.
    Try(SlotName, State),
    /// It was tried as often as it may be: back to the active slot.
    GivenUp(State),
}

impl State {
    /// A verified slot is put on trial; one that is on trial already is begun anew, another gives way.
    pub fn stage(&self, slot: SlotName) -> Self {
        Self { trial: Some(slot), tries_left: TRIES, reason: None, ..self.clone() }
    }

    /// The daemon starts, or has been told of a new trial.
    pub fn begin(&self) -> Begun {
        match &self.trial {
            None => Begun::NoTrial,
            Some(slot) if self.tries_left == 0 => {
                Begun::GivenUp(self.after_trial(format!("{slot} was begun {TRIES} times and never came to a verdict")))
            }
            Some(slot) => Begun::Try(slot.clone(), Self { tries_left: self.tries_left - 1, ..self.clone() }),
        }
    }

    /// The trial has shown that it is good; None where `slot` is not on trial.
    pub fn commit(&self, slot: &SlotName) -> Option<Self> {
        (self.trial.as_ref() == Some(slot)).then(|| {
            // Committing the active slot again must not make it its own predecessor.
            let previous = if self.active == self.trial { self.previous.clone() } else { self.active.clone() };
            Self { active: self.trial.clone(), previous, trial: None, tries_left: 0, reason: None }
        })
    }

    /// The trial has shown that it is not good; None where `slot` is not on trial.
    pub fn fail(&self, slot: &SlotName, reason: &str) -> Option<Self> {
        (self.trial.as_ref() == Some(slot)).then(|| self.after_trial(format!("{slot}: {reason}")))
    }

    /// Somebody wants the tables before: a trial ends, or else the previous slot, and after it none, takes the active one's place. None where there is
    /// nothing to leave.
    pub fn roll_back(&self, reason: &str) -> Option<Self> {
        match (&self.trial, &self.active) {
            (Some(slot), _) => Some(self.after_trial(format!("{slot}: {reason}"))),
            (None, Some(slot)) => {
                Some(Self { active: self.previous.clone(), reason: Some(format!("{slot}: {reason}")), ..Self::default() })
            }
            (None, None) => None,
        }
    }

    /// Slots found damaged are left: the active one for the previous, and that for none.
    pub fn without(&self, damaged: impl Fn(&SlotName) -> bool) -> Self {
        let bad = |slot: &Option<SlotName>| slot.as_ref().is_some_and(&damaged);
        let mut state = self.clone();
        let mut left = Vec::new();
        if bad(&state.trial) {
            left.extend(state.trial.take());
            state.tries_left = 0;
        }
        if bad(&state.previous) {
            left.extend(state.previous.take());
        }
        if bad(&state.active) {
            left.extend(state.active.take());
            state.active = state.previous.take();
        }
        if !left.is_empty() {
            let names: Vec<_> = left.iter().map(SlotName::to_string).collect();
            state.reason = Some(format!("{} damaged on disk", names.join(", ")));
        }
        state
    }

    /// The slots it names.
    pub fn slots(&self) -> impl Iterator<Item = &SlotName> {
        [&self.active, &self.previous, &self.trial].into_iter().flatten()
    }

    fn after_trial(&self, reason: String) -> Self {
        Self { trial: None, tries_left: 0, reason: Some(reason), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(version: u64) -> SlotName {
        SlotName::of(version, &version.to_le_bytes())
    }

    fn committed(versions: &[u64]) -> State {
        versions.iter().fold(State::default(), |state, &v| state.stage(slot(v)).commit(&slot(v)).unwrap())
    }

    #[test]
    fn a_trial_that_is_committed_is_active_and_the_one_before_is_kept() {
        let state = committed(&[1, 2]);
        assert_eq!((state.active, state.previous, state.trial), (Some(slot(2)), Some(slot(1)), None));
    }

    #[test]
    fn a_trial_is_begun_three_times_and_then_given_up_for_the_active_slot() {
        let mut state = committed(&[1]).stage(slot(2));
        for left in (0..TRIES).rev() {
            let Begun::Try(tried, next) = state.begin() else { panic!("{state:?}") };
            assert_eq!((tried, next.tries_left), (slot(2), left));
            state = next;
        }
        let Begun::GivenUp(state) = state.begin() else { panic!("{state:?}") };
        assert_eq!((state.active.clone(), state.trial.clone(), state.begin()), (Some(slot(1)), None, Begun::NoTrial));
        assert!(state.reason.unwrap().contains("never came to a verdict"));
    }

    #[test]
    fn a_failed_trial_returns_to_the_active_slot_and_says_why() {
        let state = committed(&[1]).stage(slot(2)).fail(&slot(2), "skips nothing").unwrap();
        assert_eq!((state.active, state.reason), (Some(slot(1)), Some(format!("{}: skips nothing", slot(2)))));
    }

    #[test]
    fn a_verdict_on_a_slot_that_is_not_on_trial_changes_nothing() {
        let state = committed(&[1]).stage(slot(3));
        assert_eq!((state.commit(&slot(2)), state.fail(&slot(2), "late")), (None, None));
    }

    #[test]
    fn a_newer_update_takes_the_place_of_one_on_trial_with_tries_of_its_own() {
        let Begun::Try(_, spent) = committed(&[1]).stage(slot(2)).begin() else { panic!() };
        let state = spent.stage(slot(3));
        assert_eq!((state.active, state.trial, state.tries_left), (Some(slot(1)), Some(slot(3)), TRIES));
    }

    #[test]
    fn rolling_back_ends_the_trial_first_then_goes_to_previous_then_to_none() {
        let state = committed(&[1, 2]).stage(slot(3)).roll_back("asked").unwrap();
        assert_eq!((&state.active, &state.trial), (&Some(slot(2)), &None));
        let state = state.roll_back("asked").unwrap();
        assert_eq!((&state.active, &state.previous), (&Some(slot(1)), &None));
        let state = state.roll_back("asked").unwrap();
        assert_eq!(state.active, None);
        assert_eq!(state.roll_back("asked"), None);
    }

    #[test]
    fn a_damaged_slot_is_left_for_the_one_before_it() {
        let state = committed(&[1, 2]).stage(slot(3));
        let left = state.without(|s| *s == slot(2));
        assert_eq!((left.active, left.previous, left.trial), (Some(slot(1)), None, Some(slot(3))));
        let left = state.without(|_| true);
        assert_eq!((left.active, left.previous, left.trial), (None, None, None));
        assert_eq!(state.without(|_| false), state);
    }
}
