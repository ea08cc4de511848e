//! Power modes as nvpmodel's files name them. They are read and never set: a change may need a reboot, and may change the number of SMs.

use crate::fault::Fault;
use crate::sysfs::{Rooted, Sysfs, number, word};
use serde::Serialize;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The board's modes.
pub const CONFIG: &str = "/etc/nvpmodel.conf";
/// Where nvpmodel keeps the mode in force.
pub const STATUS: &str = "/var/lib/nvpmodel/status";
/// The tool.
const TOOL: &str = "/usr/sbin/nvpmodel";
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// More modes than any board has.
const MODES: usize = 256;

/// What the configuration offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Modes {
    /// Ids and names, in the file's order.
    pub modes: Vec<(u32, String)>,
    /// Id of the mode after flashing.
    pub default: Option<u32>,
}

impl Modes {
    /// Reads nvpmodel.conf: sections `< KIND KEY=VALUE … >` in column 0, and lines of parameters, which are not read.
    ///
    /// # Errors
    /// No mode is in it, or a mode without id or name, or two of one id.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let mut found = Self::default();
        for line in text.lines() {
            let Some(section) = line.strip_prefix('<') else { continue };
            let inner = section.trim_end().strip_suffix('>').ok_or_else(|| Fault::nonsense(line))?;
            let mut words = inner.split_whitespace();
            let kind = words.next();
            let keys: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
            let value = |key: &str| keys.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
            let id = |key: &str| value(key).and_then(|id| id.parse::<u32>().ok());
            match kind {
                Some("POWER_MODEL") => {
                    let (Some(id), Some(name)) = (id("ID"), value("NAME").filter(|name| !name.is_empty())) else {
                        return Err(Fault::nonsense(line));
                    };
                    if found.modes.len() == MODES || found.modes.iter().any(|(known, _)| *known == id) {
                        return Err(Fault::nonsense(line));
                    }
                    found.modes.push((id, name.to_owned()));
                }
                Some("PM_CONFIG") => found.default = id("DEFAULT"),
                _ => {}
            }
        }
        if found.modes.is_empty() { Err(Fault::nonsense(text)) } else { Ok(found) }
    }

    /// The name of a mode.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.modes.iter().find(|(known, _)| *known == id).map(|(_, name)| name.as_str())
    }
}

/// The id in nvpmodel's status file: `pmode:0001`.
///
/// # Errors
/// It is something else.
pub fn parse_status(text: &str) -> Result<u32, Fault> {
    let id = text.trim().strip_prefix("pmode:").or_else(|| text.trim().strip_prefix("pmode="));
    id.and_then(|id| id.trim().parse().ok()).ok_or_else(|| Fault::nonsense(text))
}

/// Name and id that `nvpmodel -q` prints in its first two lines that are no error; others come from older boards and mean nothing here.
///
/// # Errors
/// It is something else.
pub fn parse_query(text: &str) -> Result<(String, u32), Fault> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("NVPM "));
    let name = lines.next().and_then(|line| line.strip_prefix("NV Power Mode:")).map(str::trim).filter(|name| !name.is_empty());
    let id = lines.next().and_then(|line| line.parse().ok());
    name.map(str::to_owned).zip(id).ok_or_else(|| Fault::nonsense(text))
}

/// The name of the mode in force, by the files alone; where they do not name it, its number.
///
/// # Errors
/// No status file, or nonsense in it.
pub fn current(sysfs: &dyn Sysfs) -> Result<String, Fault> {
    let id = parse_status(&sysfs.read(STATUS)?)?;
    let modes = sysfs.read(CONFIG).and_then(|text| Modes::parse(&text));
    Ok(modes.ok().and_then(|modes| modes.name(id).map(str::to_owned)).unwrap_or_else(|| id.to_string()))
}

/// The same, and on this machine the tool is asked where the files do not tell.
///
/// # Errors
/// Neither tells.
pub fn current_or_asked(rooted: &Rooted) -> Result<String, Fault> {
    match current(rooted) {
        Err(fault) if rooted.root().as_os_str() == "/" && rooted.exists(TOOL) => ask().unwrap_or(Err(fault)),
        known => known,
    }
}

/// None where the tool does not answer in time.
fn ask() -> Option<Result<String, Fault>> {
    let mut child = Command::new(TOOL).arg("-q").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let end = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().ok()?;
    Some(parse_query(&String::from_utf8_lossy(&output.stdout)).map(|(name, _)| name))
}

/// The limit on memory bandwidth that the mode sets.
///
/// # Errors
/// [`Fault`].
pub fn emc_cap(sysfs: &dyn Sysfs) -> Result<u64, Fault> {
    number(sysfs, "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap")
}

/// Which family the system-on-chip names.
pub(crate) fn family(sysfs: &dyn Sysfs) -> Result<String, Fault> {
    word(sysfs, "/sys/devices/soc0/family")
}
