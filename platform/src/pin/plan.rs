//! From a profile to the nodes of this board, in the order in which they are written.
//!
//! Limits are never raised: they are the power mode's. So a pin lowers or raises the minimum to a value that is not above the maximum, and only then
//! lowers the maximum to it: min ≤ max holds between any two writes.

use super::node::{Node, Role, shown};
use crate::clocks::{BPMP_EMC, DEVFREQ, devfreq, domain, policies};
use crate::fault::Fault;
use crate::profile::{GpuDomain, Profile, Target};
use crate::sensors;
use crate::state::TEXT;
use crate::sysfs::{Sysfs, number};

/// All nodes that a profile wants; those that cannot be written say why.
pub(super) fn plan(sysfs: &dyn Sysfs, profile: &Profile) -> Vec<Node> {
    let mut nodes = Vec::new();
    for wanted in &profile.gpu {
        gpu(sysfs, wanted, &mut nodes);
    }
    if let Some(target) = profile.emc {
        emc(sysfs, target, &mut nodes);
    }
    processors(sysfs, profile, &mut nodes);
    if let Some(speed) = profile.fan {
        match sensors::fan(sysfs) {
            Some(path) => value(sysfs, "fan", path, speed.to_string(), &mut nodes),
            None => nodes.push(Node::out("fan", Role::Value, "/sys/class/hwmon/pwmfan/pwm1".into(), &Fault::Absent)),
        }
    }
    nodes
}

fn gpu(sysfs: &dyn Sysfs, wanted: &GpuDomain, nodes: &mut Vec<Node>) {
    let paths: Vec<String> = wanted.nodes.iter().map(|node| format!("{DEVFREQ}/{node}")).collect();
    match (paths.iter().find(|path| sysfs.exists(path)), paths.first()) {
        (Some(path), _) => devfreq_domain(sysfs, path, wanted.target, nodes),
        (None, Some(path)) => nodes.push(Node::out(&domain(path), Role::Min, format!("{path}/min_freq"), &Fault::Absent)),
        // A domain has at least one name.
        (None, None) => {}
    }
}

fn devfreq_domain(sysfs: &dyn Sysfs, path: &str, target: Target, nodes: &mut Vec<Node>) {
    let steps = devfreq(sysfs, path).available.ok();
    frequencies(sysfs, path, ["min_freq", "max_freq"], target, steps.as_deref(), nodes);
}

fn processors(sysfs: &dyn Sysfs, profile: &Profile, nodes: &mut Vec<Node>) {
    let wanted = &profile.cpu;
    if wanted.governor.is_none() && wanted.min.is_none() {
        return;
    }
    let policies = policies(sysfs);
    if policies.is_empty() {
        nodes.push(Node::out("cpufreq", Role::Min, format!("{}/policy0/scaling_min_freq", crate::clocks::CPUFREQ), &Fault::Absent));
    }
    for policy in policies {
        if let Some(governor) = &wanted.governor {
            value_of(sysfs, Role::Governor, &domain(&policy.path), format!("{}/scaling_governor", policy.path), governor.clone(), nodes);
        }
        if let Some(target) = wanted.min {
            let steps = sysfs.read(&format!("{}/scaling_available_frequencies", policy.path)).ok();
            let steps: Option<Vec<u64>> = steps.map(|text| text.split_whitespace().filter_map(|step| step.parse().ok()).collect());
            let steps = steps.filter(|steps| !steps.is_empty());
            frequencies(sysfs, &policy.path, ["scaling_min_freq", "scaling_max_freq"], target, steps.as_deref(), nodes);
        }
    }
}

/// Memory: the controller's devfreq, else BPMP's debug files.
fn emc(sysfs: &dyn Sysfs, target: Target, nodes: &mut Vec<Node>) {
    let bwmgr = format!("{DEVFREQ}/bwmgr");
    if sysfs.exists(&bwmgr) || !sysfs.exists(BPMP_EMC) {
        return match sysfs.exists(&bwmgr) {
            true => devfreq_domain(sysfs, &bwmgr, target, nodes),
            false => nodes.push(Node::out("bwmgr", Role::Min, format!("{bwmgr}/min_freq"), &Fault::Absent)),
        };
    }
    match number(sysfs, &format!("{BPMP_EMC}/max_rate")) {
        Ok(max) => {
            let rate = match target {
                Target::Max => max,
                Target::AtMost(hz) => hz.min(max),
            };
            value(sysfs, "emc", format!("{BPMP_EMC}/rate"), rate.to_string(), nodes);
            value(sysfs, "emc", format!("{BPMP_EMC}/mrq_rate_locked"), "1".into(), nodes);
        }
        Err(fault) => nodes.push(Node::out("emc", Role::Value, format!("{BPMP_EMC}/rate"), &fault)),
    }
}

fn value(sysfs: &dyn Sysfs, domain: &str, path: String, wanted: String, nodes: &mut Vec<Node>) {
    value_of(sysfs, Role::Value, domain, path, wanted, nodes);
}

fn value_of(sysfs: &dyn Sysfs, role: Role, domain: &str, path: String, wanted: String, nodes: &mut Vec<Node>) {
    nodes.push(match before(sysfs, &path) {
        Ok(before) => Node::planned(domain, role, path, before, wanted),
        Err(fault) => Node::out(domain, role, path, &fault),
    });
}

/// Minimum and maximum of a domain, both to the frequency that the target comes to.
fn frequencies(sysfs: &dyn Sysfs, path: &str, files: [&str; 2], target: Target, steps: Option<&[u64]>, nodes: &mut Vec<Node>) {
    let name = domain(path);
    let [low, high] = files.map(|file| format!("{path}/{file}"));
    let out = |role, path: &str, fault: &Fault| Node::out(&name, role, path.to_owned(), fault);
    let ((least, min), (most, max)) = match (before_number(sysfs, &low), before_number(sysfs, &high)) {
        (Ok(low), Ok(high)) => (low, high),
        (Err(fault), _) => return nodes.push(out(Role::Min, &low, &fault)),
        (_, Err(fault)) => return nodes.push(out(Role::Max, &high, &fault)),
    };
    if min > max {
        return nodes.push(out(Role::Min, &low, &Fault::nonsense(&format!("{min}, above the maximum of {max}"))));
    }
    let wanted = match (target, steps) {
        (Target::Max, _) => Some(max),
        (Target::AtMost(limit), None) => Some(limit.min(max)),
        (Target::AtMost(limit), Some(steps)) => steps.iter().copied().filter(|&step| step <= limit.min(max)).max(),
    };
    let Some(wanted) = wanted else {
        return nodes.push(out(Role::Min, &low, &Fault::nonsense("no step at or below what is wanted")));
    };
    nodes.push(Node::planned(&name, Role::Min, low, least, wanted.to_string()));
    nodes.push(Node::planned(&name, Role::Max, high, most, wanted.to_string()));
}

/// What a node says, to the byte.
fn before(sysfs: &dyn Sysfs, path: &str) -> Result<String, Fault> {
    let text = sysfs.read(path)?;
    if text.len() > TEXT { Err(Fault::TooLarge { limit: TEXT as u64 }) } else { Ok(text) }
}

fn before_number(sysfs: &dyn Sysfs, path: &str) -> Result<(String, u64), Fault> {
    let text = before(sysfs, path)?;
    let number = shown(&text).parse().map_err(|_| Fault::nonsense(&text))?;
    Ok((text, number))
}
