//! Temperatures, over-current and throttle counters, the fan, and memory.

use crate::sysfs::{Sysfs, number, signed, word};
use serde::Serialize;

const HWMON: &str = "/sys/class/hwmon";
const THERMAL: &str = "/sys/class/thermal";
/// What a zone that is switched off reads, in °C.
const DISABLED: f64 = -256.0;
/// More trip points than a zone has.
const TRIPS: usize = 16;

/// One thermal zone; °C.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Zone {
    /// `cpu`, `gpu`, `tj`, …
    pub kind: String,
    /// Now; None: the zone is off.
    pub celsius: Option<f64>,
    /// The lowest of its trip points at which something is slowed down or switched off.
    pub trip: Option<f64>,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// Its file.
    pub path: String,
    /// Events since the machine started.
    pub count: u64,
}

/// Memory of the machine, bytes. On unified memory it is the device's too, and `available` the number to go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All.
    pub total: Option<u64>,
    /// `MemAvailable`: free, and what the kernel would give back.
    pub available: Option<u64>,
    /// Swap there is.
    pub swap_total: Option<u64>,
    /// Swap that is free.
    pub swap_free: Option<u64>,
    /// Whether some of the swap is compressed memory.
    pub zram: bool,
}

/// All thermal zones.
pub fn zones(sysfs: &dyn Sysfs) -> Vec<Zone> {
    let names = sysfs.list(THERMAL).unwrap_or_default();
    names.iter().filter(|name| name.starts_with("thermal_zone")).filter_map(|name| zone(sysfs, &format!("{THERMAL}/{name}"))).collect()
}

fn zone(sysfs: &dyn Sysfs, path: &str) -> Option<Zone> {
    let kind = word(sysfs, &format!("{path}/type")).ok()?;
    let celsius = signed(sysfs, &format!("{path}/temp")).ok().map(|milli| milli as f64 / 1e3).filter(|&celsius| celsius > DISABLED);
    let trips = (0..TRIPS).map_while(|trip| {
        let kind = word(sysfs, &format!("{path}/trip_point_{trip}_type")).ok()?;
        Some((kind, signed(sysfs, &format!("{path}/trip_point_{trip}_temp")).ok()))
    });
    // Fans start at active ones.
    let holding = trips.filter(|(kind, _)| kind != "active").filter_map(|(_, milli)| milli).filter(|&milli| milli > 0).min();
    Some(Zone { kind: kind.trim_end_matches("-thermal").to_owned(), celsius, trip: holding.map(|milli| milli as f64 / 1e3) })
}

/// Over-current events (`soctherm_oc`), and on other machines throttling by heat.
pub fn counters(sysfs: &dyn Sysfs) -> Vec<Counter> {
    let mut paths: Vec<String> = Vec::new();
    for folder in hwmon(sysfs, |name| name == "soctherm_oc") {
        paths.extend((1..=3).map(|oc| format!("{folder}/oc{oc}_event_cnt")));
    }
    const CPU: &str = "/sys/devices/system/cpu";
    let is_cpu = |name: &&String| name.strip_prefix("cpu").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
    let cpus = sysfs.list(CPU).unwrap_or_default();
    paths.extend(cpus.iter().filter(is_cpu).map(|cpu| format!("{CPU}/{cpu}/thermal_throttle/core_throttle_count")));
    paths.into_iter().filter_map(|path| number(sysfs, &path).ok().map(|count| Counter { path, count })).collect()
}

/// The file that sets the fan's speed, 0 to 255.
pub fn fan(sysfs: &dyn Sysfs) -> Option<String> {
    let folders = hwmon(sysfs, |name| name == "pwmfan" || name == "pwm-fan");
    folders.into_iter().map(|folder| format!("{folder}/pwm1")).find(|path| sysfs.exists(path))
}

/// Folders of monitors of a name: their numbers change from boot to boot.
fn hwmon(sysfs: &dyn Sysfs, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let names = sysfs.list(HWMON).unwrap_or_default();
    let folders = names.into_iter().map(|name| format!("{HWMON}/{name}"));
    folders.filter(|folder| word(sysfs, &format!("{folder}/name")).is_ok_and(|name| wanted(&name))).collect()
}

/// What /proc says of memory.
pub fn memory(sysfs: &dyn Sysfs) -> Memory {
    let text = sysfs.read("/proc/meminfo").unwrap_or_default();
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let swaps = sysfs.read("/proc/swaps").unwrap_or_default();
    Memory {
        total: bytes("MemTotal"),
        available: bytes("MemAvailable"),
        swap_total: bytes("SwapTotal"),
        swap_free: bytes("SwapFree"),
        zram: swaps.lines().any(|line| line.starts_with("/dev/zram")),
    }
}
