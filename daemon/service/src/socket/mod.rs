//! The Unix socket: taking its path without robbing a living daemon, accepting peers, and giving the path back.

mod bind;
mod stall;

pub use bind::{BindError, SocketFile, bind, inherited};
pub use stall::{Break, Stall, StallGuard};
