//! A private message bus: a real dbus-daemon on a socket of its own.

use crate::process::{Guarded, Output, eventually, root, run};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running dbus-daemon; ended when dropped.
#[derive(Debug)]
pub struct Bus {
    socket: PathBuf,
    daemon: Guarded,
}

impl Bus {
    /// Starts a bus whose socket lies in `folder`.
    ///
    /// # Errors
    /// dbus-daemon is not installed or does not come up.
    pub fn start(folder: &Path) -> Result<Self> {
        let socket = folder.join("bus");
        let args = [
            format!("--config-file={}", root().join("tests/data/private-bus.conf").display()),
            format!("--address=unix:path={}", socket.display()),
            "--nofork".into(),
            "--nopidfile".into(),
        ];
        let daemon = Guarded::start(Path::new("dbus-daemon"), &args, &folder.join("bus.log"))?;
        eventually(Duration::from_secs(5), "the bus listens", || Ok(socket.exists().then_some(())))?;
        Ok(Self { socket, daemon })
    }

    /// Its address, for skipd, busctl, gdbus and zbus.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    /// Ends the bus under its users' feet.
    ///
    /// # Errors
    /// It had ended already.
    pub fn kill(&self) -> Result<()> {
        self.daemon.signal("KILL")
    }

    /// `busctl` on this bus.
    ///
    /// # Errors
    /// busctl is not installed, or hangs.
    pub fn busctl(&self, args: &[&str]) -> Result<Output> {
        run(Command::new("busctl").arg(format!("--address={}", self.address())).args(args))
    }

    /// `gdbus` on this bus.
    ///
    /// # Errors
    /// gdbus is not installed, or hangs.
    pub fn gdbus(&self, verb: &str, args: &[&str]) -> Result<Output> {
        run(Command::new("gdbus").args([verb, "--address", &self.address()]).args(args))
    }
}
