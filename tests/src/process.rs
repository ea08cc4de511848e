//! Child processes that never outlive the test process, however it ends.
//! Paths of the product's binaries and of the checkpoint the tests run on.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A command under `guard.sh`: ended with SIGTERM when dropped, or when this process is gone.
#[derive(Debug)]
pub struct Guarded {
    guard: Child,
    // Held open: its closing tells the guard that this process has ended.
    input: Option<ChildStdin>,
    pid: u32,
}

impl Guarded {
    /// Starts `program args` with its output in `log`.
    ///
    /// # Errors
    /// The program or `sh` cannot be started.
    pub fn start(program: &Path, args: &[String], log: &Path) -> Result<Self> {
        Self::start_with(program, args, &[], log)
    }

    /// The same with further environment variables.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(program: &Path, args: &[String], environment: &[(String, String)], log: &Path) -> Result<Self> {
        let log = std::fs::File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let mut guard = Command::new("sh")
            .args(["-c", include_str!("guard.sh"), "guard"])
            .arg(program)
            .args(args)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("LISTEN_FDS")
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("starting sh")?;
        let input = guard.stdin.take();
        let mut line = String::new();
        BufReader::new(guard.stdout.take().context("the guard has an output")?).read_line(&mut line)?;
        let pid = line.trim().parse().with_context(|| format!("the guard printed {line:?} for a pid"))?;
        Ok(Self { guard, input, pid })
    }

    /// The command's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal by name (`TERM`, `KILL`).
    ///
    /// # Errors
    /// The process is gone.
    pub fn signal(&self, name: &str) -> Result<()> {
        let sent = Command::new("kill").args(["-s", name, &self.pid.to_string()]).status()?;
        ensure!(sent.success(), "process {} is gone", self.pid);
        Ok(())
    }

    /// The exit status, if the command has ended (128 + n where signal n ended it).
    ///
    /// # Errors
    /// Only if the system fails.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.guard.try_wait()?)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The command is still running after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        eventually(limit, "the process ends", || self.ended())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.input = None;
        if self.wait(Duration::from_secs(12)).is_err() {
            // The guard's own SIGKILL comes after ten seconds; a guard that is still there has lost its command.
            let _ = self.guard.kill();
        }
    }
}

/// What a finished command printed.
#[derive(Debug)]
pub struct Output {
    /// Exit code; None if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// The standard output of a command that must succeed.
    ///
    /// # Errors
    /// It failed; the error holds what it printed.
    pub fn ok(self) -> Result<String> {
        ensure!(self.code == Some(0), "exit {:?}\n{}{}", self.code, self.stdout, self.stderr);
        Ok(self.stdout)
    }
}

/// Runs a command to its end, killing it after three minutes.
///
/// # Errors
/// It cannot be started, or takes longer.
pub fn run(command: &mut Command) -> Result<Output> {
    let name = format!("{:?}", command.get_program());
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| format!("starting {name}"))?;
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(child.stdout.take().map(|p| Box::new(p) as _));
    let stderr = read(child.stderr.take().map(|p| Box::new(p) as _));
    let status = eventually(Duration::from_secs(180), &name, || Ok(child.try_wait()?)).inspect_err(|_| {
        let _ = child.kill();
    })?;
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok(Output { code: status.code(), stdout: text(stdout), stderr: text(stderr) })
}

/// Polls until `probe` gives something.
///
/// # Errors
/// `probe` failed, or gave nothing within `limit`.
pub fn eventually<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = probe()? {
            return Ok(found);
        }
        if start.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A binary of the workspace, built beside the running test.
///
/// # Errors
/// It is not there: `cargo build --release` makes it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(Path::parent).context("tests run from target/PROFILE/deps")?;
    let path = folder.join(name);
    ensure!(path.exists(), "{} is missing: cargo build --release --workspace", path.display());
    Ok(path)
}

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The ignored folder of fetched things (`SKIPD_CACHE`, else `.cache`).
pub fn cache() -> PathBuf {
    std::env::var_os("SKIPD_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from)
}

/// The imported SmolLM2-135M-Instruct.
///
/// # Errors
/// It is not there: `tools/fetch-model smollm2` fetches and imports it.
pub fn checkpoint() -> Result<PathBuf> {
    let path = cache().join("models/smollm2");
    ensure!(path.join("config.json").exists(), "{} is missing: tools/fetch-model smollm2", path.display());
    Ok(path.canonicalize()?)
}
