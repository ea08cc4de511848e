//! The service, the bus, and what the daemon says of itself.

use super::finding::{Check, Finding, Problem, failure, warning};
use super::machine::{Answer, Machine};
use skip_client::protocol::{AvailabilityState, State};
use skip_platform::Sysfs;

/// Whom the package lets own the name.
const POLICY: &str = "/usr/share/dbus-1/system.d/org.skipd.Skipd1.conf";
/// The system bus.
const BUS: &str = "/run/dbus/system_bus_socket";

/// Units.
pub static CHECK_SERVICE: Check = Check {
    name: "service",
    about: "skipd.service runs, or skipd.socket listens and starts it, as systemd says over the bus",
    unless: Some("the package is not installed, or systemd does not say"),
    problems: &[&FAILED, &IDLE, &RESTARTED],
};
static FAILED: Problem =
    failure("a unit failed", "`journalctl -u skipd.service -u skipd.socket -b -e` says why, then `sudo systemctl restart {unit}`");
static IDLE: Problem = warning("neither", "`sudo systemctl enable --now skipd.socket`; it does not start without a configuration");
static RESTARTED: Problem = warning(
    "it was started again after an end by itself",
    "`journalctl -u skipd.service -b` says why: a watchdog, a device fault, a signal",
);

/// The bus.
pub static CHECK_BUS: Check = Check {
    name: "bus",
    about: "the system bus is there, and the package's policy lets the daemon own its name",
    unless: Some("the package is not installed"),
    problems: &[&NO_BUS, &NO_POLICY],
};
static NO_BUS: Problem =
    warning("there is no bus: the socket serves alone", "`sudo apt install dbus`, or `bus = \"none\"` in /etc/skipd/skipd.toml");
static NO_POLICY: Problem =
    warning("there is no policy: the socket serves alone", "`sudo apt install --reinstall` the package, then `sudo systemctl reload dbus`");

/// The daemon.
pub static CHECK_DAEMON: Check = Check {
    name: "daemon",
    about: "the daemon answers, its model is loaded, and it serves as configured",
    unless: Some("it is not started, and nothing says that it should be"),
    problems: &[&SILENT, &NOT_LOADED, &PAUSED, &DEGRADED],
};
static SILENT: Problem = failure("it does not answer", "`journalctl -u skipd.service -b -e`, then `sudo systemctl restart skipd.service`");
static NOT_LOADED: Problem =
    failure("it answers and does not serve", "the reason names what to change; then `sudo systemctl restart skipd.service`");
static PAUSED: Problem = warning(
    "it is there and takes no requests now",
    "`skipctl status --wait 60s` where it loads; after `skipctl drain`, `sudo systemctl restart skipd.service`",
);
static DEGRADED: Problem = warning(
    "it serves with less than configured",
    "`skipctl status` for more; `sudo skipctl qualify` where kernels are refused; fewer requests at once where the queue is full",
);

/// Looks at the units.
pub fn service(machine: &Machine) -> Finding {
    let units = match (&machine.told.units, machine.units()) {
        (_, Some(units)) => units,
        (Err(why), _) => return CHECK_SERVICE.inapplicable(why),
        (Ok(_), None) => return CHECK_SERVICE.inapplicable("systemd knows no skipd.service"),
    };
    for (name, unit) in [("skipd.service", &units.service), ("skipd.socket", &units.socket)] {
        if unit.active == "failed" {
            return CHECK_SERVICE.problem(&FAILED, format!("{name} failed: {}", unit.result)).with("unit", name);
        }
    }
    let seen = format!(
        "skipd.service is {} ({}), skipd.socket is {} ({})",
        units.service.active, units.service.sub, units.socket.active, units.socket.sub
    );
    if units.service.restarts > 0 {
        return CHECK_SERVICE.problem(&RESTARTED, format!("{} times; {seen}", units.service.restarts));
    }
    let alive = ["active", "activating", "reloading"].contains(&units.service.active.as_str()) || units.socket.active == "active";
    if alive { CHECK_SERVICE.ok(seen) } else { CHECK_SERVICE.problem(&IDLE, seen) }
}

/// Looks at the bus.
pub fn bus(machine: &Machine) -> Finding {
    if !machine.installed {
        return CHECK_BUS.inapplicable("a private run joins a bus where it is told to");
    }
    if !machine.files().exists(BUS) {
        return CHECK_BUS.problem(&NO_BUS, format!("no {BUS}"));
    }
    if machine.files().exists(POLICY) { CHECK_BUS.ok(POLICY) } else { CHECK_BUS.problem(&NO_POLICY, format!("no {POLICY}")) }
}

