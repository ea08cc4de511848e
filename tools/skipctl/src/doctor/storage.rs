//! Configuration, the checkpoint's folder, and the folder of state.

use super::config::MAIN;
use super::finding::{Check, Finding, Problem, failure, warning};
use super::machine::Machine;
use super::memory::shown;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// State is small: tables, records, a calibration's shares.
const FULL: u64 = 16 << 20;
/// Room for a calibration or an update beside what there is.
const LOW: u64 = 256 << 20;
/// Folders that the unit hides (ProtectHome).
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];

/// Configuration.
pub static CHECK_CONFIG: Check = Check {
    name: "configuration",
    about: "/etc/skipd/skipd.toml and skipd.d/*.toml can be read, and name a model; the daemon itself judges every key",
    unless: Some("the package is not installed and there is none, or the caller may not read it"),
    problems: &[&NO_CONFIG, &BROKEN, &NO_MODEL],
};
static NO_CONFIG: Problem = warning(
    "there is none: the socket does not listen",
    "`sudo cp /usr/share/doc/skipd/examples/skipd.toml /etc/skipd/`, name your model there, `sudo systemctl start skipd.socket`",
);
static BROKEN: Problem = failure("a file is no TOML", "mend {file}; `sudo -u skipd skipd` shows line and reason");
static NO_MODEL: Problem = failure("no file names a model", "`model = \"/var/lib/skipd/models/…\"` in /etc/skipd/skipd.toml");

/// The checkpoint.
pub static CHECK_MODEL: Check = Check {
    name: "model",
    about: "the checkpoint's folder has config.json, tokenizer.json and *.safetensors, and the daemon's user may read them",
    unless: Some("no model is configured, or the caller may not look into its folder"),
    problems: &[&BEHIND, &NO_FOLDER, &INCOMPLETE, &SHUT],
};
static BEHIND: Problem = failure(
    "it lies below /home, /root or /run/user, which the service does not see",
    "`sudo mkdir -p /var/lib/skipd/models`, `sudo cp -r {model} /var/lib/skipd/models/` and that path in the configuration",
);
static NO_FOLDER: Problem =
    failure("there is no such folder", "copy a checkpoint to {model}, or name another `model` in /etc/skipd/skipd.toml");
static INCOMPLETE: Problem =
    failure("a file is missing", "copy the whole checkpoint to {model}; a GGUF file becomes one by `skipctl import`");
static SHUT: Problem = failure("the daemon's user may not read it", "`sudo chmod {rights} {place}`");

/// State.
pub static CHECK_STATE: Check = Check {
    name: "state-folder",
    about: "the folder of state is there, the daemon's user may write to it, and 256 MiB are free",
    unless: Some("the package is not installed and no folder is configured, or the caller may not look into it"),
    problems: &[&NO_STATE, &NOT_WRITABLE, &READ_ONLY, &NO_ROOM, &LITTLE_ROOM],
};
static NO_STATE: Problem = warning("it is not there; the first start makes it", "`sudo systemd-tmpfiles --create skipd.conf`");
static NOT_WRITABLE: Problem = failure("the user may not write to it: nothing is kept", "`sudo chown -R {user}: {folder}`");
static READ_ONLY: Problem =
    failure("its file system is mounted read-only", "`sudo mount -o remount,rw {folder}`, or `state-dir` on another one");
static NO_ROOM: Problem =
    failure("less than 16 MiB are free", "delete something on its file system: `sudo du -xh {folder} | sort -h | tail`");
static LITTLE_ROOM: Problem =
    warning("less than 256 MiB are free", "delete something on its file system: `sudo du -xh {folder} | sort -h | tail`");

/// Looks at the configuration.
pub fn configuration(machine: &Machine) -> Finding {
    let config = &machine.config;
    let names = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    if let Some((path, why)) = &config.broken {
        return CHECK_CONFIG.problem(&BROKEN, format!("{}: {why}", path.display())).with("file", &path.display().to_string());
    }
    if let Some(path) = &config.closed {
        return CHECK_CONFIG.inapplicable(format!("{} is closed to the caller; ask again with sudo", path.display()));
    }
    match (config.files.is_empty(), &config.model) {
        (true, _) if machine.installed => CHECK_CONFIG.problem(&NO_CONFIG, format!("no {MAIN}")),
        (true, _) => CHECK_CONFIG.inapplicable(format!("no {MAIN}; a private run is told by flags")),
        (false, None) => CHECK_CONFIG.problem(&NO_MODEL, names(&config.files)),
        (false, Some(_)) => CHECK_CONFIG.ok(names(&config.files)),
    }
}

