//! A running skipd with a folder of its own, ready for requests.

use crate::bus::Bus;
use crate::http::Http;
use crate::process::{Guarded, Output, binary, checkpoint, eventually, run};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How a daemon is started; the default is the plain one that most tests share.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A checkpoint other than SmolLM2.
    pub model: Option<PathBuf>,
    /// Further flags.
    pub flags: Vec<String>,
    /// Keep sockets, state and logs here instead of a new folder.
    pub folder: Option<PathBuf>,
    /// Further environment variables.
    pub environment: Vec<(String, String)>,
    /// A command that runs skipd, with its first arguments.
    pub wrapper: Vec<String>,
    /// Join this bus instead of the daemon's own; empty: say nothing of a bus.
    pub bus: Option<String>,
}

impl Options {
    /// These options with further flags.
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|&f| f.to_owned()));
        self
    }
}

/// skipd, and the bus it is on. Both end when this is dropped.
#[derive(Debug)]
pub struct Daemon {
    process: Guarded,
    bus: Bus,
    folder: PathBuf,
    ready_after: Duration,
    // Removed last.
    _temporary: Option<tempfile::TempDir>,
}

impl Daemon {
    /// The daemon that tests which change nothing share.
    ///
    /// # Panics
    /// It cannot be started; every test that needs it then fails with the reason.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Daemon> = OnceLock::new();
        SHARED.get_or_init(|| match Self::start(Options::default()) {
            Ok(daemon) => daemon,
            Err(error) => panic!("the shared daemon: {error:?}"),
        })
    }

    /// Starts a bus and a daemon, and waits until it is ready.
    ///
    /// # Errors
    /// Something is missing or does not come up; the error holds the daemon's log.
    pub fn start(options: Options) -> Result<Self> {
        let started = Instant::now();
        let mut daemon = Self::launch(options)?;
        daemon.wait_for("skipd is ready", |http| http.get("/ready").ok().filter(|answer| answer.status == 200))?;
        daemon.ready_after = started.elapsed();
        Ok(daemon)
    }

    /// Starts a bus and a daemon, and waits for nothing.
    ///
    /// # Errors
    /// Something is missing.
    pub fn launch(options: Options) -> Result<Self> {
        let temporary = tempfile::Builder::new().prefix("skipd").tempdir()?;
        let folder = options.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
        let bus = Bus::start(temporary.path())?;
        let process = spawn(&options, &folder, options.bus.as_deref().unwrap_or(&bus.address()))?;
        Ok(Self { process, bus, folder, ready_after: Duration::ZERO, _temporary: Some(temporary) })
    }

    /// Waits until `probe` finds something on the socket.
    ///
    /// # Errors
    /// The daemon ended, or nothing was found within three minutes; the error holds the daemon's log.
    pub fn wait_for<T>(&mut self, what: &str, mut probe: impl FnMut(&Http) -> Option<T>) -> Result<T> {
        let (http, folder) = (self.http(), self.folder.clone());
        eventually(Duration::from_secs(180), what, || {
            if let Some(status) = self.process.ended()? {
                bail!("skipd ended with {status}:\n{}", log(&folder));
            }
            Ok(probe(&http))
        })
        .with_context(|| log(&folder))
    }

    /// Starts a daemon that is expected to give up, and returns its exit code and log.
    ///
    /// # Errors
    /// It is still running after 20 seconds.
    pub fn refused(options: Options, bus: &str) -> Result<(Option<i32>, String)> {
        let temporary = tempfile::tempdir()?;
        let folder = options.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
        let mut process = spawn(&options, &folder, bus)?;
        let status = process.wait(Duration::from_secs(20)).with_context(|| log(&folder))?;
        Ok((status.code(), log(&folder)))
    }

    /// Time from the start of the process to the first 200 of `/ready`.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// HTTP on its socket.
    pub fn http(&self) -> Http {
        Http::new(self.socket())
    }

    /// Its socket's path.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("skipd.sock")
    }

    /// Its folder: socket, state and log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its bus.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Guarded {
        &mut self.process
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        log(&self.folder)
    }

    /// `skipctl` on its socket.
    ///
    /// # Errors
    /// skipctl is not built, or hangs.
    pub fn skipctl(&self, args: &[&str]) -> Result<Output> {
        run(Command::new(binary("skipctl")?).arg("--socket").arg(self.socket()).args(args))
    }

    /// A good request, to show that the daemon lives on.
    ///
    /// # Errors
    /// It is not answered as it should.
    pub fn assert_alive(&self) -> Result<Value> {
        let answer = self.http().post("/v1/completions", r#"{"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}"#)?;
        let answer = answer.expect(200).with_context(|| self.log())?;
        anyhow::ensure!(answer["usage"]["completion_tokens"] == 4, "{answer}");
        Ok(answer)
    }
}

fn spawn(options: &Options, folder: &Path, bus: &str) -> Result<Guarded> {
    let model = options.model.clone().map_or_else(checkpoint, Ok)?;
    let path = |name: &str| folder.join(name).display().to_string();
    let mut args = vec!["--model".to_owned(), model.display().to_string()];
    if !bus.is_empty() {
        args.extend(["--bus".into(), bus.into()]);
    }
    args.extend(["--socket".into(), path("skipd.sock"), "--state-dir".into(), path("state"), "--tables".into(), path("tables.json")]);
    args.extend(options.flags.iter().cloned());
    let skipd = binary("skipd")?;
    let program = match options.wrapper.split_first() {
        None => skipd,
        Some((wrapper, first)) => {
            args.splice(0..0, first.iter().cloned().chain([skipd.display().to_string()]));
            PathBuf::from(wrapper)
        }
    };
    Guarded::start_with(&program, &args, &options.environment, &folder.join("skipd.log"))
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("skipd.log")).unwrap_or_default()
}
