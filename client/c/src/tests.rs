//! The header and the code say the same; and what C may pass wrongly is refused.

use super::*;
use crate::boundary::guarded;
use skip_client::ErrorKind;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

const HEADER: &str = include_str!("../include/skipd.h");

fn string(text: *const libc::c_char) -> String {
    assert!(!text.is_null());
    // SAFETY: the library's own text, not null.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

/// `NAME = number` of the header's enums, with this prefix.
fn numbers(prefix: &str) -> Vec<(String, c_int)> {
    let assigned = HEADER.lines().filter_map(|line| line.trim().split_once(" = "));
    let named = assigned.filter(|(name, _)| name.starts_with(prefix));
    named.map(|(name, rest)| (name.to_owned(), rest.split([',', ' ']).next().unwrap().parse().unwrap())).collect()
}

/// `ContextOverflow` as C spells it.
fn c_name(kind: ErrorKind) -> String {
    let name = kind.dbus_name();
    let mut spelt = String::from("SKIPD");
    for letter in name.rsplit('.').next().unwrap().chars() {
        if letter.is_uppercase() {
            spelt.push('_');
        }
        spelt.push(letter.to_ascii_uppercase());
    }
    spelt
}

#[test]
fn every_kind_has_its_code_in_the_header() {
    let known: Vec<(String, c_int)> = numbers("SKIPD_").into_iter().filter(|(name, _)| !name.starts_with("SKIPD_EVENT_")).collect();
    let mut expected = vec![("SKIPD_OK".to_owned(), 0)];
    expected.extend(ErrorKind::ALL.into_iter().map(|kind| (c_name(kind), code(kind))));
    assert_eq!(known, expected);
    assert_eq!(known.iter().map(|(_, code)| code).collect::<BTreeSet<_>>().len(), known.len(), "a number twice");
    for kind in ErrorKind::ALL {
        assert_eq!(string(skipd_code_name(code(kind))), kind.code());
        assert_eq!(skipd_code_away(code(kind)), kind.is_away());
    }
    assert_eq!((string(skipd_code_name(0)), string(skipd_code_name(999))), ("ok".into(), "unknown".into()));
    assert!(!skipd_code_away(0) && !skipd_code_away(999) && skipd_code_away(code(ErrorKind::Unreachable)));
}

#[test]
fn every_function_of_the_header_is_defined_and_no_other() {
    let declared: BTreeSet<&str> = HEADER
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']) && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    let sources = [
        include_str!("boundary.rs"),
        include_str!("client.rs"),
        include_str!("error.rs"),
        include_str!("request.rs"),
        include_str!("stream.rs"),
        include_str!("update.rs"),
        include_str!("work.rs"),
    ];
    let defined: BTreeSet<&str> =
        sources.iter().flat_map(|source| source.split("pub extern \"C\" fn ").skip(1)).filter_map(|rest| rest.split('(').next()).collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(declared, defined);
}