/// Looks into the checkpoint's folder.
pub fn model(machine: &Machine) -> Finding {
    let Some(model) = &machine.config.model else { return CHECK_MODEL.inapplicable("no model is configured") };
    let folder = model.display().to_string();
    let finding = |problem, seen: String| CHECK_MODEL.problem(problem, seen).with("model", &folder);
    if machine.installed && HIDDEN.iter().any(|hidden| model.starts_with(hidden)) {
        return finding(&BEHIND, folder.clone());
    }
    let names = match names(machine, model) {
        Ok(names) => names,
        Err(ErrorKind::PermissionDenied) => {
            return CHECK_MODEL.inapplicable(format!("{folder} is closed to the caller; ask again with sudo"));
        }
        Err(_) => return finding(&NO_FOLDER, format!("no folder {folder}")),
    };
    let weights: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
    let missing = ["config.json", "tokenizer.json"].into_iter().find(|name| !names.iter().any(|known| known == name));
    if let Some(missing) = missing.or(weights.is_empty().then_some("*.safetensors")) {
        return finding(&INCOMPLETE, format!("{folder} has no {missing}"));
    }
    let files =
        ["config.json", "tokenizer.json"].into_iter().chain(weights.iter().map(|name| name.as_str())).map(|name| (model.join(name), 4));
    let ways = model.ancestors().map(|way| (way.to_owned(), 1));
    let shut = ways.chain(files).find(|(path, wanted)| machine.node(path).is_ok_and(|node| !machine.daemon.may(&node, *wanted)));
    match shut {
        Some((path, _)) => {
            let seen = format!("{} is closed to {}", path.display(), machine.daemon.name);
            // A folder above the model is passed through, and what else is in it is nobody's business.
            let rights = if path.starts_with(model) { "-R a+rX" } else { "a+x" };
            finding(&SHUT, seen).with("place", &path.display().to_string()).with("rights", rights)
        }
        None => CHECK_MODEL.ok(format!("{folder}, {} of weights in {} files", shown(total(machine, model, &weights)), weights.len())),
    }
}

/// Bytes of the configured model's weights; None where they cannot be seen.
pub fn weights(machine: &Machine) -> Option<u64> {
    let model = machine.config.model.as_ref()?;
    let names = names(machine, model).ok()?;
    let weights: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
    (!weights.is_empty()).then(|| total(machine, model, &weights))
}

fn total(machine: &Machine, model: &Path, names: &[&String]) -> u64 {
    names.iter().filter_map(|name| std::fs::metadata(machine.place(model.join(name))).ok()).map(|meta| meta.len()).sum()
}

fn names(machine: &Machine, folder: &Path) -> Result<Vec<String>, ErrorKind> {
    let entries = std::fs::read_dir(machine.place(folder)).map_err(|error| error.kind())?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// A file system.
#[derive(Clone, Copy, Debug)]
struct Room {
    free: u64,
    read_only: bool,
}

/// Looks at the folder of state.
pub fn state(machine: &Machine) -> Finding {
    let folder = machine.config.state();
    if !machine.installed && machine.config.state_dir.is_none() {
        return CHECK_STATE.inapplicable("no package, and no folder is configured");
    }
    let node = match machine.node(folder) {
        Ok(node) => node,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return CHECK_STATE.inapplicable(format!("{} is closed to the caller; ask again with sudo", folder.display()));
        }
        Err(error) => return CHECK_STATE.problem(&NO_STATE, format!("{}: {error}", folder.display())),
    };
    let told = statvfs(machine.place(folder)).ok();
    let room = told.map(|told| Room { free: told.f_bavail * told.f_frsize, read_only: told.f_flag.contains(StatVfsMountFlags::RDONLY) });
    judge(machine, folder, machine.daemon.may(&node, 3), room)
}

