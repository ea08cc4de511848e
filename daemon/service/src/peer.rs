//! Who asks, as the kernel says, and what that allows: the same rule for the socket and the bus.

use skip_client::{Error, ErrorKind};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};

/// A caller's credentials at the time it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A user of this machine, as the kernel or the bus says.
    User {
        /// User id.
        uid: u32,
        /// Primary and supplementary group ids.
        groups: Vec<u32>,
    },
    /// A user whom polkit allows one thing, whatever the rule here says of it.
    Granted {
        /// User id.
        uid: u32,
        /// Group ids.
        groups: Vec<u32>,
        /// What it may do.
        right: Right,
    },
    /// Whoever has the key, over TCP.
    KeyHolder,
}

/// No user has it: the kernel takes it for "none".
const NO_UID: u32 = u32::MAX;

/// What a caller may ask for. Status, health and the model list are for everybody and need no right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Run prompts.
    Generate,
    /// Run them before everybody else's.
    ControlPriority,
    /// Change tables, drain, run jobs.
    Control,
}

/// The rule: administrators are uid 0 and the daemon's own uid; members of one group may generate, those of another, if it is configured, with
/// control priority too.
#[derive(Clone, Debug)]
pub struct Authority {
    own_uid: u32,
    group: String,
    gid: Option<u32>,
    control_group: Option<String>,
    control_gid: Option<u32>,
}

impl Authority {
    /// Resolves the groups by name; a group that does not exist has no members.
    pub fn new(group: &str, control_group: Option<&str>) -> Self {
        Self {
            own_uid: rustix::process::getuid().as_raw(),
            group: group.to_owned(),
            gid: group_id(group),
            control_group: control_group.map(str::to_owned),
            control_gid: control_group.and_then(group_id),
        }
    }

    /// Whether the peer may do everything, whatever is granted to others.
    pub fn is_administrator(&self, peer: &Peer) -> bool {
        matches!(peer, Peer::User { uid, .. } | Peer::Granted { uid, .. } if *uid == 0 || *uid == self.own_uid)
    }

    /// Refuses with the reason and what would help.
    pub fn check(&self, peer: &Peer, right: Right) -> Result<(), Error> {
        if self.is_administrator(peer) {
            return Ok(());
        }
        let (uid, groups) = match peer {
            Peer::Granted { right: granted, .. } if *granted == right => return Ok(()),
            Peer::User { uid, groups } | Peer::Granted { uid, groups, .. } => (uid, groups),
            Peer::KeyHolder => return check_key_holder(right),
        };
        let message = match right {
            Right::Generate if self.gid.is_some_and(|gid| groups.contains(&gid)) => return Ok(()),
            Right::Generate => format!("uid {uid} may not generate: members of group {} may", self.group),
            Right::ControlPriority if self.control_gid.is_some_and(|gid| groups.contains(&gid)) => return Ok(()),
            Right::ControlPriority => match &self.control_group {
                Some(group) => format!("uid {uid} may not claim control priority: administrators and members of group {group} may"),
                None => format!("uid {uid} may not claim control priority: administrators may, and members of a --control-group"),
            },
            Right::Control if self.own_uid == 0 => format!("uid {uid} may not control skipd: uid 0 may"),
            Right::Control => format!("uid {uid} may not control skipd: uid 0 and uid {} may", self.own_uid),
        };
        Err(Error::new(ErrorKind::AccessDenied, message))
    }
}

/// The key lets generate, as a member of the group may.
fn check_key_holder(right: Right) -> Result<(), Error> {
    let what = match right {
        Right::Generate => return Ok(()),
        Right::ControlPriority => "claim control priority",
        Right::Control => "control skipd",
    };
    Err(Error::new(ErrorKind::AccessDenied, format!("nobody may {what} over TCP: administrators may over the socket and the bus")))
}

impl Peer {
    /// What tells clients apart: the user id; all holders of the key count as one user whom no uid has.
    pub fn id(&self) -> u32 {
        match self {
            Peer::User { uid, .. } | Peer::Granted { uid, .. } => *uid,
            Peer::KeyHolder => NO_UID,
        }
    }

    /// The same user with one right more. Who has the key is nobody to polkit.
    pub fn granted(self, right: Right) -> Self {
        match self {
            Peer::User { uid, groups } | Peer::Granted { uid, groups, .. } => Peer::Granted { uid, groups, right },
            Peer::KeyHolder => Peer::KeyHolder,
        }
    }

    /// The credentials of a connected Unix stream.
    pub fn of(stream: &tokio::net::UnixStream) -> std::io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let mut groups = supplementary_groups(stream.as_fd());
        if !groups.contains(&credentials.gid()) {
            groups.push(credentials.gid());
        }
        Ok(Self::User { uid: credentials.uid(), groups })
    }
}

