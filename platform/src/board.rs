//! Which board this is.

use crate::fault::Fault;
use crate::nvpmodel;
use crate::sysfs::{Rooted, Sysfs, word};
use serde::Serialize;
use std::path::PathBuf;

/// A board under a root.
#[derive(Clone, Debug)]
pub struct Board {
    rooted: Rooted,
}

/// The families that profiles are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BoardKind {
    /// Jetson AGX Thor.
    Thor,
    /// Jetson Orin.
    Orin,
    /// Another Tegra.
    Tegra,
    /// Anything else.
    Generic,
}

impl BoardKind {
    /// The word in profiles and reports.
    pub fn name(self) -> &'static str {
        match self {
            BoardKind::Thor => "thor",
            BoardKind::Orin => "orin",
            BoardKind::Tegra => "tegra",
            BoardKind::Generic => "generic",
        }
    }
}

/// Thor's modules, by the number of their board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Module {
    /// p3834-0008.
    T5000,
    /// p3834-0000.
    T4000,
}

/// What drives the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "driver")]
#[non_exhaustive]
pub enum Driver {
    /// NVIDIA's open kernel modules.
    OpenRm {
        /// `580.00`.
        version: Option<String>,
    },
    /// Its closed ones.
    Proprietary {
        /// `550.54.14`.
        version: Option<String>,
    },
    /// Tegra's own, before Thor.
    Nvgpu,
    /// None.
    None,
}

/// What is known of a board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Its family.
    pub kind: BoardKind,
    /// Which module, on Thor where it tells.
    pub module: Option<Module>,
    /// As its firmware names it.
    pub model: Option<String>,
    /// Jetson Linux, as `38.2.0`.
    pub l4t: Option<String>,
    /// What drives the GPU.
    pub driver: Driver,
}

impl Board {
    /// The board whose files lie under `root`; `/` is this machine.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { rooted: Rooted::new(root) }
    }

    /// Its files.
    pub fn sysfs(&self) -> &Rooted {
        &self.rooted
    }

    /// What it is.
    pub fn identify(&self) -> Identity {
        identify(&self.rooted)
    }

    /// The name of the power mode in force.
    ///
    /// # Errors
    /// Nobody tells.
    pub fn mode(&self) -> Result<String, Fault> {
        nvpmodel::current_or_asked(&self.rooted)
    }
}

fn identify(sysfs: &dyn Sysfs) -> Identity {
    let model = ["/proc/device-tree/model", "/sys/class/dmi/id/product_name"].iter().find_map(|path| word(sysfs, path).ok());
    let spec = sysfs.read("/etc/nv_boot_control.conf").ok().and_then(|text| spec(&text));
    let said = |what: &str| model.as_deref().is_some_and(|model| model.contains(what));
    let part = |what: &str| spec.as_deref().is_some_and(|spec| spec.split('-').next() == Some(what));
    let kind = if part("3834") || said("Thor") {
        BoardKind::Thor
    } else if part("3701") || part("3767") || said("Orin") {
        BoardKind::Orin
    } else if nvpmodel::family(sysfs).is_ok_and(|family| family == "Tegra") {
        BoardKind::Tegra
    } else {
        BoardKind::Generic
    };
    let module = spec.as_deref().filter(|_| kind == BoardKind::Thor).and_then(module);
    let l4t = sysfs.read("/etc/nv_tegra_release").ok().and_then(|text| release(&text));
    Identity { kind, module, model, l4t, driver: driver(sysfs) }
}

/// TNSPEC: board, fab, SKU and more, joined by dashes.
fn spec(text: &str) -> Option<String> {
    text.lines().find_map(|line| Some(line.strip_prefix("TNSPEC")?.trim().to_owned())).filter(|spec| !spec.is_empty())
}

/// The SKU has four digits and comes behind the board's number, with the fab between or without.
fn module(spec: &str) -> Option<Module> {
    spec.split('-').skip(1).take(2).find_map(|part| match part {
        "0008" => Some(Module::T5000),
        "0000" => Some(Module::T4000),
        _ => None,
    })
}

/// `# R38 (release), REVISION: 2.0, …` is 38.2.0.
fn release(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let major: u32 = line.strip_prefix("# R")?.split(' ').next()?.parse().ok()?;
    let revision = line.split("REVISION:").nth(1)?.split(',').next()?.trim();
    let plain = !revision.is_empty() && revision.len() <= 16 && revision.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    plain.then(|| format!("{major}.{revision}"))
}

fn driver(sysfs: &dyn Sysfs) -> Driver {
    if let Ok(text) = sysfs.read("/proc/driver/nvidia/version") {
        let line = text.lines().next().unwrap_or_default();
        let is_version = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let version = line.split_whitespace().find(is_version).map(str::to_owned);
        return if line.contains("Open Kernel Module") { Driver::OpenRm { version } } else { Driver::Proprietary { version } };
    }
    if sysfs.exists("/sys/module/nvgpu") || sysfs.exists("/dev/nvgpu") { Driver::Nvgpu } else { Driver::None }
}
