//! The GPU's driver and libraries.

use super::finding::{Check, Finding, Problem, warning};
use super::machine::Machine;
use skip_platform::{BoardKind, Driver, Identity, Sysfs};

/// The first driver that runs kernels of CUDA 13.
const DRIVER: u32 = 580;
/// The first Jetson Linux that has CUDA 13 for Orin.
const L4T: u32 = 39;
/// What CUDA is loaded from.
const LIBRARY: &str = "libcuda.so.1";
/// Where it lies on machines whose cache of libraries does not name it.
const FOLDERS: [&str; 7] = [
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
];

/// The driver.
pub static CHECK_DRIVER: Check = Check {
    name: "driver",
    about: "the GPU's kernel driver is loaded, and new enough for CUDA 13: 580, on a Jetson with nvgpu L4T 39",
    unless: Some("there is no NVIDIA GPU"),
    problems: &[&NOT_LOADED, &TOO_OLD],
};
static NOT_LOADED: Problem = warning(
    "there is a GPU and no driver; the CPU serves",
    "install NVIDIA's driver, or if it is installed: `sudo modprobe nvidia nvidia-uvm` (Thor, servers), `sudo modprobe nvgpu` (Orin)",
);
static TOO_OLD: Problem =
    warning("it is older; the CPU serves", "install driver 580 or newer; a Jetson gets it with JetPack 7 (Thor) or 7.2 (Orin)");

/// CUDA's own library.
pub static CHECK_LIBRARY: Check = Check {
    name: "cuda-library",
    about: "libcuda.so.1 is where programs find it",
    unless: Some("no driver is loaded"),
    problems: &[&NO_LIBRARY],
};
static NO_LIBRARY: Problem = warning(
    "it is nowhere; the CPU serves",
    "`sudo apt install nvidia-l4t-cuda` on a Jetson, `sudo apt install libcuda1` elsewhere, then `sudo ldconfig`",
);

/// NVIDIA's management library.
pub static CHECK_NVML: Check = Check {
    name: "nvml",
    about: "NVML names the GPUs; the daemon does without, their clocks and temperatures are not shown then",
    unless: Some("no driver is loaded, it is Orin's, which has none, or another root is looked at"),
    problems: &[&NO_NVML],
};
static NO_NVML: Problem =
    warning("it is not there or finds none", "`nvidia-smi` says why; the library is libnvidia-ml.so.1, of the driver's version");

/// Looks at the driver.
pub fn driver(machine: &Machine) -> Finding {
    let Identity { kind, driver, l4t, .. } = &machine.identity;
    let about = |driver: &str, version: &Option<String>| format!("{driver} {}", version.as_deref().unwrap_or("of no version"));
    let old = |finding: Finding| finding.raised(machine.wants_cuda());
    let judged = |name: &str, version: &Option<String>| match major(version.as_deref()) {
        Some(major) if major < DRIVER => old(CHECK_DRIVER.problem(&TOO_OLD, about(name, version))),
        _ => CHECK_DRIVER.ok(about(name, version)),
    };
    match driver {
        Driver::OpenRm { version } => judged("NVIDIA's open driver", version),
        Driver::Proprietary { version } => judged("NVIDIA's driver", version),
        Driver::Nvgpu => match major(l4t.as_deref()) {
            Some(major) if major < L4T => old(CHECK_DRIVER.problem(&TOO_OLD, about("nvgpu of L4T", l4t))),
            _ => CHECK_DRIVER.ok(about("nvgpu of L4T", l4t)),
        },
        _ if *kind != BoardKind::Generic || has_card(machine.files()) => {
            CHECK_DRIVER.problem(&NOT_LOADED, "a GPU, and no driver").raised(machine.wants_cuda())
        }
        _ => CHECK_DRIVER.inapplicable("no NVIDIA GPU"),
    }
}

/// `595.78` is 595.
fn major(version: Option<&str>) -> Option<u32> {
    version?.split('.').next()?.parse().ok()
}

/// Whether PCI shows a display controller of NVIDIA's.
fn has_card(files: &dyn Sysfs) -> bool {
    const PCI: &str = "/sys/bus/pci/devices";
    let says = |device: &str, file: &str, beginning: &str| {
        files.read(&format!("{PCI}/{device}/{file}")).is_ok_and(|text| text.starts_with(beginning))
    };
    files.list(PCI).unwrap_or_default().iter().any(|device| says(device, "vendor", "0x10de") && says(device, "class", "0x03"))
}

