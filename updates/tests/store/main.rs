//! The store against disks that fail, stop dead, lose power and rot.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

mod damage;
mod faults;
mod model;
mod updates;
