//! skip-client for C and C++. `include/skipd.h` is the contract; its functions are here under the same names.
//!
//! Arguments are references where C has pointers: `Option<&T>` is a pointer that may be NULL. What the header asks of callers (pointers are
//! NULL or valid, text ends in NUL, nobody uses what is being freed) is what each `unsafe` here rests on.

mod boundary;
mod client;
mod error;
mod request;
mod stream;
mod update;
mod work;

pub use boundary::skipd_string_free;
pub use client::*;
pub use error::*;
pub use request::*;
pub use stream::*;
pub use update::*;
pub use work::*;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod waiting_tests;