/// Judges what the daemon said.
pub fn daemon(machine: &Machine) -> Finding {
    let status = match &machine.answer {
        Answer::Status(status) => status,
        Answer::NotAsked(why) => return CHECK_DAEMON.inapplicable(why),
        // Nobody answers where nothing is started: the socket and the units are judged by themselves.
        Answer::Silent(why) => {
            let running = machine.units().is_some_and(|units| units.service.active == "active");
            let there = machine.places.sockets.iter().any(|path| machine.node(path).is_ok());
            return if running || there || machine.places.bus.is_some() {
                CHECK_DAEMON.problem(&SILENT, why)
            } else {
                CHECK_DAEMON.inapplicable("it is not started")
            };
        }
    };
    let backend = status.backend.as_ref().map(|backend| format!(", {} ({})", backend.name, backend.reason)).unwrap_or_default();
    let seen = format!("{}, skipd {}{backend}", status.state, status.version);
    let reason = &status.availability.reason;
    match (status.state, status.availability.state) {
        (State::Failed, _) => CHECK_DAEMON.problem(&NOT_LOADED, format!("{seen}: {reason}")),
        (State::Ready, AvailabilityState::Degraded) => CHECK_DAEMON.problem(&DEGRADED, format!("{seen}: {reason}")),
        (State::Ready, _) => CHECK_DAEMON.ok(seen),
        _ => CHECK_DAEMON.problem(&PAUSED, seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State as Ended, assert_covers};
    use crate::doctor::testing::Tree;
    use crate::doctor::units::{Unit, Units};
    use skip_client::protocol::{Availability, Status};

    fn unit(active: &str) -> Unit {
        Unit { load: "loaded".into(), active: active.into(), sub: "x".into(), result: "exit-code".into(), restarts: 0 }
    }

    #[test]
    fn a_service_that_the_socket_starts_is_well_before_it_is_started() {
        let tree = Tree::empty();
        let of = |service: Unit, socket: &str| {
            let mut machine = tree.machine();
            machine.told.units = Ok(Units { service, socket: unit(socket) });
            service_of(&machine)
        };
        fn service_of(machine: &Machine) -> Finding {
            super::service(machine)
        }
        let found = [
            of(unit("active"), "active"),
            of(unit("inactive"), "active"),
            of(unit("inactive"), "inactive"),
            of(unit("failed"), "active"),
            of(unit("inactive"), "failed"),
            of(Unit { restarts: 3, ..unit("active") }, "active"),
            of(Unit { load: "not-found".into(), ..unit("inactive") }, "inactive"),
            service_of(&tree.machine()),
        ];
        assert_covers(&CHECK_SERVICE, &found);
        assert_eq!(found[1].state, Ended::Ok);
        assert!(found[4].remedy.as_ref().unwrap().ends_with("restart skipd.socket`"));
        assert!(found[5].seen.starts_with("3 times"));
        assert_eq!((found[6].state, found[7].state), (Ended::NotApplicable, Ended::NotApplicable));
    }

    #[test]
    fn an_installed_package_wants_a_bus_and_its_policy() {
        let tree = Tree::empty();
        let mut found = vec![bus(&tree.machine())];
        tree.install();
        found.push(bus(&tree.machine()));
        tree.set(BUS, "");
        found.push(bus(&tree.machine()));
        tree.set(POLICY, "");
        found.push(bus(&tree.machine()));
        assert_covers(&CHECK_BUS, &found);
    }

    #[test]
    fn the_daemon_s_own_word_decides() {
        let tree = Tree::empty();
        let of = |answer| {
            let mut machine = tree.machine();
            machine.answer = answer;
            machine
        };
        let said = |state, availability| {
            let availability = Availability { state: availability, reason: "no memory".into() };
            daemon(&of(Answer::Status(Box::new(Status { state, availability, ..Status::default() }))))
        };
        let mut silent = of(Answer::Silent("nobody listens".into()));
        let absent = daemon(&silent);
        tree.set("/run/skipd/skipd.sock", "");
        silent.places.sockets = vec!["/run/skipd/skipd.sock".into()];
        let found = [
            said(State::Ready, AvailabilityState::Available),
            said(State::Loading, AvailabilityState::Unavailable),
            said(State::Ready, AvailabilityState::Degraded),
            said(State::Failed, AvailabilityState::Unavailable),
            daemon(&silent),
            absent,
            daemon(&of(Answer::NotAsked("not started".into()))),
        ];
        assert_covers(&CHECK_DAEMON, &found);
        assert!(found[3].seen.ends_with(": no memory"), "{}", found[3].seen);
        assert_eq!((found[1].state, found[5].state), (Ended::Warning, Ended::NotApplicable));
    }
}
