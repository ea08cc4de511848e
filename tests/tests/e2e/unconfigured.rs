//! A service without a configuration, started by a call on the bus: the caller is told at once, instead of waiting for a name that never comes.

use skip_tests::process::{Guarded, binary, eventually, run};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A bus that starts skipd for whoever calls it, as a service manager would, with these arguments.
fn bus(folder: &Path, arguments: &str) -> Guarded {
    let program = folder.join("start");
    let script = format!(
        "#!/bin/sh\nNOTIFY_SOCKET=/nonexistent/notify exec {} {arguments} 2>>{}/log\n",
        binary("skipd").unwrap().display(),
        folder.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let service = format!("[D-BUS Service]\nName=org.skipd.Skipd1\nExec={}\n", program.display());
    std::fs::write(folder.join("org.skipd.Skipd1.service"), service).unwrap();
    let config = format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={0}/bus</listen>
  <servicedir>{0}</servicedir>
  <policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy>
</busconfig>"#,
        folder.display()
    );
    std::fs::write(folder.join("bus.conf"), config).unwrap();
    let arguments = [format!("--config-file={}/bus.conf", folder.display()), "--nofork".into(), "--nopidfile".into()];
    let bus = Guarded::start(Path::new("dbus-daemon"), &arguments, &folder.join("bus.log")).unwrap();
    eventually(Duration::from_secs(5), "the bus listens", || Ok(folder.join("bus").exists().then_some(()))).unwrap();
    bus
}

#[test]
fn a_call_that_starts_a_service_without_a_configuration_is_told_at_once_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:path={}/bus", folder.path().display());
    let broken = folder.path().join("skipd.toml");
    std::fs::write(&broken, "tabel = \"x\"\n").unwrap();
    let _bus = bus(folder.path(), &format!("--bus {address} --config {}", broken.display()));
    let call = |words: &str| {
        let began = Instant::now();
        let mut command = Command::new("busctl");
        command.arg(format!("--address={address}")).args([
            "call",
            "org.skipd.Skipd1",
            "/org/skipd/Skipd1",
            "org.skipd.Skipd1.Manager",
            "Status",
        ]);
        let answer = run(&mut command).unwrap();
        assert!(answer.code != Some(0) && answer.stderr.contains("skipd is not configured") && answer.stderr.contains(words), "{answer:?}");
        // The bus would wait for 25 seconds and more.
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    };
    call("tabel");
    // It looks again with every call.
    std::fs::write(&broken, "kv = \"fp16\"\n").unwrap();
    call("--model must be given");
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("tabel"), "{log}");
}
