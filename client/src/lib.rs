//! The protocol's types, and a client for skipd over its socket or the bus, async or [blocking].
//!
//! [`protocol`] holds every message of both transports and does no I/O. [`Client`] speaks either:
//!
//! ```no_run
//! # async fn example() -> Result<(), skip_client::Error> {
//! let client = skip_client::Client::connect().await?;
//! let mut answer = client.chat().user("Why is the sky blue?").max_tokens(64).send().await?;
//! while let Some(event) = answer.next().await {
//!     if let skip_client::StreamEvent::Text { text, .. } = event? {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod address;
pub mod blocking;
mod builder;
mod bus;
mod client;
mod generation;
mod http;
mod lines;
mod patience;
pub mod protocol;
mod ready;
mod sse;
#[doc(hidden)]
pub mod variant;

pub use builder::{Chat, RequestBuilder, Text};
pub use client::Client;
pub use generation::{Answer, Generation};
pub use protocol::StreamEvent;
pub use protocol::error::{Error, ErrorKind};