/// The error of a call: its code, words and field.
fn failed(call: impl FnOnce(ErrorOut<'_>) -> c_int) -> (c_int, String, Option<String>) {
    let mut slot = MaybeUninit::new(null_mut());
    let code = call(Some(&mut slot));
    // SAFETY: initialised above, and again by the call.
    let handle = unsafe { slot.assume_init() };
    assert!(!handle.is_null(), "no error beside code {code}");
    // SAFETY: not null, and the library's own.
    let error = unsafe { Box::from_raw(handle) };
    let param = skipd_error_param(Some(&error));
    let told = (skipd_error_code(Some(&error)), string(skipd_error_message(Some(&error))), (!param.is_null()).then(|| string(param)));
    assert_eq!((code, string(skipd_error_details(Some(&error)))), (told.0, "{}".into()));
    skipd_error_free(Some(error));
    told
}

#[test]
fn null_and_bad_text_are_errors_that_name_the_argument() {
    let bad = c"\xff\xfe";
    let mut client = MaybeUninit::uninit();
    let mut request = MaybeUninit::uninit();
    assert_eq!(skipd_chat(Some(&mut request), None), 0);
    // SAFETY: the call succeeded.
    let mut chat = unsafe { Box::from_raw(request.assume_init()) };
    let cases = [
        (failed(|error| skipd_connect(null(), None, error)), "client"),
        (failed(|error| skipd_connect(bad.as_ptr(), Some(&mut client), error)), "path"),
        (failed(|error| skipd_connect_bus(null(), Some(&mut MaybeUninit::uninit()), error)), "address"),
        (failed(|error| skipd_status(None, Some(&mut MaybeUninit::uninit()), error)), "client"),
        (failed(|error| skipd_status(None, None, error)), "json"),
        (failed(|error| skipd_complete(null(), Some(&mut MaybeUninit::uninit()), error)), "prompt"),
        (failed(|error| skipd_complete_tokens(null(), 3, Some(&mut MaybeUninit::uninit()), error)), "tokens"),
        (failed(|error| skipd_request_message(None, c"user".as_ptr(), c"x".as_ptr(), error)), "request"),
        (failed(|error| skipd_request_message(Some(&mut chat), c"user".as_ptr(), bad.as_ptr(), error)), "text"),
        (failed(|error| skipd_request_message_json(Some(&mut chat), c"{".as_ptr(), error)), "message"),
        (failed(|error| skipd_request_set_number(Some(&mut chat), c"top_p".as_ptr(), f64::NAN, error)), "value"),
        (failed(|error| skipd_request_set_json(Some(&mut chat), c"tools".as_ptr(), c"[".as_ptr(), error)), "value"),
        (failed(|error| skipd_send(None, Some(&chat), Some(&mut MaybeUninit::uninit()), error)), "client"),
        (failed(|error| skipd_client_set_timeout(None, 5, error)), "client"),
        (failed(|error| skipd_connect_wait(bad.as_ptr(), 5, Some(&mut client), error)), "path"),
        (failed(|error| skipd_drain(None, error)), "client"),
        (failed(|error| skipd_update(None, None, error)), "json"),
        (failed(|error| skipd_apply_update(None, c"/x".as_ptr(), false, None, error)), "client"),
        (failed(|error| skipd_roll_back_update(None, None, error)), "client"),
        (failed(|error| skipd_stream_next(None, 0, Some(&mut MaybeUninit::uninit()), error)), "stream"),
        (failed(|error| skipd_stream_next(None, 0, None, error)), "event"),
    ];
    for ((code, message, param), argument) in cases {
        assert_eq!((code, param.as_deref()), (1, Some(argument)), "{message}");
    }
    // SAFETY: a failed connect leaves NULL behind.
    assert!(unsafe { client.assume_init() }.is_null());
    skipd_request_free(Some(chat));
}

#[test]
fn everything_may_be_freed_or_asked_as_null() {
    skipd_string_free(null_mut());
    skipd_error_free(None);
    skipd_client_free(None);
    skipd_request_free(None);
    skipd_stream_free(None);
    skipd_stream_cancel(None);
    skipd_tokens_free(null_mut(), 0);
    assert_eq!(skipd_error_code(None), 0);
    assert!(skipd_error_param(None).is_null() && skipd_stream_reason(None).is_null() && skipd_stream_usage(None).is_null());
    assert_eq!((string(skipd_error_message(None)), string(skipd_stream_text(None, None))), (String::new(), String::new()));
    assert_eq!(string(skipd_version()), env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_panic_is_an_error_and_an_absent_daemon_too() {
    let (code, message, _) = failed(|error| guarded(error, || panic!("on purpose")));
    assert_eq!((code, message.as_str()), (21, "a fault in the client library"));
    let (code, message, _) = failed(|error| skipd_connect(c"/nonexistent/s".as_ptr(), Some(&mut MaybeUninit::uninit()), error));
    assert!(code == 22 && message.contains("/nonexistent/s"), "{message}");
}