/// Looks for CUDA's library.
pub fn library(machine: &Machine) -> Finding {
    if machine.identity.driver == Driver::None {
        return CHECK_LIBRARY.inapplicable("no driver");
    }
    // The cache is binary: names in it are text between zeros.
    let cache = std::fs::read(machine.place("/etc/ld.so.cache")).unwrap_or_default();
    if cache.windows(LIBRARY.len()).any(|bytes| bytes == LIBRARY.as_bytes()) {
        return CHECK_LIBRARY.ok(format!("{LIBRARY} is in the loader's cache"));
    }
    match FOLDERS.iter().find(|folder| machine.files().exists(&format!("{folder}/{LIBRARY}"))) {
        Some(folder) => CHECK_LIBRARY.ok(format!("{folder}/{LIBRARY}")),
        None => CHECK_LIBRARY.problem(&NO_LIBRARY, format!("no {LIBRARY}")).raised(machine.wants_cuda()),
    }
}

/// Looks at what NVML said.
pub fn nvml(machine: &Machine) -> Finding {
    match (&machine.identity.driver, &machine.gpus) {
        (Driver::None, _) => CHECK_NVML.inapplicable("no driver"),
        (Driver::Nvgpu, _) => CHECK_NVML.inapplicable("Orin's driver has none"),
        (_, Err(_)) if !machine.is_here() => CHECK_NVML.inapplicable("another root is looked at"),
        (_, Ok(gpus)) if !gpus.is_empty() => {
            let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_deref().unwrap_or("a GPU without a name")).collect();
            CHECK_NVML.ok(names.join(", "))
        }
        (_, Ok(_)) => CHECK_NVML.problem(&NO_NVML, "it names no GPU"),
        (_, Err(why)) => CHECK_NVML.problem(&NO_NVML, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::testing::{ORIN, THOR, Tree, X86};
    use skip_platform::nvml::Gpu;

    #[test]
    fn a_driver_of_before_cuda_13_is_told_from_one_that_runs_it() {
        let of = |manifest: &str| driver(&Tree::of(manifest).machine());
        let card = |vendor: &str, class: &str| {
            let tree = Tree::empty();
            tree.set("/sys/bus/pci/devices/0000:01:00.0/vendor", vendor);
            tree.set("/sys/bus/pci/devices/0000:01:00.0/class", class);
            driver(&tree.machine())
        };
        let stripped: String = THOR.lines().filter(|line| !line.starts_with("/proc/driver")).map(|line| format!("{line}\n")).collect();
        let found = [
            of(THOR),
            of(X86),
            of(ORIN),
            of(&stripped),
            card("0x10de\n", "0x030200\n"),
            card("0x10de\n", "0x040300\n"),
            card("0x8086\n", "0x030000\n"),
        ];
        assert_covers(&CHECK_DRIVER, &found);
        let states = found.map(|finding| finding.state);
        use State::{NotApplicable, Ok, Warning};
        assert_eq!(states, [Ok, Warning, Warning, Warning, Warning, NotApplicable, NotApplicable]);
        assert!(driver(&Tree::of(X86).machine()).seen.contains("550.54.14"));
    }

    #[test]
    fn an_old_driver_is_a_failure_where_cuda_was_asked_for() {
        let tree = Tree::of(X86);
        tree.set("/etc/skipd/skipd.toml", "backend = \"cuda\"\n");
        assert_eq!(driver(&tree.machine()).state, State::Failure);
        assert_eq!(library(&tree.machine()).state, State::Failure);
    }

    #[test]
    fn the_library_is_found_in_the_loader_s_cache_and_beside() {
        let (cached, beside) = (Tree::of(THOR), Tree::of(THOR));
        std::fs::write(cached.path("/etc/ld.so.cache"), b"glibc-ld.so.cache1.1\0\xff\0libcuda.so.1\0/x/libcuda.so.1\0").unwrap();
        beside.set("/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1", "");
        let found =
            [library(&cached.machine()), library(&beside.machine()), library(&Tree::of(THOR).machine()), library(&Tree::empty().machine())];
        assert_covers(&CHECK_LIBRARY, &found);
        assert_eq!(found.map(|finding| finding.state), [State::Ok, State::Ok, State::Warning, State::NotApplicable]);
    }

    #[test]
    fn nvml_that_names_no_gpu_is_told() {
        let tree = Tree::of(THOR);
        let with = |gpus| {
            let mut machine = tree.machine();
            machine.gpus = gpus;
            nvml(&machine)
        };
        let gpu = Gpu { name: Some("NVIDIA Thor".into()), ..Gpu::default() };
        let found = [with(Ok(vec![gpu])), with(Ok(Vec::new())), with(Err("not asked".into())), nvml(&Tree::of(ORIN).machine())];
        assert_covers(&CHECK_NVML, &found);
        assert_eq!(found[0].seen, "NVIDIA Thor");
        assert_eq!(found[2].state, State::NotApplicable);
    }
}
