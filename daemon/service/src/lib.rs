//! The daemon: configuration, bus, socket, table store, metrics, and the engine behind them.
//!
//! [`process::run`] is the whole of it. Socket and bus are thin faces of [`generation`] and of the table store; the shared state is [`state::Daemon`].

pub mod activity;
pub mod bus;
pub mod config;
mod device;
mod fallback;
mod faults;
mod faulty;
mod files;
mod forms;
pub mod generation;
pub mod http;
pub mod jobs;
pub mod lifecycle;
pub mod load;
pub mod metrics;
pub mod model;
pub mod peer;
mod prefixes;
pub mod process;
pub mod profile;
pub mod qualify;
pub mod renderer;
pub mod request_id;
pub mod socket;
pub mod state;
pub mod state_lock;
pub mod status;
pub mod tables;
pub mod text;
pub mod unconfigured;
pub mod update;
mod watchdog;

#[cfg(test)]
mod testing;
