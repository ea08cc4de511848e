//! Choosing a backend: without a usable GPU the daemon says why, and runs on the CPU unless it was told not to.

use crate::completion;
use skip_tests::{Daemon, Options};
use std::path::Path;
use std::process::Command;

/// A driver library with the first functions that are asked for.
const DRIVER: &str = r#"
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuInit(unsigned flags) { return 100; }
int cuGetErrorString(int error, const char **text) { *text = "no CUDA-capable device is detected"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
"#;

/// Options for a machine whose driver says it is of this version and sees no device.
fn with_driver(folder: &Path, version: u32) -> Options {
    let source = folder.join("driver.c");
    std::fs::write(&source, DRIVER.replace("VERSION", &version.to_string())).unwrap();
    let library = folder.join("libcuda.so.1");
    assert!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap().success());
    Options { environment: vec![("LD_LIBRARY_PATH".into(), folder.display().to_string())], ..Options::default() }
}

/// `--backend cuda` must be refused with all of `words`, and `auto` must serve on the CPU and say the same.
fn unusable(options: &Options, words: &[&str]) {
    let (code, log) = Daemon::refused(options.clone().flags(&["--backend", "cuda"]), "none").unwrap();
    assert!(code.is_some_and(|c| c != 0 && c < 128), "exit {code:?}\n{log}");
    assert!(!log.contains("panicked"), "{log}");
    let daemon = Daemon::start(options.clone().flags(&["--backend", "auto"])).unwrap();
    let answer = daemon.http().post("/v1/completions", completion("One, two,", 2).to_string()).unwrap().expect(200).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    let status = daemon.http().get("/skipd/v1/status").unwrap().expect(200).unwrap();
    let backend = &status["backend"];
    assert_eq!(backend["name"], "cpu", "{status}");
    for word in words {
        assert!(log.contains(word), "{word:?} is not in\n{log}");
        assert!(backend["reason"].as_str().unwrap().contains(word), "{word:?} is not in {backend}");
    }
}

#[test]
fn without_a_driver() {
    // Where this machine has a driver, an empty file in its place.
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let environment = vec![("LD_LIBRARY_PATH".into(), folder.path().display().to_string())];
    unusable(&Options { environment, ..Options::default() }, &["no CUDA driver"]);
}

#[test]
fn with_a_driver_too_old() {
    let folder = tempfile::tempdir().unwrap();
    unusable(&with_driver(folder.path(), 12060), &["supports CUDA 12.6", "need 13.0"]);
}

#[test]
fn without_a_device() {
    let folder = tempfile::tempdir().unwrap();
    unusable(&with_driver(folder.path(), 13000), &["no CUDA device", "CUDA_ERROR_NO_DEVICE"]);
}

#[test]
fn a_driver_that_lacks_functions() {
    let folder = tempfile::tempdir().unwrap();
    let options = with_driver(folder.path(), 13000);
    let source = folder.path().join("bare.c");
    std::fs::write(&source, "int cuDriverGetVersion(int *version) { *version = 13000; return 0; }").unwrap();
    let library = folder.path().join("libcuda.so.1");
    assert!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap().success());
    unusable(&options, &["cuInit"]);
}
