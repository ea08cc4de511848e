//! The command line of `skip-update`.

use clap::{Args, Parser, Subcommand};
use skip_tables::Digest;
use skip_updates::SlotName;
use std::path::PathBuf;

/// Verifies a signed bundle of tables and puts it on trial, or goes back to the tables before. Exit codes: docs/updates.md.
#[derive(Debug, Parser)]
#[command(name = "skip-update", version)]
pub struct Cli {
    /// The daemon's state folder; the store is `tables` in it
    #[arg(long, default_value = "/var/lib/skipd", value_name = "DIR", global = true)]
    pub state_dir: PathBuf,
    /// The root of trust that was shipped; counts until a bundle brings a newer one
    #[arg(long, default_value = "/usr/share/skipd/trust/root.json", value_name = "FILE", global = true)]
    pub trust: PathBuf,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Wait this long for another process that changes the store
    #[arg(long, default_value_t = 10, value_name = "SECONDS", global = true)]
    pub wait: u64,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Verify a bundle and put it on trial
    Apply {
        /// The bundle
        #[command(flatten)]
        place: Place,
        /// The installed checkpoint's folder [default: as the daemon remembers it]
        #[arg(long, value_name = "DIR")]
        checkpoint: Option<PathBuf>,
        /// The installed checkpoint's weights
        #[arg(long, value_name = "DIGEST", conflicts_with = "checkpoint")]
        checkpoint_sha256: Option<Digest>,
        /// Where the clock is behind what has passed, judge expiry at the latest moment that has passed for sure
        #[arg(long)]
        relax_expiry: bool,
    },
    /// Spend a try of the update on trial, before it is used
    Begin,
    /// The update on trial is good
    Commit {
        /// Its slot
        slot: SlotName,
    },
    /// The update on trial is not good
    Fail {
        /// Its slot
        slot: SlotName,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// End the trial, or go back to the update before, or to none
    Rollback {
        /// Why
        #[arg(long, default_value = "rolled back by request")]
        reason: String,
    },
    /// What is in force, on trial, and to return to
    Show,
}

/// Where a bundle is.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Place {
    /// An archive, or a folder with the folders `metadata` and `targets`
    pub bundle: Option<PathBuf>,
    /// An archive in a descriptor that this process was given
    #[arg(long, value_name = "N")]
    pub fd: Option<i32>,
}
