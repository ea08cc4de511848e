//! The TOML of a profile: every key is known, every number within its range.

use super::{GpuDomain, Processors, Profile, Target};
use crate::board::BoardKind;
use serde::Deserialize;
use std::ops::RangeInclusive;

/// Longest file, bytes.
const LONGEST: usize = 16 << 10;
/// Most GPU domains, and names of one.
const DOMAINS: usize = 8;
/// 1 MHz to 100 GHz: a value outside is in another unit.
const HZ: RangeInclusive<u64> = 1_000_000..=100_000_000_000;
/// The same in kHz.
const KHZ: RangeInclusive<u64> = 1_000..=100_000_000;
/// What silicon stands and cold is not, °C.
const CELSIUS: RangeInclusive<f64> = 20.0..=125.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    about: String,
    board: Option<Boards>,
    nvpmodel: Option<String>,
    #[serde(default)]
    gpu: Vec<Gpu>,
    emc: Option<Step>,
    #[serde(default)]
    cpu: Cpu,
    fan: Option<u8>,
    tolerated_celsius: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Boards {
    Thor,
    Orin,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    nodes: Vec<String>,
    target: Step,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cpu {
    governor: Option<String>,
    min: Option<Step>,
}

/// `"max"`, or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    Number(u64),
    Word(String),
}

impl Step {
    fn check(self, key: &str, range: RangeInclusive<u64>) -> Result<Target, String> {
        match self {
            Step::Word(word) if word == "max" => Ok(Target::Max),
            Step::Word(_) => Err(format!("{key} must be \"max\" or a number")),
            Step::Number(number) if range.contains(&number) => Ok(Target::AtMost(number)),
            Step::Number(_) => Err(format!("{key} must be between {} and {}", range.start(), range.end())),
        }
    }
}

pub(super) fn parse(name: &str, text: &str) -> Result<Profile, String> {
    if text.len() > LONGEST {
        return Err(format!("is longer than {LONGEST} bytes"));
    }
    let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    if file.gpu.len() > DOMAINS {
        return Err(format!("gpu has more than {DOMAINS} domains"));
    }
    let gpu = file.gpu.into_iter().map(domain).collect::<Result<Vec<_>, _>>()?;
    for (at, domain) in gpu.iter().enumerate() {
        if gpu[..at].iter().any(|earlier| earlier.nodes.iter().any(|node| domain.nodes.contains(node))) {
            return Err("gpu.nodes names a node twice".into());
        }
    }
    let governor = file.cpu.governor;
    if governor.as_deref().is_some_and(|governor| !is_word(governor)) {
        return Err("cpu.governor must be letters, digits and _".into());
    }
    if file.tolerated_celsius.is_some_and(|celsius| !CELSIUS.contains(&celsius)) {
        return Err(format!("tolerated-celsius must be between {} and {}", CELSIUS.start(), CELSIUS.end()));
    }
    if file.nvpmodel.as_deref().is_some_and(|mode| mode.is_empty() || mode.len() > 64 || mode.chars().any(char::is_control)) {
        return Err("nvpmodel must be the name of a mode".into());
    }
    if file.about.is_empty() || file.about.len() > 200 || file.about.chars().any(char::is_control) {
        return Err("about must be one line of at most 200 bytes".into());
    }
    Ok(Profile {
        name: name.to_owned(),
        about: file.about,
        board: file.board.map(|board| match board {
            Boards::Thor => BoardKind::Thor,
            Boards::Orin => BoardKind::Orin,
        }),
        mode: file.nvpmodel,
        gpu,
        emc: file.emc.map(|step| step.check("emc", HZ)).transpose()?,
        cpu: Processors { governor, min: file.cpu.min.map(|step| step.check("cpu.min", KHZ)).transpose()? },
        fan: file.fan,
        tolerated: file.tolerated_celsius,
    })
}

fn domain(gpu: Gpu) -> Result<GpuDomain, String> {
    if gpu.nodes.is_empty() || gpu.nodes.len() > DOMAINS {
        return Err(format!("gpu.nodes needs 1 to {DOMAINS} names"));
    }
    let is_node = |node: &String| {
        node.len() <= 64 && !node.starts_with('.') && node.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    if !gpu.nodes.iter().all(is_node) {
        return Err("gpu.nodes must be names of devfreq devices".into());
    }
    Ok(GpuDomain { nodes: gpu.nodes, target: gpu.target.check("gpu.target", HZ)? })
}

fn is_word(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
