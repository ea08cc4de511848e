//! polkit: whom the administrator's rules let do what the daemon's own rule does not. It is asked about the sender of a call, never about this
//! process, and only on the system bus, where the name is polkit's.

use crate::peer::Right;
use std::collections::HashMap;
use std::time::Duration;
use zbus::Connection;
use zbus::message::{Flags, Header};
use zbus::names::UniqueName;
use zbus::wire::Variant;

const NAME: &str = "org.freedesktop.PolicyKit1";
const PATH: &str = "/org/freedesktop/PolicyKit1/Authority";
const INTERFACE: &str = "org.freedesktop.PolicyKit1.Authority";
/// How long it may take to look at its rules.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long it may take where a person is asked for a password.
const PATIENCE_WITH_PERSON: Duration = Duration::from_secs(120);
/// AllowUserInteraction of CheckAuthorization.
const MAY_ASK_PERSON: u32 = 1;

/// What polkit knows by name; `systemd/org.skipd.policy` says whom it lets without any rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Running prompts.
    Generate,
    /// Putting tables in force.
    SetTable,
    /// Starting and ending jobs.
    Job,
    /// Taking signed updates and going back.
    Update,
    /// Applying and releasing clock profiles.
    Profile,
}

impl Action {
    /// The action's id.
    pub fn id(self) -> &'static str {
        match self {
            Action::Generate => "org.skipd.generate",
            Action::SetTable => "org.skipd.set-table",
            Action::Job => "org.skipd.job",
            Action::Update => "org.skipd.update",
            Action::Profile => "org.skipd.profile",
        }
    }

    /// What the daemon's own rule calls it.
    pub fn right(self) -> Right {
        match self {
            Action::Generate => Right::Generate,
            Action::SetTable | Action::Job | Action::Update | Action::Profile => Right::Control,
        }
    }
}

/// What polkit says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller may.
    Allowed,
    /// It may not.
    Refused,
    /// Nobody says: polkit is not there, or does not answer as it should.
    None(String),
}

/// Asks about the sender of a call. A person is asked for a password only where the call says that its sender waits for that.
pub async fn ask(connection: &Connection, header: &Header<'_>, sender: &UniqueName<'_>, action: Action) -> Verdict {
    let with_person = header.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
    let (flags, patience) = if with_person { (MAY_ASK_PERSON, PATIENCE_WITH_PERSON) } else { (0, PATIENCE) };
    let subject = ("system-bus-name", HashMap::from([("name", Variant::new(sender.as_str()))]));
    let question = (subject, action.id(), HashMap::<&str, &str>::new(), flags, "");
    let asked = connection.call_method(Some(NAME), PATH, Some(INTERFACE), "CheckAuthorization", &question);
    let answer = match tokio::time::timeout(patience, asked).await {
        Ok(answer) => answer.and_then(|reply| reply.body().deserialize::<(bool, bool, HashMap<String, String>)>()),
        Err(_) => return Verdict::None(format!("polkit does not answer within {patience:?}")),
    };
    match answer {
        Ok((true, ..)) => Verdict::Allowed,
        Ok((false, ..)) => Verdict::Refused,
        Err(error) => Verdict::None(error.to_string()),
    }
}
