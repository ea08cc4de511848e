//! Connecting, and what is asked of the daemon beside generating.

use crate::boundary::{Out, allocated_json, given, guarded, json, optional_text, out, quietly, text};
use crate::error::ErrorOut;
use libc::c_char;
use serde::Serialize;
use skip_client::Error;
use skip_client::blocking::Client;
use skip_client::protocol::{Phase, SetTableOptions};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

/// `skipd_client`.
#[derive(Debug)]
pub struct ClientHandle(pub(crate) Client);

fn hand_out(slot: &mut *mut ClientHandle, client: Client) {
    *slot = Box::into_raw(Box::new(ClientHandle(client)));
}

/// Connects to the socket.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_connect(path: *const c_char, client: Out<'_, *mut ClientHandle>, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        let slot = out("client", client, null_mut())?;
        let found = match optional_text("path", path)? {
            Some(path) => Client::connect_socket(path)?,
            None => Client::connect()?,
        };
        hand_out(slot, found);
        Ok(())
    })
}

/// Connects over D-Bus.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_connect_bus(address: *const c_char, client: Out<'_, *mut ClientHandle>, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        let slot = out("client", client, null_mut())?;
        hand_out(slot, Client::connect_bus(text("address", address)?)?);
        Ok(())
    })
}

/// Connects to the socket of a daemon that may not be there yet, and waits until requests are served.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_connect_wait(
    path: *const c_char,
    timeout_ms: u32,
    client: Out<'_, *mut ClientHandle>,
    error: ErrorOut<'_>,
) -> c_int {
    guarded(error, || {
        let slot = out("client", client, null_mut())?;
        let timeout = Duration::from_millis(timeout_ms.into());
        let found = match optional_text("path", path)? {
            Some(path) => Client::connect_socket_wait(path, timeout)?,
            None => Client::connect_wait(timeout)?,
        };
        hand_out(slot, found);
        Ok(())
    })
}

/// How long calls wait.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_client_set_timeout(client: Option<&mut ClientHandle>, timeout_ms: c_int, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        let client = &mut given("client", client)?.0;
        *client = client.clone().with_timeout(u64::try_from(timeout_ms).ok().map(Duration::from_millis));
        Ok(())
    })
}

/// Frees a client.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_client_free(client: Option<Box<ClientHandle>>) {
    quietly((), || drop(client));
}

/// Waits until requests are served.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_wait_ready(client: Option<&ClientHandle>, timeout_ms: u32, error: ErrorOut<'_>) -> c_int {
    guarded(error, || given("client", client)?.0.wait_ready(Duration::from_millis(timeout_ms.into())))
}

/// Asks for something and gives its JSON where it is wanted.
pub(crate) fn answered<T: Serialize>(
    client: Option<&ClientHandle>,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
    ask: impl FnOnce(&Client) -> Result<T, Error>,
) -> c_int {
    guarded(error, || {
        let slot = json.map(|slot| slot.write(null_mut()));
        let answer = ask(&given("client", client)?.0)?;
        if let Some(slot) = slot {
            *slot = allocated_json(&answer)?;
        }
        Ok(())
    })
}

/// The same where the JSON is all there is.
pub(crate) fn told<T: Serialize>(
    client: Option<&ClientHandle>,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
    ask: impl FnOnce(&Client) -> Result<T, Error>,
) -> c_int {
    match json {
        Some(json) => answered(client, Some(json), error, ask),
        None => guarded(error, || Err(Error::invalid("json", "is NULL"))),
    }
}

/// Status.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_status(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, Client::status)
}

/// Both phases' tables.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_tables(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, Client::tables)
}

/// The checkpoint's tiers.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_tiers(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, Client::tiers)
}

/// Puts a table in force.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_set_table(
    client: Option<&ClientHandle>,
    phase: *const c_char,
    selector: *const c_char,
    options: *const c_char,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
) -> c_int {
    answered(client, json, error, |client| {
        let phase = text("phase", phase)?;
        let known = Phase::ALL.into_iter().find(|known| known.name() == phase);
        let phase = known.ok_or_else(|| Error::invalid("phase", format!("{phase:?} is neither prefill nor decode")))?;
        client.set_table(phase, text("selector", selector)?.parse()?, table_options(options)?)
    })
}

fn table_options(options: *const c_char) -> Result<SetTableOptions, Error> {
    if options.is_null() {
        return Ok(SetTableOptions::default());
    }
    match json("options", options)? {
        serde_json::Value::Object(options) => SetTableOptions::from_object(options),
        _ => Err(Error::invalid("options", "must be a JSON object")),
    }
}

/// Keeps tables on trial.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_confirm(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    answered(client, json, error, Client::confirm)
}

/// Goes back to the tables before those on trial.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_revert(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    answered(client, json, error, Client::revert)
}

/// Reads all table files again.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_reload(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    answered(client, json, error, Client::reload)
}

/// The token ids of a text.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_tokenize(
    client: Option<&ClientHandle>,
    text: *const c_char,
    tokens: Out<'_, *mut u32>,
    count: Out<'_, usize>,
    error: ErrorOut<'_>,
) -> c_int {
    guarded(error, || {
        let (slot, count) = (out("tokens", tokens, null_mut())?, out("count", count, 0)?);
        let ids = given("client", client)?.0.tokenize(crate::boundary::text("text", text)?)?;
        *count = ids.len();
        *slot = Box::into_raw(ids.into_boxed_slice()).cast();
        Ok(())
    })
}

/// Frees token ids.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_tokens_free(tokens: *mut u32, count: usize) {
    if !tokens.is_null() {
        // SAFETY: pointer and count came from `skipd_tokenize`, as the header asks, which gave a boxed slice of that length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(tokens, count)) });
    }
}
