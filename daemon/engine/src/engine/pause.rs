//! Standing still without losing anything: no step is started, requests wait where they are. For a machine that goes to sleep.

use super::EngineHandle;
use crate::handle::Message;
use tokio::sync::oneshot;

/// The steps stand still for as long as this lives.
#[derive(Debug)]
#[must_use = "the steps go on when this is dropped"]
pub struct Pause {
    engine: EngineHandle,
}

impl EngineHandle {
    /// Lets the steps under way end and starts no more; returns when none runs. None: the engine has ended.
    pub async fn pause(&self) -> Option<Pause> {
        // From here on whoever stops waiting lets it go on.
        let pause = Pause { engine: self.clone() };
        let (ack, done) = oneshot::channel();
        self.control.send(Message::Pause(ack)).ok()?;
        done.await.ok()?;
        Some(pause)
    }
}

impl Drop for Pause {
    /// Steps go on, once the device was seen to be there; one that is not ends the engine.
    fn drop(&mut self) {
        // An ended engine has nothing to go on with.
        let _ = self.engine.control.send(Message::Resume);
    }
}
