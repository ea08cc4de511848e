//! `skip-update`: takes a signed bundle of tables into the store, or goes back. A oneshot that needs no privilege and no network.

mod cli;
mod show;

use clap::Parser;
use cli::{Cli, Command, Place};
use serde_json::{Value, json};
use skip_tables::Digest;
use skip_update::clock::Clock;
use skip_update::verify::Verifier;
use skip_updates::{Begun, Check, Files, Limits, RealDisk, Rejection, Store, TRIES, View, read_archive, read_folder};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between looks at a store that another process has.
const LOOK: Duration = Duration::from_millis(20);
/// Longest root.json that is read.
const MAX_ROOT: u64 = 1 << 20;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(done) => {
            say(if cli.json { done.json.to_string() } else { done.text });
            ExitCode::SUCCESS
        }
        Err(refused) => {
            if cli.json {
                say(json!({"error": {"check": refused.check.name(), "message": refused.message}}));
            }
            eprintln!("skip-update: {refused}");
            ExitCode::from(refused.check.exit_code())
        }
    }
}

/// What was done is done, whether or not somebody still reads of it.
fn say(what: impl std::fmt::Display) {
    let _gone = writeln!(std::io::stdout(), "{what}");
}

/// What was done: for people, and for programs.
struct Done {
    text: String,
    json: Value,
}

fn run(cli: &Cli) -> Result<Done, Rejection> {
    let root = cli.state_dir.join("tables");
    match &cli.command {
        Command::Apply { place, checkpoint, checkpoint_sha256, relax_expiry } => {
            let checkpoint = installed(cli, checkpoint.as_deref(), *checkpoint_sha256)?;
            apply(cli, &root, place, checkpoint, *relax_expiry)
        }
        Command::Begin => begin(&mut open(cli, &root)?),
        Command::Commit { slot } => {
            open(cli, &root)?.commit(slot)?;
            Ok(Done { text: format!("{slot} is in force"), json: json!({"slot": slot}) })
        }
        Command::Fail { slot, reason } => {
            open(cli, &root)?.fail(slot, reason)?;
            Ok(Done { text: format!("{slot} is given up: {reason}"), json: json!({"slot": slot, "reason": reason}) })
        }
        Command::Rollback { reason } => {
            let mut store = open(cli, &root)?;
            store.roll_back(reason)?;
            let active = &store.state().active;
            let text = active.as_ref().map_or_else(|| "no update is in force any more".to_owned(), |slot| format!("{slot} is in force"));
            Ok(Done { text, json: json!({"slot": active}) })
        }
        Command::Show => {
            let view = View::read(&RealDisk::new(root))?;
            Ok(Done { text: show::text(&view), json: show::json(&view) })
        }
    }
}

fn begin(store: &mut Store<RealDisk>) -> Result<Done, Rejection> {
    Ok(match store.begin()? {
        Begun::NoTrial => Done { text: "no update is on trial".into(), json: json!({"slot": null}) },
        Begun::Try(slot, state) => {
            let json = json!({"slot": slot, "tries_left": state.tries_left});
            Done { text: format!("{slot} is tried; {} tries are left", state.tries_left), json }
        }
        Begun::GivenUp(state) => {
            let reason = state.reason.unwrap_or_default();
            Done { text: format!("no update is on trial any more: {reason}"), json: json!({"slot": null, "given_up": reason}) }
        }
    })
}

fn apply(cli: &Cli, root: &Path, place: &Place, checkpoint: Digest, relax: bool) -> Result<Done, Rejection> {
    let files = read(place)?;
    let there = root.is_dir();
    let staged = stage(cli, root, files, checkpoint, relax);
    if staged.is_err() && !there {
        // Made for the lock alone; where there is something in it, it stays.
        let _ = fs::remove_dir(root);
    }
    staged
}

fn stage(cli: &Cli, root: &Path, files: Files, checkpoint: Digest, relax: bool) -> Result<Done, Rejection> {
    let mut store = open(cli, root)?;
    let known_time = View::read(store.disk())?.known_time();
    let [timestamp, snapshot, _] = store.metadata()?;
    let verifier = Verifier {
        root: match store.root()? {
            Some(root) => root,
            None => trusted(&cli.trust)?,
        },
        known: [timestamp, snapshot],
        floor: store.floor(),
        checkpoint,
        clock: Clock::system(known_time, relax),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| Rejection::io("the runtime", &e))?;
    let update = runtime.block_on(verifier.verify(files))?;
    let slot = store.stage(&update)?;
    let text = format!("{slot} is on trial: the daemon tries it at its next start or reload, {TRIES} times at most");
    Ok(Done { text, json: json!({"slot": slot, "version": slot.version()}) })
}

/// Waits for another process that has the store.
fn open(cli: &Cli, root: &Path) -> Result<Store<RealDisk>, Rejection> {
    let end = Instant::now() + Duration::from_secs(cli.wait);
    loop {
        match Store::lock_and_open(root) {
            Err(refused) if refused.check == Check::Busy && Instant::now() < end => std::thread::sleep(LOOK),
            opened => return opened,
        }
    }
}

fn read(place: &Place) -> Result<Files, Rejection> {
    let limits = Limits::default();
    match (&place.bundle, place.fd) {
        (Some(path), None) if path.is_dir() => read_folder(path, &limits),
        (Some(path), None) => {
            let file = File::open(path).map_err(|e| Rejection::io(path.display(), &e))?;
            read_archive(std::io::BufReader::new(file), &limits)
        }
        (None, Some(0)) => read_archive(std::io::stdin().lock(), &limits),
        (None, Some(fd)) => {
            let path = format!("/proc/self/fd/{fd}");
            let file = File::open(&path).map_err(|e| Rejection::io(path, &e))?;
            read_archive(std::io::BufReader::new(file), &limits)
        }
        _ => Err(Rejection::new(Check::Archive, "a bundle, or a descriptor of one, is needed")),
    }
}

fn trusted(path: &Path) -> Result<Vec<u8>, Rejection> {
    let failed = |error: &std::io::Error| Rejection::new(Check::Trust, format!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    File::open(path).map_err(|e| failed(&e))?.take(MAX_ROOT).read_to_end(&mut bytes).map_err(|e| failed(&e))?;
    Ok(bytes)
}

/// The installed checkpoint's digest: given, computed, or as the daemon remembers it.
fn installed(cli: &Cli, folder: Option<&Path>, digest: Option<Digest>) -> Result<Digest, Rejection> {
    if let Some(digest) = digest {
        return Ok(digest);
    }
    if let Some(folder) = folder {
        return Digest::of_checkpoint(folder).map_err(|e| Rejection::new(Check::Checkpoint, format!("{}: {e}", folder.display())));
    }
    let path = cli.state_dir.join("tables/checkpoint.sha256");
    let remembered = fs::read_to_string(&path).ok().and_then(|text| text.lines().next()?.parse().ok());
    remembered.ok_or_else(|| {
        let message =
            format!("{} does not tell the installed checkpoint: name it (--checkpoint), or let the daemon load it once", path.display());
        Rejection::new(Check::Checkpoint, message)
    })
}
