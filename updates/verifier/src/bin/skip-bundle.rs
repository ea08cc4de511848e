//! `skip-bundle`: makes keys, signs bundles and hands trust on to new keys. For the publisher; no device needs it. `tools/make-bundle` builds and runs it.

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use skip_tables::Digest;
use skip_update::make::{Contents, Key, Keys, Publisher, Tables, pack};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;
const KEY_FILES: [&str; 4] = ["root.pk8", "targets.pk8", "snapshot.pk8", "timestamp.pk8"];

/// Makes signed bundles of tables. The publisher's folder holds keys/ (private: keep it out of version control), roots/ and the last version.
#[derive(Debug, Parser)]
#[command(name = "make-bundle", version)]
struct Cli {
    /// What to do
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make keys and the first root; ship roots/1.root.json as /usr/share/skipd/trust/root.json
    Init {
        /// The publisher's folder
        folder: PathBuf,
        /// Days until the root expires
        #[arg(long, default_value_t = 3650)]
        days: u64,
    },
    /// Sign a bundle, with the version after the last
    Sign {
        /// The publisher's folder
        folder: PathBuf,
        /// CHECKPOINT=FILE: a checkpoint's folder or the digest of its weights, and its config.json or table file
        #[arg(long, required = true, value_name = "CHECKPOINT=FILE")]
        tables: Vec<String>,
        /// Where to write the archive
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// This version, which must be above the last
        #[arg(long)]
        version: Option<u64>,
        /// Days until it expires
        #[arg(long, default_value_t = 365)]
        days: u64,
        /// For people
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Make new keys for every role, and a root that the old and the new root key sign; the old keys stay in keys/N
    Rotate {
        /// The publisher's folder
        folder: PathBuf,
        /// Days until the new root expires
        #[arg(long, default_value_t = 3650)]
        days: u64,
    },
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(Cli::parse().command))
}

async fn run(command: Command) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    match command {
        Command::Init { folder, days } => {
            ensure!(!folder.join("keys").exists(), "{}: there are keys already", folder.display());
            let publisher = Publisher::new(now + days * DAY).await?;
            write_keys(&folder.join("keys/1"), &publisher.keys)?;
            write_root(&folder, 1, publisher.root())?;
            println!("keys in {0}/keys (keep them out of version control); ship {0}/roots/1.root.json", folder.display());
        }
        Command::Rotate { folder, days } => {
            let mut publisher = read_publisher(&folder)?;
            publisher.rotate(now + days * DAY).await?;
            let version = publisher.roots.len();
            // Keys first: a root whose keys were lost would end the line.
            write_keys(&folder.join(format!("keys/{version}")), &publisher.keys)?;
            write_root(&folder, version, publisher.root())?;
            println!("root {version}: the next bundle hands trust on to it");
        }
        Command::Sign { folder, tables, out, version, days, note } => {
            let publisher = read_publisher(&folder)?;
            let last = read_version(&folder)?;
            let version = version.unwrap_or(last + 1);
            ensure!(version > last, "version {version} is not above {last}, the last one signed here");
            let tables = tables.iter().enumerate().map(|(i, t)| read_tables(i, t)).collect::<Result<_>>()?;
            let contents = Contents { version, created: now, expires: now + days * DAY, note, tables };
            let archive = pack(&publisher.sign(&contents).await?);
            // A version is used up before anybody can have the bundle: two bundles of one version would be told apart by nobody.
            fs::write(folder.join("version"), format!("{version}\n"))?;
            fs::write(&out, &archive).with_context(|| out.display().to_string())?;
            println!("{}: version {version}, {} bytes", out.display(), archive.len());
        }
    }
    Ok(())
}

fn read_tables(index: usize, text: &str) -> Result<Tables> {
    let (checkpoint, file) = text.split_once('=').with_context(|| format!("`{text}` is not CHECKPOINT=FILE"))?;
    let (checkpoint, name) = match checkpoint.parse::<Digest>() {
        Ok(digest) => (digest, String::new()),
        Err(_) => {
            let folder = Path::new(checkpoint);
            let name = folder.canonicalize()?.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            (Digest::of_checkpoint(folder).with_context(|| checkpoint.to_owned())?, name)
        }
    };
    let bytes = fs::read(file).with_context(|| file.to_owned())?;
    Ok(Tables { checkpoint, name, file: format!("tables-{index}.json"), bytes })
}

fn read_version(folder: &Path) -> Result<u64> {
    match fs::read_to_string(folder.join("version")) {
        Ok(text) => text.trim().parse().with_context(|| format!("{}/version", folder.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error).with_context(|| format!("{}/version", folder.display())),
    }
}

fn read_publisher(folder: &Path) -> Result<Publisher> {
    let mut roots = Vec::new();
    while let Ok(root) = fs::read(folder.join(format!("roots/{}.root.json", roots.len() + 1))) {
        roots.push(root);
    }
    if roots.is_empty() {
        bail!("{}: no root; `init` makes one", folder.display());
    }
    let place = folder.join(format!("keys/{}", roots.len()));
    let read = |name: &str| fs::read(place.join(name)).map(Key).with_context(|| place.join(name).display().to_string());
    let [root, targets, snapshot, timestamp] = KEY_FILES;
    let keys = Keys { root: read(root)?, targets: read(targets)?, snapshot: read(snapshot)?, timestamp: read(timestamp)? };
    Ok(Publisher { keys, roots })
}

fn write_keys(place: &Path, keys: &Keys) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(place)?;
    for (name, key) in KEY_FILES.iter().zip(keys.all()) {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(place.join(name))?;
        file.write_all(&key.0)?;
        file.sync_all()?;
    }
    Ok(())
}

fn write_root(folder: &Path, version: usize, root: &[u8]) -> Result<()> {
    fs::create_dir_all(folder.join("roots"))?;
    Ok(fs::write(folder.join(format!("roots/{version}.root.json")), root)?)
}
