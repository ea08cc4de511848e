//! The clients for C, C++ and Python, and the examples, against the real daemon.

use skip_tests::process::{Output, cache, root, run};
use skip_tests::{Daemon, Options};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

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

/// Installs library and headers into a folder, and gives their prefix.
fn installed(folder: &Path) -> PathBuf {
    let prefix = folder.join("skipd");
    run(Command::new(root().join("tools/install-client")).arg(&prefix).env("SKIPD_LIBRARIES", libraries())).unwrap().ok().unwrap();
    prefix
}

/// The values of a kind (`SONAME`, `NEEDED`) in what a program or library says to the loader.
fn dynamic(file: &Path, kind: &str) -> Vec<String> {
    let told = run(Command::new("readelf").arg("-d").arg(file)).unwrap().ok().unwrap();
    let lines = told.lines().filter(|line| line.contains(&format!("({kind})")));
    lines.filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned())).collect()
}

/// Configures and builds an example with CMake; gives the folder of its programs.
fn cmake(example: &str, folder: &Path) -> PathBuf {
    let build = folder.join(example);
    let source = root().join("examples").join(example);
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(source).arg("-B").arg(&build).env("PKG_CONFIG_PATH", installed(folder).join("lib/pkgconfig"));
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
fn an_installed_library_is_found_by_pkg_config_and_asked_for_by_its_versioned_name() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = installed(folder.path());
    let pkg_config = |what: &str| {
        let mut command = Command::new("pkg-config");
        command.args(what.split(' ')).arg("skipd").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        run(&mut command).unwrap().ok().unwrap().trim().to_owned()
    };
    let version = pkg_config("--modversion");
    let [major, minor, _] = version.split('.').collect::<Vec<_>>()[..] else { panic!("{version}") };
    let interface = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
    let name = format!("libskipd_client.so.{interface}");
    assert_eq!(dynamic(&prefix.join("lib/libskipd_client.so"), "SONAME"), [name.as_str()]);

    let (source, program) = (folder.path().join("version.c"), folder.path().join("version"));
    std::fs::write(&source, "#include <skipd.h>\n#include <stdio.h>\nint main(void) { return puts(skipd_version()) < 0; }\n").unwrap();
    let mut compile = Command::new("cc");
    compile.arg(&source).arg("-o").arg(&program).args(pkg_config("--cflags --libs").split(' '));
    run(&mut compile).unwrap().ok().unwrap();
    assert!(dynamic(&program, "NEEDED").contains(&name));
    // Without the name that linkers look for, as where no headers are installed.
    std::fs::remove_file(prefix.join("lib/libskipd_client.so")).unwrap();
    let printed = run(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib"))).unwrap().ok().unwrap();
    assert_eq!(printed.trim(), version);
}

#[test]
fn a_package_is_made_below_destdir_and_names_the_places_where_it_will_be() {
    let folder = tempfile::tempdir().unwrap();
    let mut install = Command::new(root().join("tools/install-client"));
    install.args(["--libdir", "/usr/lib/somewhere", "/usr"]).env("SKIPD_LIBRARIES", libraries()).env("DESTDIR", folder.path());
    run(&mut install).unwrap().ok().unwrap();
    let libraries = folder.path().join("usr/lib/somewhere");
    let told = std::fs::read_to_string(libraries.join("pkgconfig/skipd.pc")).unwrap();
    assert!(told.contains("\nprefix=/usr\nlibdir=/usr/lib/somewhere\n") && !told.contains('@'), "{told}");
    for file in ["libskipd_client.a", "libskipd_client.so", "../../include/skipd.h", "../../include/skipd.hpp"] {
        assert!(libraries.join(file).exists(), "{file}");
    }
}

#[test]
fn the_c_interface_does_what_its_header_says_under_sanitizers() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled("cc", "client.c", "-std=gnu11", folder.path());
    // One of its own: the program sets tables.
    let daemon = Daemon::start(Options::default()).unwrap();
    let printed = run(sanitized(&program).arg(daemon.socket()).arg(daemon.bus().address())).unwrap().ok().unwrap();
    assert_eq!(printed.trim(), "all checks passed");
}

/// A program of `client/c/tests`, with the sanitizers.
fn compiled(compiler: &str, source: &str, standard: &str, folder: &Path) -> PathBuf {
    let program = folder.join("client");
    let mut compile = Command::new(compiler);
    compile.args([standard, "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    compile.arg("-I").arg(root().join("client/c/include")).arg(root().join("client/c/tests").join(source));
    compile.arg(libraries().join("libskipd_client.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&program);
    run(&mut compile).unwrap().ok().unwrap();
    program
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

/// Kills the daemon of a program that has asked it something, and starts another once the program has seen that.
fn over_a_restart(program: &mut Command) {
    let folder = tempfile::tempdir().unwrap();
    let options = || Options { folder: Some(folder.path().to_owned()), ..Options::default() };
    let mut daemon = Daemon::start(options()).unwrap();
    let mut child = program.arg(daemon.socket()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("asked"));
    daemon.process().signal("KILL").unwrap();
    daemon.process().wait(Duration::from_secs(5)).unwrap();
    writeln!(child.stdin.take().unwrap(), "killed").unwrap();
    assert_eq!(lines.next().as_deref(), Some("cut"));
    let _again = Daemon::launch(options()).unwrap();
    assert_eq!(lines.collect::<Vec<_>>(), ["all checks passed"]);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_cpp_client_controls_the_daemon_and_outlives_it() {
    let folder = tempfile::tempdir().unwrap();
    over_a_restart(&mut sanitized(&compiled("c++", "client.cpp", "-std=c++17", folder.path())));
}

#[test]
fn a_python_client_controls_the_daemon_and_outlives_it() {
    over_a_restart(python().args(["-X", "dev"]).arg(root().join("tests/tests/e2e/python_restart.py")));
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
