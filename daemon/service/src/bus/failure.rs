//! The protocol's error as a D-Bus error reply: `org.skipd.Skipd1.Error.<Kind>`, its words, and where asked for its field and numbers.

use skip_client::protocol::names::ERROR_DETAILS;
use skip_client::{Error, ErrorKind, variant};
use std::collections::HashMap;
use zbus::message::{Header, Message};
use zbus::names::ErrorName;
use zbus::wire::{OwnedVariant, Variant};

/// What a method of the bus answers instead of a result.
#[derive(Debug)]
pub struct Failure {
    name: String,
    /// Words that name the field too, for who gets nothing else.
    words: String,
    error: Error,
    detailed: bool,
}

impl From<Error> for Failure {
    fn from(mut error: Error) -> Self {
        // On the bus skipd's own options lie beside the others.
        if let Some(flat) = error.param.as_deref().and_then(|param| param.strip_prefix("skipd.")) {
            error.param = Some(flat.to_owned());
        }
        Self { name: error.kind.dbus_name(), words: error.to_string(), error, detailed: false }
    }
}

impl Failure {
    /// A fault of ours.
    pub fn internal(message: impl ToString) -> Self {
        Error::new(ErrorKind::Internal, message.to_string()).into()
    }

    /// Whether field and numbers follow the words in the reply.
    pub fn detailed(self, detailed: bool) -> Self {
        Self { detailed, ..self }
    }
}

/// Whether a call's options ask for detailed errors; a value of another type is refused where the options are read.
pub fn wants_details(options: &HashMap<String, OwnedVariant>) -> bool {
    options.get(ERROR_DETAILS).is_some_and(|value| matches!(**value, Variant::Bool(true)))
}

impl zbus::DBusError for Failure {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        let reply = Message::error(call, self.name());
        if self.detailed {
            reply.build(&(self.error.message.as_str(), variant::to_dict(&self.error.bus_fields())))
        } else {
            reply.build(&(self.words.as_str(),))
        }
    }

    fn name(&self) -> ErrorName<'_> {
        // The names are a constant prefix and the letters of a kind: always a valid error name.
        ErrorName::from_str_unchecked(&self.name)
    }

    fn description(&self) -> Option<&str> {
        Some(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::DBusError;

    #[test]
    fn a_field_is_named_as_the_caller_wrote_it() {
        let failure = Failure::from(Error::invalid("skipd.priority", "unknown"));
        assert_eq!(failure.description(), Some("priority: unknown"));
        assert_eq!(Failure::from(Error::invalid("top_p", "unknown")).description(), Some("top_p: unknown"));
    }

    #[test]
    fn every_kind_has_a_valid_name() {
        for kind in ErrorKind::ALL {
            let failure = Failure::from(Error::new(kind, "words"));
            assert!(ErrorName::try_from(failure.name().as_str()).is_ok(), "{}", failure.name());
            assert_eq!(ErrorKind::from_dbus_name(failure.name().as_str()), Some(kind));
        }
    }
}
