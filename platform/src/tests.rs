//! Boards, clocks, sensors and the watch on trees.

use crate::testing::Tree;
use crate::*;

const GPC: &str = "/sys/class/devfreq/gpu-gpc-0";

#[test]
fn each_board_is_known_by_its_files() {
    for (name, kind, module, l4t, driver) in [
        ("thor-r38", BoardKind::Thor, Some(Module::T5000), Some("38.2.0"), Driver::OpenRm { version: Some("580.00".into()) }),
        ("thor-r39", BoardKind::Thor, Some(Module::T5000), Some("39.2.1"), Driver::OpenRm { version: Some("595.78".into()) }),
        ("orin", BoardKind::Orin, None, Some("36.4.3"), Driver::Nvgpu),
        ("x86", BoardKind::Generic, None, None, Driver::Proprietary { version: Some("550.54.14".into()) }),
        ("nothing", BoardKind::Generic, None, None, Driver::None),
    ] {
        let found = Board::at(Tree::new(name).root()).identify();
        let found = (found.kind, found.module, found.l4t.as_deref().map(str::to_owned), found.driver);
        assert_eq!(found, (kind, module, l4t.map(str::to_owned), driver), "{name}");
    }
    let small = Tree::new("thor-r38");
    small.set("/etc/nv_boot_control.conf", "TNSPEC 3834-0000-x\n");
    assert_eq!(Board::at(small.root()).identify().module, Some(Module::T4000));
}

#[test]
fn files_that_identify_nothing_are_passed_over() {
    for text in ["", "\0\0", "# Rx (release), REVISION: 2.0,", "# R38 (release)", "# R38 (release), REVISION: $(x),", &"a".repeat(1 << 20)]
    {
        let tree = Tree::new("thor-r38");
        for path in ["/proc/device-tree/model", "/etc/nv_tegra_release", "/etc/nv_boot_control.conf", "/proc/driver/nvidia/version"] {
            tree.set(path, text);
        }
        let found = Board::at(tree.root()).identify();
        assert_eq!((found.kind, found.l4t), (BoardKind::Tegra, None), "{:?}", text.get(..20));
    }
}

