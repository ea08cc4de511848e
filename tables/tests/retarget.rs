//! set-table, confirm, revert and persist, with the time passed in.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use proptest::prelude::*;
use skip_tables::{NothingPending, Phase, Retarget, Selection, Setting};
use std::time::{Duration, Instant};

const PREFILL: Phase = Phase::Prefill;
const DECODE: Phase = Phase::Decode;
const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

fn tier(percent: u32) -> Option<Setting> {
    Some(Setting { selection: Selection::Tier(format!("{percent}%").parse().unwrap()), force: false })
}

fn after(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

#[test]
fn a_plain_set_stays() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    assert!(state.set(PREFILL, tier(50), false, None, t).is_empty());
    assert!(!state.tick(after(t, 1_000_000)));
    assert_eq!(state.in_force().prefill, tier(50));
    assert_eq!(state.confirm(t), Err(NothingPending));
    assert_eq!(state.revert(), Err(NothingPending));
}

#[test]
fn an_unconfirmed_setting_reverts_at_its_deadline() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    state.set(PREFILL, tier(50), false, None, t);
    state.set(PREFILL, tier(60), false, MINUTE, t);
    assert_eq!(state.trial().unwrap().before(PREFILL), tier(50).as_ref());
    assert!(!state.tick(after(t, 59)));
    assert_eq!(state.confirm(after(t, 60)), Err(NothingPending), "a late confirm is refused even before the tick");
    assert!(state.tick(after(t, 60)));
    assert_eq!(state.in_force().prefill, tier(50));
    assert_eq!(state.trial(), None);
}

#[test]
fn a_confirmed_setting_stays_and_persists_only_then() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    assert!(state.set(PREFILL, tier(50), true, MINUTE, t).is_empty(), "not before it is confirmed");
    assert_eq!(state.in_force().prefill, tier(50));
    assert_eq!(state.confirm(after(t, 1)).unwrap(), [(PREFILL, tier(50))]);
    assert_eq!(state.in_force().prefill, None, "from here on the file decides");
    assert!(!state.tick(after(t, 100)));
}

#[test]
fn a_revert_brings_back_what_was_before_the_trial() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    state.set(PREFILL, tier(50), false, None, t);
    state.set(PREFILL, tier(60), false, MINUTE, t);
    state.set(PREFILL, tier(75), true, MINUTE, t);
    state.set(DECODE, tier(90), false, MINUTE, t);
    state.revert().unwrap();
    assert_eq!((state.in_force().prefill.clone(), state.in_force().decode.clone()), (tier(50), None));
}

#[test]
fn a_setting_joins_the_running_trial_and_moves_its_deadline() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    state.set(PREFILL, tier(50), false, MINUTE, t);
    state.set(DECODE, tier(90), true, MINUTE, after(t, 50));
    assert_eq!(state.trial().unwrap().deadline(), after(t, 110));
    assert!(!state.tick(after(t, 109)));
    assert_eq!(state.confirm(after(t, 109)).unwrap(), [(DECODE, tier(90))]);
    assert_eq!(state.in_force().prefill, tier(50));
}

#[test]
fn a_plain_set_takes_its_phase_out_of_the_trial() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    state.set(PREFILL, tier(50), false, MINUTE, t);
    state.set(DECODE, tier(90), false, MINUTE, t);
    state.set(PREFILL, tier(60), false, None, t);
    assert!(state.trial().unwrap().covers(DECODE) && !state.trial().unwrap().covers(PREFILL));
    assert!(state.tick(after(t, 60)));
    assert_eq!((state.in_force().prefill.clone(), state.in_force().decode.clone()), (tier(60), None));
}

#[test]
fn taking_a_setting_away_lets_the_files_decide() {
    let (mut state, t) = (Retarget::default(), Instant::now());
    state.set(PREFILL, tier(50), false, None, t);
    assert_eq!(state.set(PREFILL, None, true, None, t), [(PREFILL, None)]);
    assert_eq!(state.in_force().prefill, None);
}

#[derive(Clone, Debug)]
enum Step {
    Set { decode: bool, percent: u32, persist: bool, within: Option<u64> },
    Confirm,
    Revert,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), 1u32..99, any::<bool>(), proptest::option::of(1u64..50))
            .prop_map(|(decode, percent, persist, within)| Step::Set { decode, percent, persist, within }),
        1 => Just(Step::Confirm),
        1 => Just(Step::Revert),
        2 => (0u64..60).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever came before, once time has passed nothing unconfirmed is left: each phase holds its last plain or confirmed setting.
    #[test]
    fn nothing_unconfirmed_outlives_its_deadline(steps in proptest::collection::vec(step(), 0..20)) {
        let start = Instant::now();
        let (mut state, mut seconds) = (Retarget::default(), 0);
        // The plainest model: what each phase settled on (in memory or in the file), and what is on trial.
        let mut settled = [None, None];
        let mut trial: [Option<(Option<Setting>, bool)>; 2] = [None, None];
        let mut deadline = 0;
        for step in steps {
            match step {
                Step::Wait(s) => {
                    seconds += s;
                    let over = trial.iter().any(Option::is_some) && seconds >= deadline;
                    prop_assert_eq!(state.tick(after(start, seconds)), over);
                    if over {
                        trial = [None, None];
                    }
                }
                Step::Set { decode, percent, persist, within } => {
                    let phase = if decode { DECODE } else { PREFILL };
                    let setting = tier(percent);
                    let writes = state.set(phase, setting.clone(), persist, within.map(Duration::from_secs), after(start, seconds));
                    match within {
                        Some(within) => {
                            trial[usize::from(decode)] = Some((setting, persist));
                            deadline = seconds + within;
                            prop_assert!(writes.is_empty());
                        }
                        None => {
                            trial[usize::from(decode)] = None;
                            settled[usize::from(decode)] = if persist { None } else { setting.clone() };
                            prop_assert_eq!(writes, if persist { vec![(phase, setting)] } else { vec![] });
                        }
                    }
                }
                Step::Confirm => {
                    let pending = trial.iter().any(Option::is_some);
                    prop_assert_eq!(state.confirm(after(start, seconds)).is_ok(), pending);
                    for (n, on_trial) in trial.iter_mut().enumerate() {
                        if let Some((setting, persist)) = on_trial.take() {
                            settled[n] = if persist { None } else { setting };
                        }
                    }
                }
                Step::Revert => {
                    prop_assert_eq!(state.revert().is_ok(), trial.iter().any(Option::is_some));
                    trial = [None, None];
                }
            }
        }
        state.tick(after(start, seconds + 100));
        prop_assert_eq!([state.in_force().prefill.clone(), state.in_force().decode.clone()], settled);
        prop_assert_eq!(state.trial(), None);
    }
}
