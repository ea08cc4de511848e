//! One error for every interface: the kind decides the D-Bus name, the HTTP status, OpenAI's `type` and `code`, and skipctl's exit code.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Prefix of every D-Bus error name.
pub const DBUS_ERROR_PREFIX: &str = "org.skipd.Skipd1.Error.";

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A field is missing, has the wrong type or an impossible value; `param` names it.
    InvalidRequest,
    /// A field that would change the output and that skipd does not do; `param` names it.
    Unsupported,
    /// Prompt and answer do not fit the context; details hold the counts.
    ContextOverflow,
    /// The request needs more cache than the daemon has.
    CacheTooSmall,
    /// The body is larger than the daemon reads.
    TooLarge,
    /// No such route, phase or object.
    NotFound,
    /// The request names a model that is not loaded.
    ModelNotFound,
    /// The route exists, for another method.
    MethodNotAllowed,
    /// A table, tier or selector was refused; the old one stays.
    TableRefused,
    /// Nothing is pending: there is nothing to confirm or revert.
    NothingPending,
    /// The caller may not do this.
    AccessDenied,
    /// Over TCP: the key is missing or wrong.
    Unauthenticated,
    /// The queue is full: try again after `retry_after_s` of the details.
    Busy,
    /// The model is still loading.
    NotReady,
    /// The daemon finishes what runs and takes nothing new.
    Draining,
    /// The request was cancelled.
    Cancelled,
    /// The request's deadline passed.
    Deadline,
    /// The reader of a stream was too slow and its buffer ran full.
    SlowReader,
    /// The daemon is shutting down.
    Shutdown,
    /// The device failed; the daemon restarts.
    DeviceFault,
    /// A fault in the daemon.
    Internal,
    /// Client side: no daemon answers at the address.
    Unreachable,
    /// Client side: the answer is not the protocol's.
    Protocol,
    /// Client side: the connection broke before the terminal event.
    Disconnected,
}

/// How one kind looks on each interface.
struct Mapping {
    dbus: &'static str,
    status: u16,
    openai_type: &'static str,
    code: &'static str,
    exit: u8,
}

impl ErrorKind {
    /// All kinds, for documentation and tests.
    pub const ALL: [ErrorKind; 24] = [
        ErrorKind::InvalidRequest,
        ErrorKind::Unsupported,
        ErrorKind::ContextOverflow,
        ErrorKind::CacheTooSmall,
        ErrorKind::TooLarge,
        ErrorKind::NotFound,
        ErrorKind::ModelNotFound,
        ErrorKind::MethodNotAllowed,
        ErrorKind::TableRefused,
        ErrorKind::NothingPending,
        ErrorKind::AccessDenied,
        ErrorKind::Unauthenticated,
        ErrorKind::Busy,
        ErrorKind::NotReady,
        ErrorKind::Draining,
        ErrorKind::Cancelled,
        ErrorKind::Deadline,
        ErrorKind::SlowReader,
        ErrorKind::Shutdown,
        ErrorKind::DeviceFault,
        ErrorKind::Internal,
        ErrorKind::Unreachable,
        ErrorKind::Protocol,
        ErrorKind::Disconnected,
    ];

    /// Whether the daemon is away: it starts, ends, hangs or is not there, and the same client serves again once it is ready. Whoever goes on
    /// over a restart waits for that and sends again.
    pub const fn is_away(self) -> bool {
        use ErrorKind::{DeviceFault, Disconnected, Draining, NotReady, Shutdown, Unreachable};
        matches!(self, NotReady | Draining | Shutdown | DeviceFault | Unreachable | Disconnected)
    }

