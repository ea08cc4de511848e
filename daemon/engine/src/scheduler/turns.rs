//! Fairness between clients: who was served longest ago is next; within a client, who came first.

use crate::handle::ClientId;
use std::collections::HashMap;

/// When each client was last served.
#[derive(Debug, Default)]
pub(super) struct Turns {
    clock: u64,
    served: HashMap<ClientId, u64>,
}

impl Turns {
    /// Sorts first: served longest ago; 0 was never served.
    pub fn rank(&self, client: ClientId) -> u64 {
        self.served.get(&client).copied().unwrap_or(0)
    }

    /// The client had its turn.
    pub fn serve(&mut self, client: ClientId) {
        self.clock += 1;
        self.served.insert(client, self.clock);
    }

    /// Forgets clients that have nothing here any more.
    pub fn keep(&mut self, present: impl Fn(ClientId) -> bool) {
        self.served.retain(|&client, _| present(client));
    }
}
