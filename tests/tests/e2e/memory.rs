//! Memory that is not there: refused with the numbers before anything is loaded, whether the system lacks it or a control group forbids it.

use serde_json::Value;
use skip_tests::process::checkpoint;
use skip_tests::{Daemon, Options};
use std::fs;
use std::path::{Path, PathBuf};

/// Runs skipd and prints what it had resident at most, in KiB, and how it ended.
const MEASURED: &str = "import resource, subprocess, sys\ncode = subprocess.call(sys.argv[1:])\n\
                        print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr, flush=True)\nsys.exit(code)";

/// A system with so much memory available.
fn system(available_kib: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("proc")).unwrap();
    fs::write(folder.path().join("proc/meminfo"), format!("MemTotal: 8000000 kB\nMemAvailable: {available_kib} kB\n")).unwrap();
    folder
}

fn on(system: &Path) -> Options {
    Options::default().flags(&["--backend", "cpu", "--memory-root", system.to_str().unwrap()])
}

/// The number before or behind a word of the log.
fn number(log: &str, before: &str) -> u64 {
    let at = log.find(before).unwrap_or_else(|| panic!("{before:?} is not in\n{log}")) + before.len();
    log[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[test]
fn a_model_that_the_memory_does_not_hold_is_refused_with_the_numbers_before_it_is_loaded() {
    let weights = fs::metadata(checkpoint().unwrap().join("model.safetensors")).unwrap().len() >> 10;
    let small = system(300 << 10);
    let wrapper = ["python3", "-c", MEASURED].map(str::to_owned).to_vec();
    let (code, log) = Daemon::refused(Options { wrapper, ..on(small.path()) }, "none").unwrap();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("MiB are needed") && log.contains("300 MiB are free of the system's memory"), "{log}");
    assert!(number(&log, "(weights ") >= weights >> 10, "{log}");
    for what in ["KV pages", "activations", "workspaces", "reserve"] {
        assert!(number(&log, &format!(", {what} ")) > 0, "{log}");
    }
    let peak = number(&log, "peak ");
    assert!(peak < weights / 2, "{peak} KiB were resident, and the weights alone are {weights}");
}

#[test]
fn the_cache_takes_what_is_left_beside_the_model() {
    let pages = |available_mib: u64, flags: &[&str]| {
        let system = system(available_mib << 10);
        let daemon = Daemon::start(on(system.path()).flags(flags)).unwrap();
        let status: Value = daemon.http().get("/skipd/v1/status").unwrap().expect(200).unwrap();
        let memory = &status["memory"];
        let (total, free) = (memory["total"].as_u64().unwrap(), memory["free_before"].as_u64().unwrap());
        assert_eq!((free, memory["source"].as_str()), (available_mib << 20, Some("of the system's memory")));
        assert!(total <= free, "{memory}");
        (status["cache"]["pages"].as_u64().unwrap(), memory["counted"].clone(), free - total)
    };
    let (all, counted, _) = pages(8000, &[]);
    let page = counted["KV pages"].as_u64().unwrap() / all;
    let others: u64 = counted.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum::<u64>() - all * page;
    // As much as all but the cache takes, and room for 100 pages beside.
    let tight = others.div_ceil(1 << 20) + (100 * page).div_ceil(1 << 20);
    let (some, _, left) = pages(tight, &[]);
    assert!((90..=100).contains(&some), "{some} pages of {all}");
    assert!(left < (100 * page) / 8 + (4 << 20), "{left} bytes are left of the room for 100 pages of {page}");
}

/// A control group with a memory limit, of whichever version the machine mounts; removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: u64) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let point = |kind: &str, option: &str| {
            let of_kind = |line: &&str| line.contains(&format!(" - {kind} ")) && line.ends_with(option);
            mounts.lines().find(of_kind).and_then(|line| line.split(' ').nth(4)).map(PathBuf::from)
        };
        let (parent, file) = match point("cgroup", "memory") {
            Some(point) => (point, "memory.limit_in_bytes"),
            None => (point("cgroup2", "").ok_or("no hierarchy of control groups is mounted")?, "memory.max"),
        };
        let folder = parent.join(format!("skipd-test-{name}-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self(folder);
        let path = group.0.join(file);
        fs::write(&path, limit.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(group)
    }

    /// Starts what follows in the group.
    fn wrapper(&self) -> Vec<String> {
        let enter = format!("echo $$ > '{}/cgroup.procs' && exec \"$0\" \"$@\"", self.0.display());
        vec!["sh".into(), "-c".into(), enter]
    }

    /// Processes that the kernel killed for memory.
    fn killed(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.0.join(name)).unwrap_or_default();
        let text = read("memory.oom_control") + &read("memory.events");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.unwrap_or_else(|| panic!("no count of kills in {}", self.0.display())).trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes may still be on their way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// A group of this limit; None where the machine cannot have one and is allowed not to.
fn group(name: &str, mib: u64) -> Option<Group> {
    match Group::new(name, mib << 20) {
        Ok(group) => Some(group),
        Err(reason) if std::env::var_os("SKIPD_NO_CGROUPS").is_some() => {
            println!("not tested, as SKIPD_NO_CGROUPS says: {reason}");
            None
        }
        Err(reason) => {
            panic!("control groups with a memory limit cannot be made here (root can; SKIPD_NO_CGROUPS=1 leaves this out): {reason}")
        }
    }
}

#[test]
fn a_control_group_that_is_too_small_refuses_the_model_and_nothing_is_killed() {
    let Some(small) = group("small", 320) else { return };
    let options = Options { wrapper: small.wrapper(), ..Options::default() };
    let (code, log) = Daemon::refused(options.flags(&["--backend", "cpu"]), "none").unwrap();
    assert_eq!(code, Some(3), "{log}");
    let name = small.0.file_name().unwrap().to_str().unwrap();
    assert!(log.contains("MiB are needed (weights ") && log.contains(&format!("under the memory limit of control group /{name}")), "{log}");
    assert_eq!(small.killed(), 0);
}

#[test]
fn a_model_that_fits_its_control_group_is_served_there_and_its_cache_stays_within() {
    let Some(roomy) = group("roomy", 640) else { return };
    let options = Options { wrapper: roomy.wrapper(), ..Options::default() };
    let daemon = Daemon::start(options.flags(&["--backend", "cpu"])).unwrap();
    let http = daemon.http();
    let status: Value = http.get("/skipd/v1/status").unwrap().expect(200).unwrap();
    assert!(status["memory"]["source"].as_str().unwrap().contains("control group"), "{status}");
    // More tokens than the cache has, so that every page of it is written.
    let tokens = status["cache"]["pages"].as_u64().unwrap() as usize * 128;
    for round in 0..5 {
        let prompt = format!("{round} {}", crate::prose(tokens * 2 / 5));
        http.post("/v1/completions", crate::completion(&prompt, 1).to_string()).unwrap().expect(200).unwrap();
    }
    assert_eq!(roomy.killed(), 0);
}
