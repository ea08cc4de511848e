//! Verifying a bundle of tables with The Update Framework, and making one. The device's program `skip-update` uses the first, the publisher's `skip-bundle`
//! the second; neither opens a network connection.

pub mod clock;
pub mod make;
pub mod verify;
