//! Clocks and throttling where this machine shows them: what a number is worth depends on it.

use serde::Serialize;
use skip_client::Client;
use skip_client::protocol::{ClockState, ClockStatus};
use std::path::Path;
use std::process::Command;

/// A reading; null where there is nothing to read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Clocks {
    /// Frequency governor of the first processor.
    pub cpu_governor: Option<String>,
    /// Highest frequency of a processor now, MHz.
    pub cpu_mhz: Option<f64>,
    /// Times that processors were throttled by heat since the machine started.
    pub cpu_throttled: Option<u64>,
    /// Of the first GPU that `nvidia-smi` shows, where the daemon computes on one.
    pub gpu: Option<Gpu>,
    /// Whether a profile pins clocks, and whether they obey, as the daemon sees it.
    pub pinning: ClockStatus,
}

/// A GPU's state in nvidia-smi's words and units.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// MHz.
    pub sm_mhz: Option<f64>,
    /// The most it could be, MHz.
    pub sm_max_mhz: Option<f64>,
    /// MHz.
    pub memory_mhz: Option<f64>,
    /// °C.
    pub temperature: Option<f64>,
    /// W.
    pub power: Option<f64>,
    /// Why the clocks are what they are: a bit mask, hexadecimal.
    pub reasons: String,
}

const QUERY: &str = "name,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active";

/// Bits of the mask that mean that something held the clocks down: power cap, hardware slowdown, heat (twice), power brake.
const HELD_DOWN: u64 = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

impl Clocks {
    /// Reads what there is; `gpu` says whether a GPU matters.
    pub async fn read(client: &Client, gpu: bool) -> Self {
        let mut clocks = Self::of_processors(Path::new("/sys/devices/system/cpu"));
        clocks.gpu = if gpu { read_gpu() } else { None };
        // What was measured is not lost for want of an answer: it is not comparable, and says why.
        let unknown = |error| ClockStatus { reasons: vec![format!("the daemon does not say: {error}")], ..ClockStatus::default() };
        clocks.pinning = client.profiles().await.map_or_else(unknown, |shown| shown.clocks);
        clocks
    }

    fn of_processors(root: &Path) -> Self {
        let number = |path: &Path| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let mut clocks = Self::default();
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_processor = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.strip_prefix("cpu").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        };
        for path in entries.filter(|path| is_processor(path)) {
            if let Some(khz) = number(&path.join("cpufreq/scaling_cur_freq")) {
                clocks.cpu_mhz = Some(clocks.cpu_mhz.unwrap_or(0.0).max(khz as f64 / 1e3));
            }
            if let Some(count) = number(&path.join("thermal_throttle/core_throttle_count")) {
                *clocks.cpu_throttled.get_or_insert(0) += count;
            }
        }
        let governor = std::fs::read_to_string(root.join("cpu0/cpufreq/scaling_governor"));
        clocks.cpu_governor = governor.ok().map(|text| text.trim().to_owned());
        clocks
    }

    /// Why numbers taken between two readings cannot be compared with others; None: they can.
    pub fn incomparable(&self, before: &Self) -> Option<String> {
        for (when, clocks) in [("before the run", before), ("after the run", self)] {
            let pinning = &clocks.pinning;
            if pinning.state != ClockState::Pinned {
                let why = if pinning.reasons.is_empty() { String::new() } else { format!(" ({})", pinning.reasons.join("; ")) };
                return Some(format!("clocks were {} {when}{why}", pinning.state.name()));
            }
            if !pinning.refused.is_empty() {
                return Some(format!("clocks were pinned in part {when} ({})", pinning.refused.join("; ")));
            }
            if clocks.gpu.is_some() && !pinning.pins_gpu {
                return Some(format!("the GPU's clocks were not pinned {when}: the profile has none of it"));
            }
        }
        let throttles = self.pinning.throttles.saturating_sub(before.pinning.throttles);
        if throttles > 0 {
            return Some(format!("clocks were throttled {throttles} times during the run"));
        }
        (before.pinning.profile != self.pinning.profile).then(|| "the profile was changed during the run".to_owned())
    }

    /// What a reader must know of the numbers, from the readings before and after.
    pub fn warnings(&self, before: &Self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(why) = self.incomparable(before) {
            let loud = if self.pinning.state == ClockState::Unpinned { "CLOCKS ARE NOT PINNED" } else { "NOT COMPARABLE" };
            warnings.push(format!("{loud}: the numbers hold for the clocks of this moment; {why}"));
        }
        if let (Some(now), Some(then)) = (self.cpu_throttled, before.cpu_throttled)
            && now > then
        {
            warnings.push(format!("processors were throttled by heat {} times meanwhile", now - then));
        }
        if let Some(governor) = self.cpu_governor.as_deref().filter(|&governor| governor != "performance") {
            warnings.push(format!("the frequency governor is {governor}, not performance"));
        }
        for gpu in [&before.gpu, &self.gpu].into_iter().flatten() {
            let mask = u64::from_str_radix(gpu.reasons.trim_start_matches("0x"), 16).unwrap_or(0);
            if mask & HELD_DOWN != 0 {
                warnings.push(format!("the GPU's clocks were held down (reasons {})", gpu.reasons));
            }
        }
        warnings.dedup();
        warnings
    }
}

