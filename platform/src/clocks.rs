//! Clock domains: devfreq for GPU and memory, cpufreq for processors.

use crate::fault::Fault;
use crate::sysfs::{Sysfs, name, number, word};
use serde::Serialize;

/// Where devfreq shows its devices.
pub(crate) const DEVFREQ: &str = "/sys/class/devfreq";
/// Where cpufreq shows its policies.
pub(crate) const CPUFREQ: &str = "/sys/devices/system/cpu/cpufreq";
/// Where BPMP shows the memory clock, on boards without a memory devfreq.
pub(crate) const BPMP_EMC: &str = "/sys/kernel/debug/bpmp/debug/clk/emc";
/// Thor's GPU: graphics and NVDEC/NVENC domains; Orin's, by JetPack.
pub(crate) const GPUS: [&str; 4] = ["gpu-gpc-0", "gpu-nvd-0", "17000000.gpu", "17000000.ga10b"];

/// One devfreq device; Hz.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Devfreq {
    /// Its folder.
    pub path: String,
    /// Now.
    pub current: Result<u64, Fault>,
    /// At least.
    pub min: Result<u64, Fault>,
    /// At most.
    pub max: Result<u64, Fault>,
    /// Those it can have, ascending.
    pub available: Result<Vec<u64>, Fault>,
    /// What decides between.
    pub governor: Result<String, Fault>,
}

/// One cpufreq policy; kHz.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Policy {
    /// Its folder.
    pub path: String,
    /// What the scaling driver claims, or where root may ask, what the hardware does.
    pub current: Result<u64, Fault>,
    /// At least.
    pub min: Result<u64, Fault>,
    /// At most.
    pub max: Result<u64, Fault>,
    /// What decides between.
    pub governor: Result<String, Fault>,
}

/// The devices of GPUs that are known by name.
pub fn gpu_devfreqs(sysfs: &dyn Sysfs) -> Vec<Devfreq> {
    GPUS.iter().map(|gpu| format!("{DEVFREQ}/{gpu}")).filter(|path| sysfs.exists(path)).map(|path| devfreq(sysfs, &path)).collect()
}

/// The memory controller's.
pub fn emc(sysfs: &dyn Sysfs) -> Option<Devfreq> {
    let path = format!("{DEVFREQ}/bwmgr");
    sysfs.exists(&path).then(|| devfreq(sysfs, &path))
}

/// One device.
pub fn devfreq(sysfs: &dyn Sysfs, path: &str) -> Devfreq {
    Devfreq {
        path: path.to_owned(),
        current: number(sysfs, &format!("{path}/cur_freq")),
        min: number(sysfs, &format!("{path}/min_freq")),
        max: number(sysfs, &format!("{path}/max_freq")),
        available: available(sysfs, path),
        governor: word(sysfs, &format!("{path}/governor")),
    }
}

fn available(sysfs: &dyn Sysfs, path: &str) -> Result<Vec<u64>, Fault> {
    let text = sysfs.read(&format!("{path}/available_frequencies"))?;
    let mut steps: Vec<u64> =
        text.split_whitespace().map(|step| step.parse().map_err(|_| Fault::nonsense(&text))).collect::<Result<_, _>>()?;
    steps.sort_unstable();
    if steps.is_empty() { Err(Fault::nonsense(&text)) } else { Ok(steps) }
}

/// All policies.
pub fn policies(sysfs: &dyn Sysfs) -> Vec<Policy> {
    let names = sysfs.list(CPUFREQ).unwrap_or_default();
    let mut names: Vec<String> = names.into_iter().filter(|name| index(name).is_some()).collect();
    names.sort_by_key(|name| index(name));
    names.into_iter().map(|name| policy(sysfs, &format!("{CPUFREQ}/{name}"))).collect()
}

/// `policy0` is 0.
fn index(name: &str) -> Option<u32> {
    name.strip_prefix("policy")?.parse().ok()
}

fn policy(sysfs: &dyn Sysfs, path: &str) -> Policy {
    Policy {
        path: path.to_owned(),
        current: policy_current(sysfs, path),
        min: number(sysfs, &format!("{path}/scaling_min_freq")),
        max: number(sysfs, &format!("{path}/scaling_max_freq")),
        governor: word(sysfs, &format!("{path}/scaling_governor")),
    }
}

/// The hardware's own word where it can be had: `scaling_cur_freq` was seen at 2601 MHz on processors that ran at 242.
pub(crate) fn policy_current(sysfs: &dyn Sysfs, path: &str) -> Result<u64, Fault> {
    number(sysfs, &format!("{path}/cpuinfo_cur_freq")).or_else(|_| number(sysfs, &format!("{path}/scaling_cur_freq")))
}

/// What reports call a domain: the last part of its folder.
pub(crate) fn domain(path: &str) -> String {
    name(path).to_owned()
}
