//! A publisher, bundles, and a device's state folder.

use serde_json::{Value, json};
use skip_tables::{Digest, Geometry, Phase};
use skip_update::make::{Contents, Publisher, Tables, pack};
use skip_updates::Files;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use tempfile::TempDir;

/// When bundles are made.
pub const CREATED: u64 = 1_793_600_000;
/// When they expire: a year later.
pub const EXPIRES: u64 = CREATED + 365 * 86_400;
/// The year 2100.
pub const FAR: u64 = 4_102_444_800;

/// Runs a future to its end.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A publisher; keys are made once.
pub static PUBLISHER: LazyLock<Publisher> = LazyLock::new(|| wait(Publisher::new(FAR)).unwrap());

/// The installed checkpoint.
pub fn checkpoint() -> Digest {
    Digest::of(b"weights")
}

/// Its tables in a version.
pub fn tables(version: u64) -> Vec<u8> {
    let phase = Phase::Prefill;
    let record = json!({"geometry": Geometry::portable(phase), "kernel_family": "cpu", "min_length": 1024, "max_length": 8192,
        "checkpoint_sha256": checkpoint(), "table_sha256": null, "tool": "test", "date": "2026-11-30"});
    let file = json!({"skip_softmax_prefill_scale_tables": {"50%": [[1024, version]]}, "skip_softmax_prefill_target_sparsity": 0.5,
        "skip_softmax_prefill_calibration": record});
    serde_json::to_vec_pretty(&file).unwrap()
}

/// What a version holds.
pub fn contents(version: u64) -> Contents {
    let tables = vec![Tables { checkpoint: checkpoint(), name: "tiny".into(), file: "tiny.json".into(), bytes: tables(version) }];
    Contents { version, created: CREATED + version, expires: EXPIRES, note: "for tests".into(), tables }
}

/// A bundle by a publisher.
pub fn bundle_by(publisher: &Publisher, version: u64) -> Files {
    wait(publisher.sign(&contents(version))).unwrap()
}

/// A bundle that a device takes.
pub fn bundle(version: u64) -> Files {
    bundle_by(&PUBLISHER, version)
}

/// The same that does not expire while these tests are of use: the program asks the system's clock.
pub fn lasting(version: u64) -> Files {
    wait(PUBLISHER.sign(&Contents { expires: FAR, ..contents(version) })).unwrap()
}

/// A device: state folder, shipped root, and the program.
pub struct Device {
    dir: TempDir,
}

impl Device {
    /// One that was never updated.
    pub fn new() -> Self {
        let device = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::write(device.path("root.json"), PUBLISHER.root()).unwrap();
        std::fs::create_dir(device.path("state")).unwrap();
        device
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The store's folder.
    pub fn store(&self) -> PathBuf {
        self.path("state/tables")
    }

    /// Puts a bundle's archive beside.
    pub fn put(&self, name: &str, files: &Files) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, pack(files)).unwrap();
        path
    }

    /// The program, to be given a command.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skip-update"));
        command.arg("--json").arg("--state-dir").arg(self.path("state")).arg("--trust").arg(self.path("root.json"));
        command
    }

    /// The program's apply.
    pub fn apply_command(&self, bundle: &Path) -> Command {
        let mut command = self.command();
        command.arg("apply").arg(bundle).arg("--checkpoint-sha256").arg(checkpoint().to_string());
        command
    }

    /// Applies a bundle.
    pub fn apply(&self, bundle: &Path) -> Answer {
        Answer::of(self.apply_command(bundle).output().unwrap())
    }

    /// Runs another command.
    pub fn run(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command().args(arguments).output().unwrap())
    }

    /// Every path below the state folder, with sizes of files.
    pub fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.path("state"), &mut found);
        found.sort();
        found
    }
}

fn walk(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        found.push(format!("{} {}", path.display(), if meta.is_dir() { 0 } else { meta.len() }));
        if meta.is_dir() {
            walk(&path, found);
        }
    }
}

/// What the program answered.
#[derive(Debug)]
pub struct Answer {
    /// Its exit code.
    pub code: Option<i32>,
    /// Its JSON.
    pub json: Value,
    /// What it said on standard error.
    pub said: String,
}

impl Answer {
    fn of(output: Output) -> Self {
        let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Self { code: output.status.code(), json, said: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// The check it failed.
    pub fn check(&self) -> &str {
        self.json["error"]["check"].as_str().unwrap_or_default()
    }
}
