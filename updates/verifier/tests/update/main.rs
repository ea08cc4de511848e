//! Bundles made by the publisher's side, taken or refused by the device's: in this process, and by the real program, which is also killed.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

mod cuts;
mod program;
mod verify;
mod world;
