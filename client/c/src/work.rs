//! Pinned prefixes, jobs, the requests under way, and draining: JSON in and out.

use crate::boundary::{Out, given, guarded, json, optional_text, text};
use crate::client::{ClientHandle, answered, told};
use crate::error::ErrorOut;
use libc::c_char;
use serde_json::{Map, Value};
use skip_client::Error;
use skip_client::protocol::PinPrefix;
use std::ffi::c_int;

/// The pinned prefixes.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_prefixes(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, |client| client.prefixes())
}

/// Pins a prefix.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_pin_prefix(
    client: Option<&ClientHandle>,
    prefix: *const c_char,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
) -> c_int {
    answered(client, json, error, |client| {
        let prefix = text("prefix", prefix)?;
        client.pin_prefix(&PinPrefix::from_json(prefix.as_bytes())?)
    })
}

/// Drops a pinned prefix.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_drop_prefix(
    client: Option<&ClientHandle>,
    name: *const c_char,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
) -> c_int {
    answered(client, json, error, |client| client.drop_prefix(text("name", name)?))
}

/// The requests under way.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_activity(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, |client| client.activity())
}

/// All jobs.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_jobs(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, |client| client.jobs())
}

/// One job.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_job(client: Option<&ClientHandle>, id: *const c_char, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, |client| client.job(text("id", id)?))
}

/// Starts a job.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_start_job(
    client: Option<&ClientHandle>,
    kind: *const c_char,
    options: *const c_char,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
) -> c_int {
    answered(client, json, error, |client| client.start_job(text("kind", kind)?, object(options)?))
}

fn object(options: *const c_char) -> Result<Map<String, Value>, Error> {
    if optional_text("options", options)?.is_none() {
        return Ok(Map::new());
    }
    match json("options", options)? {
        Value::Object(options) => Ok(options),
        _ => Err(Error::invalid("options", "must be a JSON object")),
    }
}

/// Ends a job.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_cancel_job(client: Option<&ClientHandle>, id: *const c_char, error: ErrorOut<'_>) -> c_int {
    guarded(error, || given("client", client)?.0.cancel_job(text("id", id)?))
}

/// Lets running requests finish and takes no new ones.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_drain(client: Option<&ClientHandle>, error: ErrorOut<'_>) -> c_int {
    guarded(error, || given("client", client)?.0.drain())
}