/// SO_PEERGROUPS, which neither the standard library nor rustix has; empty where the kernel lacks it.
fn supplementary_groups(socket: std::os::fd::BorrowedFd<'_>) -> Vec<u32> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` has `bytes` writable bytes and outlives the call; the kernel writes whole gid_t (u32) values and updates `bytes`.
        let rc =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), &mut bytes) };
        let count = bytes as usize / size_of::<u32>();
        if rc == 0 {
            groups.truncate(count);
            return groups;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Vec::new();
        }
        groups.resize(count, 0);
    }
}

/// The id of a group, through the system's name service.
fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0 as libc::c_char; 4096];
    loop {
        // SAFETY: `group` is plain data that getgrnam_r fills; all zero is a valid value of it.
        let mut group: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: every pointer is valid for the call, `buffer` has the length given, and only the gid is read after.
        let rc = unsafe { libc::getgrnam_r(name.as_ptr(), &mut group, buffer.as_mut_ptr(), buffer.len(), &mut found) };
        if rc == libc::ERANGE && buffer.len() < 1 << 20 {
            buffer.resize(buffer.len() * 4, 0);
            continue;
        }
        return (rc == 0 && !found.is_null()).then_some(group.gr_gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> Authority {
        Authority { own_uid: 500, group: "skipd".into(), gid: Some(77), control_group: None, control_gid: None }
    }

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer::User { uid, groups: groups.to_vec() }
    }

    #[test]
    fn the_key_lets_generate_and_no_more() {
        assert!(authority().check(&Peer::KeyHolder, Right::Generate).is_ok());
        assert!(!authority().is_administrator(&Peer::KeyHolder));
        for right in [Right::ControlPriority, Right::Control] {
            let refusal = authority().check(&Peer::KeyHolder, right).unwrap_err();
            assert_eq!(refusal.kind, ErrorKind::AccessDenied);
            assert!(refusal.message.contains("over TCP"), "{refusal}");
        }
    }

    #[test]
    fn root_and_the_own_user_may_do_everything() {
        for uid in [0, 500] {
            for right in [Right::Generate, Right::ControlPriority, Right::Control] {
                assert!(authority().check(&peer(uid, &[]), right).is_ok());
            }
        }
    }

    #[test]
    fn members_may_generate_and_no_more() {
        let member = peer(1000, &[1000, 77]);
        assert!(authority().check(&member, Right::Generate).is_ok());
        let refusal = authority().check(&member, Right::Control).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::AccessDenied);
        assert!(refusal.message.contains("1000"), "{refusal}");
    }

    #[test]
    fn what_is_granted_is_that_alone() {
        let granted = peer(1000, &[77]).granted(Right::Control);
        assert!(authority().check(&granted, Right::Control).is_ok());
        assert!(authority().check(&granted, Right::Generate).is_ok(), "its groups count as before");
        assert!(authority().check(&granted, Right::ControlPriority).is_err());
        assert!(authority().check(&peer(1000, &[]).granted(Right::Control), Right::Generate).is_err());
        assert!(!authority().is_administrator(&granted));
        assert_eq!(granted.id(), 1000);
        assert_eq!(Peer::KeyHolder.granted(Right::Control), Peer::KeyHolder);
    }

    #[test]
    fn control_priority_is_for_administrators_and_the_group_that_is_configured() {
        let member = peer(1000, &[77, 88]);
        let refusal = authority().check(&member, Right::ControlPriority).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::AccessDenied);
        assert!(refusal.message.contains("--control-group"), "{refusal}");
        let configured = Authority { control_group: Some("robots".into()), control_gid: Some(88), ..authority() };
        assert!(configured.check(&member, Right::ControlPriority).is_ok());
        assert!(configured.check(&member, Right::Control).is_err(), "priority is no right to change the daemon");
        let refusal = configured.check(&peer(1000, &[77]), Right::ControlPriority).unwrap_err();
        assert!(refusal.message.contains("robots"), "{refusal}");
    }

    #[test]
    fn outsiders_are_told_which_group_may() {
        let refusal = authority().check(&peer(1000, &[1000]), Right::Generate).unwrap_err();
        assert!(refusal.message.contains("group skipd"), "{refusal}");
        let nobody = Authority { gid: None, ..authority() };
        assert!(nobody.check(&peer(1000, &[0]), Right::Generate).is_err(), "a missing group has no members");
    }

    #[tokio::test]
    async fn a_peer_is_who_the_kernel_says() {
        let (a, _b) = tokio::net::UnixStream::pair().unwrap();
        let peer = Peer::of(&a).unwrap();
        assert_eq!(peer.id(), rustix::process::getuid().as_raw());
        let Peer::User { groups, .. } = peer else { panic!("{peer:?}") };
        assert!(groups.contains(&rustix::process::getgid().as_raw()));
    }

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(group_id("root"), Some(0));
        assert_eq!(group_id("no-such-group-here"), None);
    }
}
