//! Power mode, clocks and what holds them down.

use super::finding::{Check, Finding, Problem, warning};
use super::machine::Machine;
use skip_platform::{BoardKind, ClockState, Profiles, StateFile, Sysfs, counters, gpu_devfreqs, nvpmodel, policies, watch, zones};

/// nvpmodel's mode.
pub static CHECK_MODE: Check = Check {
    name: "power-mode",
    about: "nvpmodel tells its mode, and a clock profile is for it",
    unless: Some("it is no Jetson"),
    problems: &[&UNTOLD, &NO_PROFILE],
};
static UNTOLD: Problem = warning("nobody tells the mode", "`sudo nvpmodel -q`; without the tool: `sudo apt install nvidia-l4t-nvpmodel`");
static NO_PROFILE: Problem = warning(
    "no profile is for the mode, so that clocks cannot be pinned in it",
    "`sudo nvpmodel -m ID` for one of {modes}, which may need a restart of the machine, or a profile of your own in /etc/skipd/profiles",
);

/// Pins.
pub static CHECK_CLOCKS: Check = Check {
    name: "clocks",
    about: "a profile pins the clocks, and they obey",
    unless: Some("the machine shows no clocks"),
    problems: &[&UNPINNED, &HELD, &CHANGED],
};
static UNPINNED: Problem = warning(
    "none does: times vary, and on a Jetson stay behind",
    "`skipctl profile apply {profile}`, or `sudo systemctl restart skipd-profile@{profile}.service`",
);
static HELD: Problem = warning(
    "the clocks are below the pin",
    "cool the machine or give it a stronger supply; a mode with less power holds lower clocks for longer",
);
static CHANGED: Problem = warning(
    "somebody else changed them",
    "stop the other tool (jetson_clocks, a governor's service), then `sudo systemctl restart skipd-profile@{profile}.service`",
);

/// Heat and over-current.
pub static CHECK_THROTTLING: Check = Check {
    name: "throttling",
    about: "no zone is warmer than its trip point, and there was no over-current since the machine started",
    unless: Some("the machine shows neither"),
    problems: &[&HOT, &CURRENT],
};
static HOT: Problem = warning("a zone is", "cool the machine: fan, heat sink, room");
static CURRENT: Problem = warning(
    "there was: a board's processors may stay at a few hundred MHz while their clocks claim the maximum",
    "restart the machine; if it comes again, a stronger supply or a mode with less power (`sudo nvpmodel -m ID`)",
);

/// Looks at the power mode.
pub fn mode(machine: &Machine) -> Finding {
    let files = machine.files();
    if !machine.is_board() {
        return CHECK_MODE.inapplicable("no Jetson");
    }
    let mode = match machine.board.mode() {
        Ok(mode) => mode,
        Err(fault) => return CHECK_MODE.problem(&UNTOLD, format!("{}: {fault}", nvpmodel::STATUS)),
    };
    let modes = modes_of_profiles(machine);
    if modes.iter().any(|(known, _)| known.as_ref().is_none_or(|known| *known == mode)) {
        return CHECK_MODE.ok(mode);
    }
    let ids = files.read(nvpmodel::CONFIG).and_then(|text| nvpmodel::Modes::parse(&text)).unwrap_or_default();
    let shown = modes.iter().filter_map(|(mode, _)| mode.as_deref()).map(|mode| match ids.modes.iter().find(|(_, name)| name == mode) {
        Some((id, _)) => format!("{mode} (ID {id})"),
        None => mode.to_owned(),
    });
    let shown: Vec<String> = shown.collect();
    let shown = if shown.is_empty() { "those that a profile is for".to_owned() } else { shown.join(", ") };
    CHECK_MODE.problem(&NO_PROFILE, format!("{mode}, for which there is no profile")).with("modes", &shown)
}

/// Modes and names of the profiles for this board; a mode of None is any.
fn modes_of_profiles(machine: &Machine) -> Vec<(Option<String>, String)> {
    let profiles = Profiles::new(machine.files());
    let loaded = profiles.names().into_iter().filter_map(|name| profiles.load(&name).ok());
    loaded.filter(|profile| profile.board == Some(machine.identity.kind)).map(|profile| (profile.mode, profile.name)).collect()
}

/// Looks at pins.
pub fn clocks(machine: &Machine) -> Finding {
    let files = machine.files();
    let watched = watch(files, &StateFile::of_root(files.root()));
    let because = if watched.reasons.is_empty() { String::new() } else { format!(": {}", watched.reasons.join("; ")) };
    let profile = watched.profile.clone().unwrap_or_else(|| wanted(machine));
    let seen = format!("{}{because}", watched.state.name());
    match watched.state {
        ClockState::Pinned => CHECK_CLOCKS.ok(format!("pinned by {profile}")),
        ClockState::Throttled => CHECK_CLOCKS.problem(&HELD, seen),
        ClockState::Uncontrolled => CHECK_CLOCKS.problem(&CHANGED, seen).with("profile", &profile),
        ClockState::Unpinned if policies(files).is_empty() && gpu_devfreqs(files).is_empty() => {
            CHECK_CLOCKS.inapplicable("no clocks are shown")
        }
        ClockState::Unpinned => CHECK_CLOCKS.problem(&UNPINNED, seen).with("profile", &profile),
    }
}

