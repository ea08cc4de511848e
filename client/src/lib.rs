//! The protocol's types, and an async client for skipd over its socket or the bus.
//!
//! [`protocol`] holds every message of both transports and does no I/O.

pub mod protocol;

pub use protocol::error::{Error, ErrorKind};
