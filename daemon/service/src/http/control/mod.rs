//! skipd's own routes under `/skipd/v1`; they mirror the bus.

pub mod drain;
pub mod jobs;
pub mod prefixes;
pub mod profile;
pub mod requests;
pub mod status;
pub mod tables;
pub mod tokenize;
pub mod update;
