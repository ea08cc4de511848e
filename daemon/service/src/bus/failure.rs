//! The protocol's error as a D-Bus error reply: `org.skipd.Skipd1.Error.<Kind>` and its words.

use skip_client::{Error, ErrorKind};
use zbus::message::{Header, Message};
use zbus::names::ErrorName;

/// What a method of the bus answers instead of a result.
#[derive(Debug)]
pub struct Failure {
    name: String,
    message: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { name: error.kind.dbus_name(), message: error.to_string() }
    }
}

impl Failure {
    /// A fault of ours.
    pub fn internal(message: impl ToString) -> Self {
        Error::new(ErrorKind::Internal, message.to_string()).into()
    }
}

impl zbus::DBusError for Failure {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&(self.message.as_str(),))
    }

    fn name(&self) -> ErrorName<'_> {
        // The names are a constant prefix and the letters of a kind: always a valid error name.
        ErrorName::from_str_unchecked(&self.name)
    }

    fn description(&self) -> Option<&str> {
        Some(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::DBusError;

    #[test]
    fn every_kind_has_a_valid_name() {
        for kind in ErrorKind::ALL {
            let failure = Failure::from(Error::new(kind, "words"));
            assert!(ErrorName::try_from(failure.name().as_str()).is_ok(), "{}", failure.name());
            assert_eq!(ErrorKind::from_dbus_name(failure.name().as_str()), Some(kind));
        }
    }
}