#[test]
fn modes_are_named_by_the_configuration_and_found_in_the_status_file() {
    let tree = Tree::new("thor-r39");
    assert_eq!(Board::at(tree.root()).mode().unwrap(), "120W");
    let modes = nvpmodel::Modes::parse(&tree.get("/etc/nvpmodel/nvpmodel_p3834_0008.conf")).unwrap();
    assert_eq!((modes.modes.len(), modes.default, modes.name(3)), (4, Some(1), Some("70W")));
    tree.set("/var/lib/nvpmodel/status", "pmode:0009\n");
    assert_eq!(Board::at(tree.root()).mode().unwrap(), "9", "a mode without a name is its number");
    tree.set("/var/lib/nvpmodel/status", "fast");
    assert!(matches!(Board::at(tree.root()).mode(), Err(Fault::Nonsense { .. })));
    for wrong in [
        "",
        "< POWER_MODEL ID=x NAME=a >",
        "< POWER_MODEL ID=1 >",
        "< POWER_MODEL ID=1 NAME=a",
        "< POWER_MODEL ID=1 NAME=a >\n< POWER_MODEL ID=1 NAME=b >",
    ] {
        assert!(nvpmodel::Modes::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn of_what_nvpmodel_prints_the_first_two_lines_count() {
    let old = "NVPM ERROR: Error opening /sys/kernel/nvpmodel_emc_cap/emc_iso_cap: 13\nNV Power Mode: 120W\n1\nNVPM ERROR: bad input!\n";
    assert_eq!(nvpmodel::parse_query(old), Ok(("120W".into(), 1)));
    for wrong in ["", "NV Power Mode:\n1", "NV Power Mode: MAXN\n", "1\nNV Power Mode: MAXN"] {
        assert!(nvpmodel::parse_query(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn clocks_and_sensors_are_read_and_what_is_off_is_none() {
    let tree = Tree::new("thor-r38");
    let files = tree.files();
    let gpus = gpu_devfreqs(&files);
    assert_eq!((gpus.len(), &gpus[0].max, gpus[0].available.as_ref().unwrap().len()), (2, &Ok(1_575_000_000), 4));
    assert_eq!(gpus[1].available, Err(Fault::Absent));
    assert_eq!(policies(&files)[0].current, Ok(972_000), "the hardware's word, not the driver's claim of 2601000");
    let zones = zones(&files);
    assert_eq!((zones[0].kind.as_str(), zones[0].celsius, zones[0].trip), ("cpu", Some(38.8), Some(99.0)));
    assert_eq!(zones[1].celsius, None, "-256 °C is a zone that is off");
    assert_eq!(counters(&files).len(), 3);
    assert!(fan(&files).unwrap().ends_with("hwmon4/pwm1"));
    assert_eq!(nvpmodel::emc_cap(&files), Ok(0));
    let memory = memory(&Tree::new("orin").files());
    assert_eq!((memory.available, memory.zram, memory.swap_total), (Some(50_000_000 << 10), true, Some(31_000_000 << 10)));
    assert_eq!(crate::memory(&Tree::new("nothing").files()), Memory::default());
}

#[test]
fn the_watch_tells_throttled_from_uncontrolled() {
    let gpc = |file: &str| format!("{GPC}/{file}");
    let (pinned, throttled, uncontrolled) = (ClockState::Pinned, ClockState::Throttled, ClockState::Uncontrolled);
    for (path, text, state, said) in [
        (gpc("cur_freq"), "314000000", throttled, "runs at 314000000"),
        (gpc("cur_freq"), "0", pinned, ""),
        (gpc("cur_freq"), "what", pinned, ""),
        (gpc("min_freq"), "315000000", uncontrolled, "changed by somebody else"),
        (gpc("max_freq"), "945000000", uncontrolled, "changed by somebody else"),
        ("/sys/devices/system/cpu/cpufreq/policy0/cpuinfo_cur_freq".into(), "242000", throttled, "runs at 242000"),
        ("/sys/class/hwmon/hwmon3/oc3_event_cnt".into(), "1", throttled, "rose by 1"),
        ("/sys/class/thermal/thermal_zone2/temp".into(), "99500", throttled, "99.5"),
        ("/var/lib/nvpmodel/status".into(), "pmode:0002", uncontrolled, "90W"),
    ] {
        let tree = Tree::new("thor-r38");
        let profile = Profiles::new(&tree.files()).load("thor-maxn").unwrap();
        let file = StateFile::of_root(tree.root());
        assert_eq!(watch(&tree.files(), &file).state, ClockState::Unpinned);
        apply(&Board::at(tree.root()), &profile, &file).unwrap();
        for (clock, value) in [
            (gpc("cur_freq"), "1575000000"),
            ("/sys/class/devfreq/gpu-nvd-0/cur_freq".into(), "1692000000"),
            ("/sys/class/devfreq/bwmgr/cur_freq".into(), "4266000000"),
        ] {
            tree.set(&clock, value);
        }
        for cpu in [0, 1] {
            tree.set(&format!("/sys/devices/system/cpu/cpufreq/policy{cpu}/cpuinfo_cur_freq"), "2601000");
        }
        assert_eq!(watch(&tree.files(), &file).state, pinned);
        assert!(watch(&tree.files(), &file).pins_gpu());
        tree.set(&path, text);
        let found = watch(&tree.files(), &file);
        assert_eq!(found.state, state, "{path} {text}: {found:?}");
        assert!(state == pinned || found.reasons.iter().any(|reason| reason.contains(said)), "{found:?}");
    }
}

#[test]
fn gpus_without_devfreq_may_answer_nothing() {
    struct Fake;
    impl nvml::Gpus for Fake {
        fn read(&self) -> Result<Vec<nvml::Gpu>, Fault> {
            Ok(vec![nvml::Gpu { name: Some("Orin (nvgpu)".into()), ..nvml::Gpu::default() }])
        }
    }
    let gpus: Box<dyn nvml::Gpus> = Box::new(Fake);
    assert_eq!(gpus.read().unwrap()[0].mhz, None);
}
