//! For tests: a real dbus-daemon on a socket of its own, under the policy that the package installs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A private bus; killed when dropped.
pub struct PrivateBus {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl PrivateBus {
    /// Starts one.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Other users must reach the socket.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd/org.skipd.Skipd1.conf").canonicalize().unwrap();
        // On a device only root and the user skipd may own the name; the test's user is let in beside them.
        let config = format!(
            r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
  </policy>
  <include>{}</include>
  <policy user="{}"><allow own="org.skipd.Skipd1"/></policy>
</busconfig>"#,
            folder.path().join("bus").display(),
            policy.display(),
            rustix::process::getuid().as_raw(),
        );
        std::fs::write(folder.path().join("bus.conf"), config).unwrap();
        let daemon = spawn(folder.path());
        let bus = Self { folder, daemon };
        bus.wait();
        bus
    }

    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(Instant::now() < end, "dbus-daemon does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("bus")
    }

    /// Its address.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket().display())
    }

    /// Ends it under its users' feet.
    pub fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        std::fs::remove_file(self.socket()).unwrap();
    }

    /// Starts it again at the same address.
    pub fn restart(&mut self) {
        self.daemon = spawn(self.folder.path());
        self.wait();
    }

    /// Runs a command with `BUS` in its arguments standing for the address; its standard output, or its standard error where it fails.
    pub async fn run(&self, command: &[&str]) -> Result<String, String> {
        let args: Vec<String> = command.iter().map(|arg| arg.replace("BUS", &self.address())).collect();
        let output = tokio::process::Command::new(&args[0]).args(&args[1..]).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

fn spawn(folder: &Path) -> Child {
    Command::new("dbus-daemon")
        .arg(format!("--config-file={}", folder.join("bus.conf").display()))
        .args(["--nofork", "--nopidfile"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("dbus-daemon is installed")
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        // A bus that was killed by its test is gone already.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
