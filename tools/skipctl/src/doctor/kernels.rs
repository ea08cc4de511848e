//! The CUDA kernels: whether there are some, and what the daemon found of them.

use super::finding::{Check, Finding, Problem, warning};
use super::machine::Machine;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use skip_client::protocol::Qualification;
use skip_platform::{Driver, Sysfs};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Where the package puts them.
const FOLDER: &str = "/usr/lib/skipd/cubins";
/// Largest record that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Whether they are installed.
pub static CHECK_KERNELS: Check = Check {
    name: "kernels",
    about: "CUDA kernels are in /usr/lib/skipd/cubins",
    unless: Some("no driver is loaded, or the package is not installed"),
    problems: &[&NONE],
};
static NONE: Problem = warning("there are none; the CPU serves", "`tools/build-kernels`, then `tools/build-deb` and install that package");

/// What was found of them.
pub static CHECK_QUALIFIED: Check = Check {
    name: "qualification",
    about: "the daemon has tried the kernels of the device that it used last, and refused none",
    unless: Some("no driver is loaded, or the caller may not read the state folder"),
    problems: &[&UNTRIED, &REFUSED, &UNREADABLE],
};
static UNTRIED: Problem = warning("none were tried yet", "start the daemon once with the GPU, or `sudo skipctl qualify`");
static REFUSED: Problem = warning(
    "it refused some",
    "`sudo skipctl qualify` tries them again; what is refused again is wrong on this device: the driver, the kernels' build (`tools/build-kernels --check`) or the GPU",
);
static UNREADABLE: Problem = warning("the record is damaged; the next start tries all again", "`sudo skipctl qualify` writes a new one");

/// As much as the record's form tells.
#[derive(Deserialize)]
struct Record {
    devices: Vec<Qualification>,
}

/// Looks for kernels.
pub fn kernels(machine: &Machine) -> Finding {
    if machine.identity.driver == Driver::None {
        return CHECK_KERNELS.inapplicable("no driver");
    }
    if !machine.installed {
        return CHECK_KERNELS.inapplicable("the package is not installed; kernels then lie beside the program, or where SKIPD_CUBINS says");
    }
    let files = machine.files().list(FOLDER).unwrap_or_default();
    match files.iter().filter(|name| name.ends_with(".cubin")).count() {
        0 => CHECK_KERNELS.problem(&NONE, format!("none in {FOLDER}")).raised(machine.wants_cuda()),
        n => CHECK_KERNELS.ok(format!("{n} files in {FOLDER}")),
    }
}

/// A regular file's bytes, no more than a record may have: the folder is the daemon's user's, and the caller may be root.
fn read_record(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the record.
pub fn qualified(machine: &Machine) -> Finding {
    if machine.identity.driver == Driver::None {
        return CHECK_QUALIFIED.inapplicable("no driver");
    }
    let path = machine.config.state().join("qualification.json");
    let bytes = match read_record(&machine.place(&path)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return CHECK_QUALIFIED.problem(&UNTRIED, format!("no {}", path.display())),
        Err(error) => return CHECK_QUALIFIED.inapplicable(format!("{}: {error}; ask again with sudo", path.display())),
    };
    let record = serde_json::from_slice::<Record>(&bytes);
    let Ok(record) = record else { return CHECK_QUALIFIED.problem(&UNREADABLE, format!("{} is no record", path.display())) };
    let Some(latest) = record.devices.last() else { return CHECK_QUALIFIED.problem(&UNTRIED, "the record is empty") };
    let refused: Vec<String> = latest.refused().map(|kernel| format!("{} ({})", kernel.kernel, kernel.verdict.name())).collect();
    let device = format!("{}, CUDA {}", latest.device, latest.driver);
    if refused.is_empty() {
        CHECK_QUALIFIED.ok(format!("{} kernels on {device}", latest.kernels.len()))
    } else {
        CHECK_QUALIFIED.problem(&REFUSED, format!("{} of {} on {device}: {}", refused.len(), latest.kernels.len(), refused.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::testing::{THOR, Tree};

    const RECORD: &str = "/var/lib/skipd/qualification.json";

    #[test]
    fn a_package_without_kernels_is_told() {
        let (with, without) = (Tree::of(THOR), Tree::of(THOR));
        with.install();
        with.set("/usr/lib/skipd/cubins/k.sm_110a.cubin", "");
        without.install();
        without.set("/usr/lib/skipd/cubins/manifest.json", "");
        let found =
            [kernels(&with.machine()), kernels(&without.machine()), kernels(&Tree::of(THOR).machine()), kernels(&Tree::empty().machine())];
        assert_covers(&CHECK_KERNELS, &found);
        assert_eq!(found.map(|finding| finding.state), [State::Ok, State::Warning, State::NotApplicable, State::NotApplicable]);
    }

    #[test]
    fn what_the_daemon_found_of_the_latest_device_counts() {
        let device = |name: &str, verdict: &str| {
            format!(
                r#"{{"device":"{name}","uuid":"1","capability":"11.0","driver":"13.2","kernel_files":"ab","kernels":[{{"kernel":"gemv","verdict":"{verdict}","micros":null,"reason":null}}]}}"#
            )
        };
        let of = |devices: &[String]| {
            let tree = Tree::of(THOR);
            tree.set(RECORD, &format!(r#"{{"version":2,"devices":[{}]}}"#, devices.join(",")));
            qualified(&tree.machine())
        };
        let damaged = Tree::of(THOR);
        damaged.set(RECORD, "{\"version\":2");
        let found = [
            of(&[device("old", "hung"), device("Thor", "right")]),
            of(&[device("old", "right"), device("Thor", "hung")]),
            of(&[]),
            qualified(&damaged.machine()),
            qualified(&Tree::of(THOR).machine()),
            qualified(&Tree::empty().machine()),
        ];
        assert_covers(&CHECK_QUALIFIED, &found);
        assert_eq!(found[1].seen, "1 of 1 on Thor, CUDA 13.2: gemv (hung)");
        assert_eq!(found[0].seen, "1 kernels on Thor, CUDA 13.2");
    }
}