    /// The one table all interfaces are derived from.
    const fn mapping(self) -> Mapping {
        const fn m(dbus: &'static str, status: u16, openai_type: &'static str, code: &'static str, exit: u8) -> Mapping {
            Mapping { dbus, status, openai_type, code, exit }
        }
        const REQUEST: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        match self {
            ErrorKind::InvalidRequest => m("InvalidRequest", 400, REQUEST, "invalid_request", 4),
            ErrorKind::Unsupported => m("Unsupported", 400, REQUEST, "unsupported_parameter", 4),
            ErrorKind::ContextOverflow => m("ContextOverflow", 400, REQUEST, "context_length_exceeded", 4),
            ErrorKind::CacheTooSmall => m("CacheTooSmall", 400, REQUEST, "cache_too_small", 4),
            ErrorKind::TooLarge => m("TooLarge", 413, REQUEST, "request_too_large", 4),
            ErrorKind::NotFound => m("NotFound", 404, REQUEST, "not_found", 4),
            ErrorKind::ModelNotFound => m("ModelNotFound", 404, REQUEST, "model_not_found", 4),
            ErrorKind::MethodNotAllowed => m("MethodNotAllowed", 405, REQUEST, "method_not_allowed", 4),
            ErrorKind::TableRefused => m("TableRefused", 409, REQUEST, "table_refused", 5),
            ErrorKind::NothingPending => m("NothingPending", 409, REQUEST, "nothing_pending", 5),
            ErrorKind::AccessDenied => m("AccessDenied", 403, "permission_error", "access_denied", 6),
            ErrorKind::Unauthenticated => m("Unauthenticated", 401, "authentication_error", "invalid_api_key", 6),
            ErrorKind::Busy => m("Busy", 429, "rate_limit_error", "busy", 7),
            ErrorKind::NotReady => m("NotReady", 503, SERVER, "not_ready", 7),
            ErrorKind::Draining => m("Draining", 503, SERVER, "draining", 7),
            ErrorKind::Cancelled => m("Cancelled", 499, REQUEST, "cancelled", 8),
            ErrorKind::Deadline => m("Deadline", 504, SERVER, "deadline_exceeded", 8),
            ErrorKind::SlowReader => m("SlowReader", 499, REQUEST, "slow_reader", 8),
            ErrorKind::Shutdown => m("Shutdown", 503, SERVER, "shutdown", 8),
            ErrorKind::DeviceFault => m("DeviceFault", 500, SERVER, "device_fault", 9),
            ErrorKind::Internal => m("Internal", 500, SERVER, "internal_error", 9),
            ErrorKind::Unreachable => m("Unreachable", 502, SERVER, "unreachable", 3),
            ErrorKind::Protocol => m("Protocol", 502, SERVER, "protocol_error", 9),
            ErrorKind::Disconnected => m("Disconnected", 502, SERVER, "disconnected", 9),
        }
    }

    /// Full D-Bus error name, `org.skipd.Skipd1.Error.<Kind>`.
    pub fn dbus_name(self) -> String {
        format!("{DBUS_ERROR_PREFIX}{}", self.mapping().dbus)
    }

    /// The kind of a D-Bus error name; the bus daemon's own refusals and absences are understood too.
    pub fn from_dbus_name(name: &str) -> Option<Self> {
        if let Some(short) = name.strip_prefix(DBUS_ERROR_PREFIX) {
            return Self::ALL.into_iter().find(|kind| kind.mapping().dbus == short);
        }
        match name.strip_prefix("org.freedesktop.DBus.Error.")? {
            "AccessDenied" | "AuthFailed" | "InteractiveAuthorizationRequired" => Some(ErrorKind::AccessDenied),
            "ServiceUnknown" | "NameHasNoOwner" | "NoServer" | "FileNotFound" => Some(ErrorKind::Unreachable),
            "Disconnected" | "NoReply" => Some(ErrorKind::Disconnected),
            "InvalidArgs" | "InvalidSignature" => Some(ErrorKind::InvalidRequest),
            "UnknownMethod" | "UnknownObject" | "UnknownInterface" | "UnknownProperty" => Some(ErrorKind::NotFound),
            _ => None,
        }
    }

    /// HTTP status.
    pub fn http_status(self) -> u16 {
        self.mapping().status
    }

    /// The best kind for a status alone, for an answer without a readable body.
    pub fn from_http_status(status: u16) -> Self {
        match status {
            401 => ErrorKind::Unauthenticated,
            403 => ErrorKind::AccessDenied,
            404 => ErrorKind::NotFound,
            405 => ErrorKind::MethodNotAllowed,
            409 => ErrorKind::TableRefused,
            413 => ErrorKind::TooLarge,
            429 => ErrorKind::Busy,
            503 => ErrorKind::NotReady,
            504 => ErrorKind::Deadline,
            400..=499 => ErrorKind::InvalidRequest,
            500..=599 => ErrorKind::Internal,
            _ => ErrorKind::Protocol,
        }
    }

    /// OpenAI's `type`.
    pub fn openai_type(self) -> &'static str {
        self.mapping().openai_type
    }

    /// OpenAI's `code`; one a kind.
    pub fn code(self) -> &'static str {
        self.mapping().code
    }

    /// The kind of a `code`.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// skipctl's exit code (2 is wrong usage, 130 an interrupt).
    pub fn exit_code(self) -> u8 {
        self.mapping().exit
    }
}

