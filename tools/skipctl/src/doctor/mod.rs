//! `doctor`: looks at what serving needs of a machine, and names what is wrong with the command that mends it. It works without a daemon, without root,
//! and on a machine that has nothing of all this.

mod access;
mod clocks;
mod config;
mod finding;
mod gpu;
mod kernels;
mod machine;
mod memory;
mod nodes;
#[cfg(test)]
mod page;
mod people;
mod report;
mod services;
mod storage;
#[cfg(test)]
mod testing;
mod time;
mod units;

pub use finding::{Finding, State};
pub use machine::{Machine, Places};
pub use report::Report;

use finding::Check;

/// A check, and what looks.
type Look = (&'static Check, fn(&Machine) -> Finding);

/// Every check, in the order of the report: what a service is started with comes first.
const CHECKS: [Look; 24] = [
    (&storage::CHECK_CONFIG, storage::configuration),
    (&storage::CHECK_MODEL, storage::model),
    (&storage::CHECK_STATE, storage::state),
    (&services::CHECK_SERVICE, services::service),
    (&access::CHECK_SOCKET, access::socket),
    (&services::CHECK_BUS, services::bus),
    (&services::CHECK_DAEMON, services::daemon),
    (&access::CHECK_MEMBER, access::member),
    (&access::CHECK_GROUPS, access::groups),
    (&gpu::CHECK_DRIVER, gpu::driver),
    (&gpu::CHECK_LIBRARY, gpu::library),
    (&nodes::CHECK_NODES, nodes::nodes),
    (&nodes::CHECK_ACCESS, nodes::access),
    (&gpu::CHECK_NVML, gpu::nvml),
    (&kernels::CHECK_KERNELS, kernels::kernels),
    (&kernels::CHECK_QUALIFIED, kernels::qualified),
    (&clocks::CHECK_MODE, clocks::mode),
    (&clocks::CHECK_CLOCKS, clocks::clocks),
    (&clocks::CHECK_THROTTLING, clocks::throttling),
    (&memory::CHECK_MEMORY, memory::memory),
    (&memory::CHECK_LIMIT, memory::limit),
    (&memory::CHECK_SWAP, memory::swap),
    (&time::CHECK_CLOCK, time::clock),
    (&time::CHECK_UPDATES, time::updates),
];

/// Looks at everything.
pub fn examine(machine: &Machine) -> Report {
    Report { findings: CHECKS.iter().map(|(_, look)| look(machine)).collect() }
}

#[cfg(test)]
mod tests {
    use super::testing::{ORIN, THOR, Tree, X86};
    use super::*;

    #[test]
    fn every_check_reports_under_its_own_name_and_no_two_share_one() {
        for manifest in ["", THOR, ORIN, X86] {
            let report = examine(&Tree::of(manifest).machine());
            let mut names: Vec<&str> = report.findings.iter().map(|finding| finding.check.name).collect();
            assert_eq!(names, CHECKS.map(|(check, _)| check.name));
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), CHECKS.len());
        }
    }

    #[test]
    fn a_machine_with_none_of_it_has_no_failure() {
        let report = examine(&Tree::empty().machine());
        assert_eq!((report.count(State::Failure), report.count(State::Warning)), (0, 0), "{:?}", report.findings);
    }
}
