//! The whole product end to end: a real bus, real checkpoints, foreign clients.
//! This library starts what the tests in `tests/e2e` talk to, and ends it however a test ends.

pub mod bus;
pub mod corpus;
pub mod daemon;
pub mod http;
pub mod process;

pub use bus::Bus;
pub use daemon::{Daemon, Options};
pub use http::{Http, Response, Stream};
