//! Errors as handles, and the one table of codes.

use crate::boundary::{Out, quietly};
use libc::c_char;
use skip_client::{Error, ErrorKind};
use std::ffi::{CStr, CString, c_int};

/// The codes of the header; numbers are never given again.
pub(crate) const CODES: [(ErrorKind, c_int); ErrorKind::ALL.len()] = [
    (ErrorKind::InvalidRequest, 1),
    (ErrorKind::Unsupported, 2),
    (ErrorKind::ContextOverflow, 3),
    (ErrorKind::CacheTooSmall, 4),
    (ErrorKind::TooLarge, 5),
    (ErrorKind::NotFound, 6),
    (ErrorKind::ModelNotFound, 7),
    (ErrorKind::MethodNotAllowed, 8),
    (ErrorKind::TableRefused, 9),
    (ErrorKind::NothingPending, 10),
    (ErrorKind::AccessDenied, 11),
    (ErrorKind::Unauthenticated, 12),
    (ErrorKind::Busy, 13),
    (ErrorKind::NotReady, 14),
    (ErrorKind::Draining, 15),
    (ErrorKind::Cancelled, 16),
    (ErrorKind::Deadline, 17),
    (ErrorKind::SlowReader, 18),
    (ErrorKind::Shutdown, 19),
    (ErrorKind::DeviceFault, 20),
    (ErrorKind::Internal, 21),
    (ErrorKind::Unreachable, 22),
    (ErrorKind::Protocol, 23),
    (ErrorKind::Disconnected, 24),
];

/// The code of a kind; all have one, as a test shows.
pub(crate) fn code(kind: ErrorKind) -> c_int {
    CODES.iter().find(|(known, _)| *known == kind).map_or(21, |(_, code)| *code)
}

/// `skipd_error`.
#[derive(Debug)]
pub struct ErrorHandle {
    code: c_int,
    message: CString,
    param: Option<CString>,
    details: CString,
}

impl ErrorHandle {
    pub(crate) fn new(error: &Error) -> Self {
        Self {
            code: code(error.kind),
            message: c_string(&error.to_string()),
            param: error.param.as_deref().map(c_string),
            details: c_string(&serde_json::to_string(&*error.details).unwrap_or_else(|_| "{}".into())),
        }
    }
}

/// Text for C; a NUL inside, which C cannot hold, is left out.
pub(crate) fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// This library's version.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The name of a code.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_code_name(code: c_int) -> *const c_char {
    // Names live as long as the process: each is made once.
    static NAMES: std::sync::LazyLock<Vec<(c_int, CString)>> =
        std::sync::LazyLock::new(|| CODES.iter().map(|(kind, code)| (*code, c_string(kind.code()))).collect());
    const UNKNOWN: &CStr = c"unknown";
    if code == 0 {
        return c"ok".as_ptr();
    }
    quietly(UNKNOWN.as_ptr(), || NAMES.iter().find(|(known, _)| *known == code).map_or(UNKNOWN.as_ptr(), |(_, name)| name.as_ptr()))
}

/// Whether the daemon is away, so that the same client serves again when it is back.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_code_away(code: c_int) -> bool {
    CODES.iter().any(|(kind, known)| *known == code && kind.is_away())
}

/// The code; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_error_code(error: Option<&ErrorHandle>) -> c_int {
    error.map_or(0, |error| error.code)
}

/// For a person; "" for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_error_message(error: Option<&ErrorHandle>) -> *const c_char {
    error.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// The field at fault, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_error_param(error: Option<&ErrorHandle>) -> *const c_char {
    error.and_then(|error| error.param.as_ref()).map_or(std::ptr::null(), |param| param.as_ptr())
}

/// A JSON object.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_error_details(error: Option<&ErrorHandle>) -> *const c_char {
    error.map_or(c"{}".as_ptr(), |error| error.details.as_ptr())
}

/// Frees an error.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_error_free(error: Option<Box<ErrorHandle>>) {
    drop(error);
}

/// Where errors go.
pub(crate) type ErrorOut<'a> = Out<'a, *mut ErrorHandle>;
