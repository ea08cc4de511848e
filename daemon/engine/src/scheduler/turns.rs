//! Fairness between clients: who was served longest ago is next; within a client, who came first.
//! A client counts as served when it came: one that comes and goes is not ahead of one that stayed and waits.

use crate::handle::ClientId;
use std::collections::HashMap;

/// When each client was last served.
#[derive(Debug, Default)]
pub(super) struct Turns {
    clock: u64,
    clients: HashMap<ClientId, Turn>,
}

/// Sorts first: longest ago, and of two the one that has had nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    last: u64,
    served: bool,
}

impl Turns {
    /// A client has something here; what it had stays.
    pub fn come(&mut self, client: ClientId) {
        let now = self.now();
        self.clients.entry(client).or_insert(now);
    }

    /// Sorts first: served longest ago.
    pub fn rank(&self, client: ClientId) -> Turn {
        self.clients.get(&client).copied().unwrap_or_else(|| self.now())
    }

    /// The client had its turn.
    pub fn serve(&mut self, client: ClientId) {
        self.clock += 1;
        self.clients.insert(client, Turn { last: self.clock, served: true });
    }

    /// Forgets clients that have nothing here any more.
    pub fn keep(&mut self, present: impl Fn(ClientId) -> bool) {
        self.clients.retain(|&client, _| present(client));
    }

    fn now(&self) -> Turn {
        Turn { last: self.clock, served: false }
    }
}
