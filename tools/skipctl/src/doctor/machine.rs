//! What there is to look at: the files below a root, who asks, what the bus, the GPU's library and the daemon say. Looking changes nothing, and starts
//! nothing: a daemon that the first client would start is not asked.

use super::config::Configuration;
use super::people::{People, Person};
use super::units::{Told, Units};
use skip_client::Client;
use skip_client::protocol::{Status, names};
use skip_platform::nvml::{Gpu, Gpus, Library};
use skip_platform::{Board, BoardKind, Driver, Identity, Rooted, Sysfs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The user of the units.
pub const DAEMON: &str = "skipd";
/// The unit that the package brings.
const UNIT: &str = "/usr/lib/systemd/system/skipd.service";
/// How long the daemon is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The bits of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major number of a device.
    pub number: Option<u32>,
}

/// What the daemon says of itself.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It was not asked: why.
    NotAsked(String),
    /// It does not answer: why.
    Silent(String),
    /// Its status.
    Status(Box<Status>),
}

/// Where the daemon may be.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// A bus to ask it over.
    pub bus: Option<String>,
    /// Sockets, the likeliest first.
    pub sockets: Vec<PathBuf>,
}

impl Places {
    /// Those that a command looks at: the one it was told, else those of the client.
    pub fn of(socket: Option<&Path>, bus: Option<&str>, env: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let told = socket.map(Path::to_owned).or_else(|| env(names::SOCKET_ENV));
        let user = || env("XDG_RUNTIME_DIR").map(|dir| dir.join(names::USER_SOCKET));
        let sockets = match told {
            Some(path) => vec![path],
            None => std::iter::once(PathBuf::from(names::SYSTEM_SOCKET)).chain(user()).collect(),
        };
        Self { bus: bus.map(str::to_owned), sockets }
    }
}

/// The machine.
pub struct Machine {
    /// Its files.
    pub board: Board,
    /// What it is.
    pub identity: Identity,
    /// Users and groups.
    pub people: People,
    /// Who asks.
    pub caller: Person,
    /// As whom the daemon runs: user skipd where the package is installed, else whoever asks.
    pub daemon: Person,
    /// Whether the package is installed.
    pub installed: bool,
    /// What the daemon is told.
    pub config: Configuration,
    /// What the system bus says.
    pub told: Told,
    /// GPUs that NVML shows; why it shows none.
    pub gpus: Result<Vec<Gpu>, String>,
    /// Where the daemon may be.
    pub places: Places,
    /// What the daemon says.
    pub answer: Answer,
    /// Seconds since 1970.
    pub now: u64,
}

impl Machine {
    /// What the files below a root tell, for this caller.
    pub fn at(root: &Path, config: Option<&Path>, caller: Option<Person>) -> Self {
        let board = Board::at(root);
        let people = People::read(board.sysfs());
        let caller = caller.unwrap_or_else(|| this_process(&people));
        let installed = board.sysfs().exists(UNIT);
        let unit = |person: Person| Person { groups: with_groups_of_the_unit(&people, person.groups), ..person };
        let daemon = people.person(DAEMON).filter(|_| installed).map_or_else(|| caller.clone(), unit);
        Self {
            identity: board.identify(),
            config: Configuration::read(root, config),
            told: Told::nothing("not asked"),
            gpus: Err("not asked".into()),
            places: Places::default(),
            answer: Answer::NotAsked("not asked".into()),
            now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            board,
            people,
            caller,
            daemon,
            installed,
        }
    }

    /// Asks whoever can be asked of this machine itself; another root is known by its files alone.
    pub async fn asked(mut self, places: Places) -> Self {
        self.places = places;
        if self.is_here() {
            self.told = Told::ask().await;
            self.gpus = match self.identity.driver {
                Driver::None => Err("no driver is loaded".into()),
                _ => match Library::open() {
                    Some(library) => library.read().map_err(|fault| fault.to_string()),
                    None => Err("libnvidia-ml.so.1 cannot be loaded, or finds no driver".into()),
                },
            };
            self.answer = self.ask().await;
        }
        self
    }

    /// Whether the root is this machine's.
    pub fn is_here(&self) -> bool {
        self.files().root() == Path::new("/")
    }

