//! What a request is called: in logs, in the headers of its answer, in the live view.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest name that a client may give.
const MAX_LEN: usize = 128;

/// A request's name. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    name: Arc<str>,
    serial: Arc<str>,
}

impl RequestId {
    /// The name its client gave it, if it is one, else the daemon's own: another header than it hoped for is no reason to refuse a request.
    pub fn new(wanted: Option<&str>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let created = unix_seconds(SystemTime::now());
        let serial: Arc<str> = format!("{created:x}-{:x}", NEXT.fetch_add(1, Ordering::Relaxed)).into();
        let name = wanted.filter(|name| is_name(name)).map_or_else(|| serial.clone(), Arc::from);
        Self { name, serial }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Unique in this process and, but for clocks set back, among its predecessors.
    pub fn serial(&self) -> &str {
        &self.serial
    }
}

/// Seconds since 1970; 0 for a clock before that.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What may stand in a header and a log without being taken for anything else. The slash is the one of bus paths.
fn is_name(name: &str) -> bool {
    (1..=MAX_LEN).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-/".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_name_is_kept_and_what_is_none_gets_another() {
        assert_eq!(RequestId::new(Some("robot-7.arm:3")).name(), "robot-7.arm:3");
        for wrong in ["", "a b", "a\nb", "a\"b", "ü", &"x".repeat(MAX_LEN + 1)] {
            let id = RequestId::new(Some(wrong));
            assert_eq!(id.name(), id.serial(), "{wrong:?}");
        }
        assert_ne!(RequestId::new(None).name(), RequestId::new(None).name());
    }
}
