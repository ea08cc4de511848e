//! The clients for C, C++ and Python, and the examples, against the real daemon.

use skip_tests::process::{Output, cache, root, run};
use skip_tests::{Daemon, Options};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of `libskipd_client.a` and `.so`.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().to_owned();
    for library in ["libskipd_client.a", "libskipd_client.so"] {
        assert!(folder.join(library).exists(), "{library} is missing in {}: cargo build --release --workspace", folder.display());
    }
    folder
}

/// Python with the package of this clone, which keeps its folder clean.
fn python() -> Command {
    let python = cache().join("venv/bin/python");
    assert!(python.exists(), "{} is missing: tools/setup test", python.display());
    let mut command = Command::new(python);
    command.env("PYTHONPATH", root().join("client/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Configures and builds an example with CMake; gives the folder of its programs.
fn cmake(example: &str, folder: &Path) -> PathBuf {
    let build = folder.join(example);
    let source = root().join("examples").join(example);
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(source).arg("-B").arg(&build).arg(format!("-DSKIPD_LIBRARIES={}", libraries().display()));
    run(&mut configure).unwrap().ok().unwrap();
    run(Command::new("cmake").arg("--build").arg(&build)).unwrap().ok().unwrap();
    build
}

#[test]
fn the_header_and_the_shared_library_name_the_same_functions() {
    let header = std::fs::read_to_string(root().join("client/c/include/skipd.h")).unwrap();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']) && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    let library = libraries().join("libskipd_client.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library)).unwrap().ok().unwrap();
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(declared.len() > 30);
    assert_eq!(declared, exported);
}

#[test]
fn the_c_interface_does_what_its_header_says_under_sanitizers() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("client");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    compile.arg("-I").arg(root().join("client/c/include")).arg(root().join("client/c/tests/client.c"));
    compile.arg(libraries().join("libskipd_client.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&program);
    run(&mut compile).unwrap().ok().unwrap();
    // One of its own: the program sets tables.
    let daemon = Daemon::start(Options::default()).unwrap();
    let printed = run(sanitized(&program).arg(daemon.socket()).arg(daemon.bus().address())).unwrap().ok().unwrap();
    assert_eq!(printed.trim(), "all checks passed");
}

/// Where addresses are random over many bits, older sanitizers find their own place taken now and then: randomness is left out, if it may be.
fn sanitized(program: &Path) -> Command {
    let fixed = run(Command::new("setarch").args(["-R", "true"])).is_ok_and(|output| output.code == Some(0));
    let mut command = Command::new(if fixed { Path::new("setarch") } else { program });
    if fixed {
        command.arg("-R").arg(program);
    }
    command
}

#[test]
fn the_cpp_example_builds_against_both_libraries_and_works_over_both_transports() {
    let folder = tempfile::tempdir().unwrap();
    let programs = cmake("cpp", folder.path());
    let daemon = Daemon::shared();
    let bus = format!("bus:{}", daemon.bus().address());
    for (program, place) in [("ask_static", daemon.socket().display().to_string()), ("ask_shared", bus)] {
        let printed = run(Command::new(programs.join(program)).arg(place)).unwrap().ok().unwrap();
        assert!(printed.contains("Paris") && printed.contains("\"prompt_tokens\":"), "{printed}");
        assert!(printed.ends_with("deadline: deadline_exceeded\ncancel: cancelled\n"), "{printed}");
    }
    let nobody: Output = run(Command::new(programs.join("ask_shared")).arg("/nonexistent/skipd.sock")).unwrap();
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.starts_with("unreachable: ") && nobody.stderr.contains("/nonexistent/skipd.sock"), "{}", nobody.stderr);
}

#[test]
fn the_vehicle_closes_a_request_and_asks_for_less() {
    let folder = tempfile::tempdir().unwrap();
    let program = cmake("vehicle", folder.path()).join("vehicle");
    let printed = run(Command::new(program).arg(Daemon::shared().bus().address())).unwrap().ok().unwrap();
    assert!(printed.starts_with("[vehicle] model smollm2, prefill table: dense\n"), "{printed}");
    assert!(printed.contains("\n[vehicle] driving off: cancelled, signal: cancelled\n"), "{printed}");
    let ended = printed.trim_end().rsplit(' ').next().unwrap();
    assert!(["stop", "length"].contains(&ended), "{printed}");
}

#[test]
fn the_robot_changes_its_mind_and_keeps_its_deadline() {
    let script = root().join("examples/robot/robot.py");
    let printed = run(python().arg(script).arg("--socket").arg(Daemon::shared().socket()).args(["--lines", "15"])).unwrap().ok().unwrap();
    let parts: Vec<&str> = printed.lines().filter(|line| line.starts_with('[')).collect();
    let [first, cancelled, second, answered, third, late] = parts[..] else { panic!("{printed}") };
    assert_eq!((first, second, third), ("[event] front bumper pressed", "[event] battery at 4 percent", "[event] obstacle ahead"));
    assert_eq!(cancelled, "[robot] something new: the answer is cancelled");
    assert!(answered.contains("prompt tokens, first token after"), "{printed}");
    assert_eq!(late, "[robot] no answer in time (deadline): stopping by rule");
}

#[test]
fn the_python_package_works_and_a_cancelled_task_is_a_cancelled_request() {
    // One of its own: it counts what runs, and sets tables.
    let daemon = Daemon::start(Options::default()).unwrap();
    let script = root().join("tests/tests/e2e/python_client.py");
    let printed = run(python().args(["-X", "dev"]).arg(script).arg(daemon.socket())).unwrap().ok().unwrap();
    assert_eq!(printed.trim(), "all checks passed");
}

#[test]
fn the_python_package_holds_against_a_daemon_of_canned_bytes() {
    let tests = root().join("client/python/tests");
    let output = run(python().args(["-W", "error", "-m", "unittest", "discover"]).arg(tests)).unwrap();
    assert!(output.code == Some(0) && output.stderr.contains("\nOK"), "{}", output.stderr);
}