/// An error as it crosses an interface.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Error {
    /// What a caller can act on.
    pub kind: ErrorKind,
    /// For a person: what is wrong, with names and numbers; never prompt text.
    pub message: String,
    /// The field at fault, if one is.
    pub param: Option<String>,
    /// Numbers for a program (counts of an overflow, `retry_after_s`); boxed to keep every `Result` small.
    pub details: Box<Map<String, Value>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.param {
            Some(param) if !self.message.contains(param.as_str()) => {
                write!(f, "{param}: {}", self.message)
            }
            _ => f.write_str(&self.message),
        }
    }
}

impl Error {
    /// An error without a field.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, details: Box::default() }
    }

    /// A field is wrong.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorKind::InvalidRequest, message) }
    }

    /// Adds a number or name for programs.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Names the field at fault.
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// What an error reply on the bus says behind its words, where it is asked for ([`names::ERROR_DETAILS`](super::names::ERROR_DETAILS)):
    /// `param` and `details`, each left out where there is none.
    pub fn bus_fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.extend(self.param.clone().map(|param| ("param".to_owned(), Value::String(param))));
        if !self.details.is_empty() {
            fields.insert("details".into(), Value::Object((*self.details).clone()));
        }
        fields
    }

    /// The inverse of [`Self::bus_fields`], for an error that has kind and words.
    pub fn with_bus_fields(mut self, mut fields: Map<String, Value>) -> Self {
        if let Some(Value::String(param)) = fields.shift_remove("param") {
            self.param = Some(param);
        }
        if let Some(Value::Object(details)) = fields.shift_remove("details") {
            self.details = Box::new(details);
        }
        self
    }

    /// Seconds after which a busy daemon may be asked again.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.details.get("retry_after_s").and_then(Value::as_u64)
    }
}

/// The JSON body of an error, in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// OpenAI's `error` object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// For a person.
    pub message: String,
    /// OpenAI's class: `invalid_request_error`, `authentication_error`, `permission_error`, `rate_limit_error`, `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field at fault, or null.
    #[serde(default)]
    pub param: Option<String>,
    /// skipd's kind, one of [`ErrorKind::code`].
    #[serde(default)]
    pub code: Option<String>,
    /// Numbers for programs; left out when empty.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
}

impl From<Error> for ErrorBody {
    fn from(error: Error) -> Self {
        ErrorBody {
            error: ErrorObject {
                message: error.message,
                kind: error.kind.openai_type().to_owned(),
                param: error.param,
                code: Some(error.kind.code().to_owned()),
                details: *error.details,
            },
        }
    }
}

impl ErrorBody {
    /// The error of a body that came with `status`; an unknown code falls back to the status.
    pub fn into_error(self, status: u16) -> Error {
        let known = self.error.code.as_deref().and_then(ErrorKind::from_code);
        Error {
            kind: known.unwrap_or_else(|| ErrorKind::from_http_status(status)),
            message: self.error.message,
            param: self.error.param,
            details: Box::new(self.error.details),
        }
    }
}

impl Serialize for Error {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ErrorBody::from(self.clone()).error.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(ErrorBody { error: ErrorObject::deserialize(deserializer)? }.into_error(500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kind_comes_back_from_its_names() {
        let mut codes = HashSet::new();
        for kind in ErrorKind::ALL {
            assert!(codes.insert(kind.code()), "{} twice", kind.code());
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
            assert_eq!(ErrorKind::from_dbus_name(&kind.dbus_name()), Some(kind));
            assert!((400..600).contains(&kind.http_status()));
            assert!((3..=9).contains(&kind.exit_code()));
        }
    }

    #[test]
    fn an_error_survives_its_body() {
        let error = Error::invalid("top_p", "must lie in (0, 1]").with("limit", 1);
        let text = serde_json::to_string(&ErrorBody::from(error.clone())).unwrap();
        let body: ErrorBody = serde_json::from_str(&text).unwrap();
        assert_eq!(body.into_error(400), error);
        assert_eq!(Error::new(error.kind, error.message.clone()).with_bus_fields(error.bus_fields()), error);
        assert!(Error::new(ErrorKind::Busy, "no field, no numbers").bus_fields().is_empty());
    }

    #[test]
    fn a_foreign_body_takes_its_kind_from_the_status() {
        let body: ErrorBody = serde_json::from_str(r#"{"error":{"message":"no","type":"x"}}"#).unwrap();
        assert_eq!(body.into_error(429).kind, ErrorKind::Busy);
    }
}