/// The profile for the mode in force, else the one that asks for nothing particular.
fn wanted(machine: &Machine) -> String {
    let mode = if machine.identity.kind == BoardKind::Generic { None } else { machine.board.mode().ok() };
    let found = modes_of_profiles(machine).into_iter().find(|(for_mode, _)| for_mode.is_some() && *for_mode == mode);
    found.map_or_else(|| "generic".into(), |(_, name)| name)
}

/// Looks at heat and over-current.
pub fn throttling(machine: &Machine) -> Finding {
    let (zones, counters) = (zones(machine.files()), counters(machine.files()));
    // Those of server processors count every spell of heat since they started; they are no reason for anything now.
    let current: Vec<String> = counters
        .iter()
        .filter(|counter| counter.path.contains("/hwmon/") && counter.count > 0)
        .map(|counter| format!("{}: {}", counter.path, counter.count))
        .collect();
    if !current.is_empty() {
        return CHECK_THROTTLING.problem(&CURRENT, current.join(", "));
    }
    let known = zones.iter().filter_map(|zone| Some((&zone.kind, zone.celsius?, zone.trip)));
    let hot = known.clone().find_map(|(kind, celsius, trip)| trip.filter(|trip| celsius > *trip).map(|trip| (kind, celsius, trip)));
    if let Some((kind, celsius, trip)) = hot {
        return CHECK_THROTTLING.problem(&HOT, format!("{kind} is at {celsius:.1} °C, its trip point is {trip:.1}"));
    }
    match known.max_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((kind, celsius, _)) => CHECK_THROTTLING.ok(format!("the warmest zone, {kind}, is at {celsius:.1} °C")),
        None if counters.is_empty() => CHECK_THROTTLING.inapplicable("no zones and no counters"),
        None => CHECK_THROTTLING.ok("no over-current"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::testing::{ORIN, THOR, Tree, X86};
    use skip_platform::{Board, apply};

    #[test]
    fn a_mode_that_no_profile_is_for_is_named_with_those_that_have_one() {
        let orin = Tree::of(ORIN);
        orin.set(nvpmodel::STATUS, "pmode:0001\n");
        let silent = Tree::of(THOR);
        silent.set(nvpmodel::STATUS, "?\n");
        let found = [mode(&Tree::of(THOR).machine()), mode(&orin.machine()), mode(&silent.machine()), mode(&Tree::of(X86).machine())];
        assert_covers(&CHECK_MODE, &found);
        assert_eq!(found[0].seen, "120W");
        assert!(found[1].remedy.as_ref().unwrap().contains("MAXN (ID 0)"), "{:?}", found[1]);
        // A profile of one's own is as good.
        orin.set("/etc/skipd/profiles/mine.toml", "about = \"x\"\nboard = \"orin\"\nnvpmodel = \"MODE_15W\"\n[cpu]\nmin = \"max\"\n");
        assert_eq!(mode(&orin.machine()).state, State::Ok);
    }

    #[test]
    fn clocks_are_told_as_the_profile_s_watch_tells_them() {
        let tree = Tree::of(THOR);
        let unpinned = clocks(&tree.machine());
        assert!(unpinned.remedy.as_ref().unwrap().contains("skipd-profile@thor-120w.service"), "{unpinned:?}");
        let board = Board::at(tree.root());
        let profile = Profiles::new(board.sysfs()).load("thor-120w").unwrap();
        apply(&board, &profile, &StateFile::of_root(tree.root())).unwrap();
        for path in ["gpu-gpc-0", "gpu-nvd-0", "bwmgr"] {
            let folder = format!("/sys/class/devfreq/{path}");
            tree.set(&format!("{folder}/cur_freq"), &board.sysfs().read(&format!("{folder}/max_freq")).unwrap());
        }
        for policy in ["policy0", "policy1"] {
            tree.set(&format!("/sys/devices/system/cpu/cpufreq/{policy}/cpuinfo_cur_freq"), "2601000\n");
        }
        let pinned = clocks(&tree.machine());
        tree.set("/sys/class/devfreq/gpu-gpc-0/cur_freq", "315000000\n");
        let held = clocks(&tree.machine());
        tree.set("/sys/class/devfreq/gpu-gpc-0/min_freq", "315000000\n");
        let changed = clocks(&tree.machine());
        assert_eq!(pinned.seen, "pinned by thor-120w");
        assert!(held.seen.starts_with("throttled: gpu-gpc-0 runs at 315000000"), "{}", held.seen);
        assert_covers(&CHECK_CLOCKS, &[unpinned, pinned, held, changed, clocks(&Tree::empty().machine())]);
    }

    #[test]
    fn heat_and_over_current_are_told_apart() {
        let (hot, current, off) = (Tree::of(THOR), Tree::of(THOR), Tree::empty());
        hot.set("/sys/class/thermal/thermal_zone2/temp", "101500\n");
        current.set("/sys/class/hwmon/hwmon5/oc3_event_cnt", "1\n");
        off.set("/sys/class/hwmon/hwmon0/name", "soctherm_oc\n");
        off.set("/sys/class/hwmon/hwmon0/oc1_event_cnt", "0\n");
        let found = [
            throttling(&Tree::of(THOR).machine()),
            throttling(&hot.machine()),
            throttling(&current.machine()),
            throttling(&off.machine()),
            throttling(&Tree::empty().machine()),
        ];
        assert_covers(&CHECK_THROTTLING, &found);
        assert_eq!(found[1].seen, "tj is at 101.5 °C, its trip point is 99.0");
        // Two spells of heat on a server, some time ago.
        assert_eq!(throttling(&Tree::of(X86).machine()).state, State::Ok);
    }
}