/// None where there is no nvidia-smi or it shows nothing.
fn read_gpu() -> Option<Gpu> {
    let output = Command::new("nvidia-smi").arg(format!("--query-gpu={QUERY}")).arg("--format=csv,noheader,nounits").output().ok()?;
    parse_gpu(std::str::from_utf8(&output.stdout).ok()?)
}

fn parse_gpu(text: &str) -> Option<Gpu> {
    let fields: Vec<&str> = text.lines().next()?.split(',').map(str::trim).collect();
    let number = |i: usize| fields.get(i).and_then(|field: &&str| field.parse().ok());
    (fields.len() >= 7).then(|| Gpu {
        name: fields[0].to_owned(),
        sm_mhz: number(1),
        sm_max_mhz: number(2),
        memory_mhz: number(3),
        temperature: number(4),
        power: number(5),
        reasons: fields[6].to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_from_a_tree() {
        let root = tempfile::tempdir().unwrap();
        for (cpu, khz, throttled) in [("cpu0", "1500000", "2"), ("cpu1", "2100000", "3"), ("cpufreq", "9", "9")] {
            let cpu = root.path().join(cpu);
            std::fs::create_dir_all(cpu.join("cpufreq")).unwrap();
            std::fs::create_dir_all(cpu.join("thermal_throttle")).unwrap();
            std::fs::write(cpu.join("cpufreq/scaling_cur_freq"), khz).unwrap();
            std::fs::write(cpu.join("cpufreq/scaling_governor"), "schedutil\n").unwrap();
            std::fs::write(cpu.join("thermal_throttle/core_throttle_count"), throttled).unwrap();
        }
        let clocks = Clocks::of_processors(root.path());
        assert_eq!((clocks.cpu_mhz, clocks.cpu_throttled, clocks.cpu_governor.as_deref()), (Some(2100.0), Some(5), Some("schedutil")));
        let later = Clocks { cpu_throttled: Some(7), ..clocks.clone() };
        let warnings = later.warnings(&clocks);
        assert!(warnings[0].contains("NOT PINNED") && warnings[1].contains("2 times") && warnings[2].contains("schedutil"), "{warnings:?}");
        assert_eq!(Clocks::of_processors(Path::new("/nowhere")), Clocks::default());
    }

    fn pinned(profile: &str) -> Clocks {
        let pinning = ClockStatus { state: ClockState::Pinned, profile: Some(profile.into()), ..ClockStatus::default() };
        Clocks { pinning, ..Clocks::default() }
    }

    #[test]
    fn numbers_can_be_compared_only_where_the_same_profile_held_throughout() {
        let (good, none) = (pinned("generic"), Clocks::default());
        assert_eq!(good.incomparable(&good), None);
        assert!(good.warnings(&good).is_empty());
        let of = |change: &dyn Fn(&mut Clocks)| {
            let mut clocks = pinned("generic");
            change(&mut clocks);
            clocks
        };
        let throttled =
            of(&|clocks| (clocks.pinning.state, clocks.pinning.reasons) = (ClockState::Throttled, vec!["cpu is at 101 °C".into()]));
        let partly = of(&|clocks| clocks.pinning.refused = vec!["bwmgr/min_freq: absent".into()]);
        let held_down = of(&|clocks| clocks.pinning.throttles = 2);
        let with_gpu = of(&|clocks| clocks.gpu = Some(Gpu::default()));
        for (before, after, said) in [
            (&none, &good, "unpinned before"),
            (&good, &none, "unpinned after"),
            (&throttled, &good, "101 °C"),
            (&good, &throttled, "throttled after"),
            (&partly, &partly, "in part"),
            (&good, &held_down, "throttled 2 times during"),
            (&with_gpu, &with_gpu, "the GPU's clocks were not pinned"),
            (&good, &pinned("thor-maxn"), "changed during the run"),
        ] {
            let why = after.incomparable(before).unwrap();
            assert!(why.contains(said) && after.warnings(before)[0].contains(&why), "{why}");
        }
        let gpu = of(&|clocks| (clocks.gpu, clocks.pinning.pins_gpu) = (Some(Gpu::default()), true));
        assert_eq!(gpu.incomparable(&gpu), None);
    }

    #[test]
    fn a_gpu_held_down_by_heat_is_told() {
        let gpu = parse_gpu("NVIDIA H200, 1980, 1980, 3201, 34, 120.5, 0x0000000000000020\n").unwrap();
        assert_eq!((gpu.sm_mhz, gpu.power, gpu.name.as_str()), (Some(1980.0), Some(120.5), "NVIDIA H200"));
        let hot = Clocks { gpu: Some(gpu), ..Clocks::default() };
        assert!(hot.warnings(&hot).iter().any(|warning| warning.contains("held down")));
        assert!(parse_gpu("no devices").is_none() && parse_gpu("").is_none());
        assert_eq!(parse_gpu("Orin, [N/A], [N/A], 1, 2, [N/A], 0x0").unwrap().sm_mhz, None);
    }
}
