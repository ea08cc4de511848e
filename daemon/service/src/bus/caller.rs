//! Who calls, as the bus says: uid and groups of the message's sender; and whether that may do what it asks for.

use super::failure::Failure;
use super::polkit::{self, Action, Verdict};
use crate::config::Bus;
use crate::peer::Peer;
use crate::state::Daemon;
use skip_client::{Error, ErrorKind};
use zbus::Connection;
use zbus::fdo::{ConnectionCredentials, DBusProxy};
use zbus::message::Header;
use zbus::names::UniqueName;

/// The unique name of a call's sender.
pub fn sender(header: &Header<'_>) -> Result<UniqueName<'static>, Failure> {
    let denied = || Error::new(ErrorKind::AccessDenied, "the bus does not say who calls");
    Ok(header.sender().ok_or_else(denied)?.to_owned())
}

/// The sender of a call, if it may do this: by the daemon's own rule, or else, on the system bus, by polkit's.
///
/// # Errors
/// The own rule's refusal, where polkit does not allow it either.
pub async fn authorised(daemon: &Daemon, connection: &Connection, header: &Header<'_>, action: Action) -> Result<Peer, Failure> {
    let sender = sender(header)?;
    let peer = peer(connection, &sender).await?;
    let Err(mut refusal) = daemon.authority.check(&peer, action.right()) else { return Ok(peer) };
    if daemon.config.bus != Bus::System {
        return Err(refusal.into());
    }
    match polkit::ask(connection, header, &sender, action).await {
        Verdict::Allowed => {
            tracing::info!(action = action.id(), uid = peer.id(), "polkit allows");
            return Ok(peer.granted(action.right()));
        }
        Verdict::Refused => refusal.message += &format!("; polkit does not allow {} either", action.id()),
        Verdict::None(why) => tracing::debug!(action = action.id(), "polkit does not say: {why}"),
    }
    Err(refusal.into())
}

/// The credentials of a connection on the bus; an error where it has left.
pub async fn peer(connection: &Connection, name: &UniqueName<'_>) -> Result<Peer, Failure> {
    let denied = |why: String| Failure::from(Error::new(ErrorKind::AccessDenied, why));
    let bus = DBusProxy::new(connection).await.map_err(Failure::internal)?;
    let credentials = bus
        .get_connection_credentials(name.into())
        .await
        .map_err(|error| denied(format!("the bus does not say who {name} is: {error}")))?;
    let uid = credentials.unix_user_id().ok_or_else(|| denied(format!("{name} has no user id")))?;
    let groups = credentials.unix_group_ids().cloned().unwrap_or_else(|| groups_of_process(&credentials, uid));
    Ok(Peer::User { uid, groups })
}

/// Older buses do not tell groups: then those of the sender's process, as long as it still is of the uid that the bus vouches for.
fn groups_of_process(credentials: &ConnectionCredentials, uid: u32) -> Vec<u32> {
    let Some(pid) = credentials.process_id() else { return Vec::new() };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status, uid)
}

fn parse_groups(status: &str, uid: u32) -> Vec<u32> {
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|n| n.parse().ok()).collect()
    };
    // The real, effective, saved and file system ids must all be the vouched one: a set-uid program speaks for nobody's groups.
    let uids = numbers("Uid:");
    if uids.is_empty() || uids.iter().any(|&found| found != uid) {
        return Vec::new();
    }
    let mut groups = numbers("Groups:");
    groups.extend(numbers("Gid:").get(1));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_a_process_of_the_vouched_user_only() {
        let status = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t9\t9\t9\nGroups:\t20 30 \n";
        assert_eq!(parse_groups(status, 7), [20, 30, 9]);
        assert!(parse_groups(status, 6).is_empty());
        assert!(parse_groups(&status.replacen("7\t7", "7\t0", 1), 7).is_empty());
        assert!(parse_groups("", 7).is_empty());
    }
}