    /// The files.
    pub fn files(&self) -> &Rooted {
        self.board.sysfs()
    }

    /// Where a path of the machine is.
    pub fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.files().root().join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The bits of a file; links are followed.
    pub fn node(&self, path: impl AsRef<Path>) -> std::io::Result<Node> {
        let meta = std::fs::metadata(self.place(path))?;
        let device = meta.file_type().is_char_device().then(|| rustix::fs::major(meta.rdev()));
        Ok(Node { mode: meta.mode(), uid: meta.uid(), gid: meta.gid(), number: device })
    }

    /// Whether it is a Jetson, whose GPU shares the memory.
    pub fn is_board(&self) -> bool {
        self.identity.kind != BoardKind::Generic
    }

    /// Whether the configuration asks for CUDA, so that the CPU is no way out.
    pub fn wants_cuda(&self) -> bool {
        self.config.backend.as_deref() == Some("cuda")
    }

    /// The units, where the package is installed and systemd tells.
    pub fn units(&self) -> Option<&Units> {
        self.told.units.as_ref().ok().filter(|units| units.service.is_there())
    }

    /// The daemon's status, where it answered.
    pub fn status(&self) -> Option<&Status> {
        match &self.answer {
            Answer::Status(status) => Some(status),
            _ => None,
        }
    }

    async fn ask(&self) -> Answer {
        let idle = self
            .units()
            .is_some_and(|units| units.service.active != "active" && (units.socket.active == "active" || self.places.bus.is_some()));
        let system = [PathBuf::from(names::SYSTEM_SOCKET)];
        // Where systemd says nothing, a socket that is there may be its own, which would start the service.
        let untold = self.installed && self.told.units.is_err();
        if untold && (self.places.bus.is_some() || self.places.sockets.starts_with(&system)) {
            return Answer::NotAsked("systemd does not say whether it runs; `skipctl status` asks it, and starts it if it does not".into());
        }
        if idle && (self.places.bus.is_some() || self.places.sockets.starts_with(&system)) {
            return Answer::NotAsked("it is not started; the first client starts it".into());
        }
        let asking = async {
            let client = match &self.places.bus {
                Some(address) => Client::connect_bus(address).await?,
                None => self.first().await?,
            };
            client.with_timeout(PATIENCE).status().await
        };
        match tokio::time::timeout(2 * PATIENCE, asking).await {
            Ok(Ok(status)) => Answer::Status(Box::new(status)),
            Ok(Err(error)) => Answer::Silent(error.to_string()),
            Err(_) => Answer::Silent("no answer in time".into()),
        }
    }

    /// The first socket that accepts.
    async fn first(&self) -> Result<Client, skip_client::Error> {
        let mut refusal = None;
        for path in &self.places.sockets {
            match Client::connect_socket(path).await {
                Ok(client) => return Ok(client),
                Err(error) => refusal = Some(refusal.unwrap_or(error)),
            }
        }
        Err(refusal.unwrap_or_else(|| skip_client::Error::new(skip_client::ErrorKind::Unreachable, "no socket is known")))
    }
}

/// The process's own user.
fn this_process(people: &People) -> Person {
    let uid = rustix::process::geteuid().as_raw();
    let own = std::iter::once(rustix::process::getegid());
    let groups = own.chain(rustix::process::getgroups().unwrap_or_default()).map(rustix::process::Gid::as_raw);
    Person { name: people.name(uid), uid, groups: groups.collect() }
}

/// `SupplementaryGroups=` of the unit, where these are.
fn with_groups_of_the_unit(people: &People, groups: Vec<u32>) -> Vec<u32> {
    groups.into_iter().chain(["video", "render"].iter().filter_map(|name| people.group(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_named_is_the_only_place() {
        let env = |name: &str| (name == names::SOCKET_ENV).then(|| PathBuf::from("/env.sock"));
        assert_eq!(Places::of(Some(Path::new("/told.sock")), None, env).sockets, [Path::new("/told.sock")]);
        assert_eq!(Places::of(None, None, env).sockets, [Path::new("/env.sock")]);
        let user = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/run/user/7"));
        assert_eq!(Places::of(None, None, user).sockets, [Path::new(names::SYSTEM_SOCKET), Path::new("/run/user/7/skipd.sock")]);
    }
}
