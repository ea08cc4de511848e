//! Updates of tables over the air: JSON out, a bundle in.

use crate::boundary::{Out, bytes, text};
use crate::client::{ClientHandle, answered, told};
use crate::error::ErrorOut;
use libc::c_char;
use skip_client::protocol::ApplyUpdate;
use std::ffi::c_int;

/// What updates brought.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_update(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    told(client, json, error, |client| client.update())
}

/// Takes a bundle by its path.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_apply_update(
    client: Option<&ClientHandle>,
    path: *const c_char,
    relax_expiry: bool,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
) -> c_int {
    answered(client, json, error, |client| client.apply_update(&ApplyUpdate { path: text("path", path)?.to_owned(), relax_expiry }))
}

/// Takes a bundle's archive.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_apply_update_archive(
    client: Option<&ClientHandle>,
    archive: *const u8,
    size: usize,
    json: Out<'_, *mut c_char>,
    error: ErrorOut<'_>,
) -> c_int {
    answered(client, json, error, |client| client.apply_update_archive(bytes("archive", archive, size)?))
}

/// Ends a trial, or goes back.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_roll_back_update(client: Option<&ClientHandle>, json: Out<'_, *mut c_char>, error: ErrorOut<'_>) -> c_int {
    answered(client, json, error, |client| client.roll_back_update())
}