fn judge(machine: &Machine, folder: &Path, writable: bool, room: Option<Room>) -> Finding {
    let name = folder.display().to_string();
    let user = &machine.daemon.name;
    let problem = |problem, seen: String| CHECK_STATE.problem(problem, seen).with("folder", &name).with("user", user);
    match room {
        Some(room) if room.read_only => problem(&READ_ONLY, format!("{name} is read-only")),
        _ if !writable => problem(&NOT_WRITABLE, format!("{name} is closed to {user}")),
        Some(room) if room.free < FULL => problem(&NO_ROOM, format!("{name}: {} free", shown(room.free))),
        Some(room) if room.free < LOW => problem(&LITTLE_ROOM, format!("{name}: {} free", shown(room.free))),
        Some(room) => CHECK_STATE.ok(format!("{name}: {} free", shown(room.free))),
        None => CHECK_STATE.ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{State, assert_covers};
    use crate::doctor::testing::Tree;

    #[test]
    fn a_configuration_is_missed_only_where_the_package_is() {
        let installed = |text: Option<&str>| {
            let tree = Tree::empty();
            tree.install();
            if let Some(text) = text {
                tree.set(MAIN, text);
            }
            configuration(&tree.machine())
        };
        let mut closed = Tree::empty().machine();
        closed.config.closed = Some(MAIN.into());
        let found = [
            installed(Some("model = \"/m\"\n")),
            installed(None),
            installed(Some("model = \n")),
            installed(Some("queue = 2\n")),
            configuration(&Tree::empty().machine()),
            configuration(&closed),
        ];
        assert_covers(&CHECK_CONFIG, &found);
        assert!(found[2].remedy.as_ref().unwrap().contains("skipd.toml"));
        assert_eq!((found[4].state, found[5].state), (State::NotApplicable, State::NotApplicable));
    }

    /// A machine whose model is at this place, with these files.
    fn with_model(place: &str, files: &[&str]) -> Tree {
        let tree = Tree::empty();
        tree.install();
        tree.set(MAIN, &format!("model = \"{place}\"\n"));
        files.iter().for_each(|file| tree.set(&format!("{place}/{file}"), "{}"));
        tree
    }

    #[test]
    fn a_checkpoint_is_whole_and_open_to_the_daemon() {
        const ALL: [&str; 3] = ["config.json", "tokenizer.json", "model-00001-of-00001.safetensors"];
        let whole = with_model("/srv/m", &ALL);
        let shut = with_model("/srv/m", &ALL);
        shut.mode("/srv/m/model-00001-of-00001.safetensors", 0o600);
        let bare = Tree::empty();
        let found = [
            model(&whole.machine()),
            model(&shut.machine()),
            model(&with_model("/home/ann/m", &ALL).machine()),
            model(&with_model("/srv/m", &ALL[..2]).machine()),
            model(&with_model("/srv/m", &[]).machine()),
            model(&bare.machine()),
        ];
        assert_eq!(found[0].seen, "/srv/m, 0 MiB of weights in 1 files");
        assert_eq!(found[1].remedy.as_deref(), Some("`sudo chmod -R a+rX /srv/m/model-00001-of-00001.safetensors`"));
        assert_covers(&CHECK_MODEL, &found);
        // A private run sees what its caller sees.
        let private = with_model("/home/ann/m", &ALL);
        std::fs::remove_file(private.path("/usr/lib/systemd/system/skipd.service")).unwrap();
        assert_eq!(model(&private.machine()).state, State::Ok);
    }

    #[test]
    fn the_state_folder_has_to_be_writable_and_to_have_room() {
        let tree = Tree::empty();
        tree.install();
        let machine = tree.machine();
        let of = |writable, free, read_only| judge(&machine, Path::new("/var/lib/skipd"), writable, Some(Room { free, read_only }));
        let found = [
            of(true, LOW, false),
            of(true, LOW - 1, false),
            of(true, FULL - 1, false),
            of(true, LOW, true),
            of(false, LOW, false),
            state(&machine),
            state(&Tree::empty().machine()),
        ];
        assert_covers(&CHECK_STATE, &found);
        assert_eq!(found[4].remedy.as_deref(), Some("`sudo chown -R skipd: /var/lib/skipd`"));
        assert!(found[5].seen.contains("/var/lib/skipd"));
    }

    #[test]
    fn the_folder_s_own_bits_and_file_system_are_looked_at() {
        let tree = Tree::empty();
        tree.install();
        tree.set("/var/lib/skipd/lock", "");
        tree.mode("/var/lib/skipd", 0o777);
        let open = state(&tree.machine());
        assert!(open.seen.ends_with("free"), "{}", open.seen);
        tree.mode("/var/lib/skipd", 0o700);
        assert_eq!(state(&tree.machine()).problem, Some(&NOT_WRITABLE));
    }
}
