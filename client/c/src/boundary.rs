//! What crosses the boundary: text in and out, results as codes, and no panic.

use crate::error::ErrorHandle;
use libc::c_char;
use skip_client::{Error, ErrorKind};
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Where a caller wants something put; None is NULL.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Runs the body of a function; its error, or a panic as an internal one, is a code, and handed out where wanted.
pub(crate) fn guarded(error: Out<'_, *mut ErrorHandle>, body: impl FnOnce() -> Result<(), Error>) -> c_int {
    let result = quietly(Err(Error::new(ErrorKind::Internal, "a fault in the client library")), body);
    let (code, handle) = match result {
        Ok(()) => (0, std::ptr::null_mut()),
        Err(failed) => (crate::error::code(failed.kind), Box::into_raw(Box::new(ErrorHandle::new(&failed)))),
    };
    match error {
        Some(out) => {
            out.write(handle);
        }
        // SAFETY: `handle` is null or came from `Box::into_raw` above, and nobody else has it.
        None if !handle.is_null() => drop(unsafe { Box::from_raw(handle) }),
        None => {}
    }
    code
}

/// Runs what has no error to give; a panic becomes `otherwise`.
pub(crate) fn quietly<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    // What a panic leaves half done is a handle, which stays safe to free.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// An argument that must be there.
pub(crate) fn given<T>(name: &str, argument: Option<T>) -> Result<T, Error> {
    argument.ok_or_else(|| Error::invalid(name, "is NULL"))
}

/// An out argument that must be there; it holds `empty` from here on.
pub(crate) fn out<'a, T>(name: &str, argument: Out<'a, T>, empty: T) -> Result<&'a mut T, Error> {
    Ok(given(name, argument)?.write(empty))
}

/// Text that must be there.
pub(crate) fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Error> {
    given(name, optional_text(name, pointer)?)
}

/// Text, or None for NULL.
pub(crate) fn optional_text<'a>(name: &str, pointer: *const c_char) -> Result<Option<&'a str>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the header asks for text that ends in NUL and stays during the call; it is not kept beyond.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Error::invalid(name, "is not UTF-8"))
}

/// JSON text that must be there.
pub(crate) fn json(name: &str, pointer: *const c_char) -> Result<serde_json::Value, Error> {
    serde_json::from_str(text(name, pointer)?).map_err(|error| Error::invalid(name, format!("is not JSON: {error}")))
}

/// A copy of `count` numbers.
pub(crate) fn numbers(name: &str, pointer: *const u32, count: usize) -> Result<Vec<u32>, Error> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(Vec::new()),
        (true, _) => Err(Error::invalid(name, "is NULL")),
        // SAFETY: the header asks for `count` readable numbers, which are copied before the call returns.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec()),
    }
}

/// A copy of `size` bytes.
pub(crate) fn bytes(name: &str, pointer: *const u8, size: usize) -> Result<Vec<u8>, Error> {
    match (pointer.is_null(), size) {
        (_, 0) => Ok(Vec::new()),
        (true, _) => Err(Error::invalid(name, "is NULL")),
        // SAFETY: the header asks for `size` readable bytes, which are copied before the call returns.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, size) }.to_vec()),
    }
}

/// A copy of `bytes` with a closing NUL, for [`skipd_string_free`].
pub(crate) fn allocated(bytes: &[u8]) -> Result<*mut c_char, Error> {
    let no_memory = || Error::new(ErrorKind::Internal, "no memory for the text");
    // SAFETY: malloc has no precondition.
    let copy = unsafe { libc::malloc(bytes.len() + 1) }.cast::<u8>();
    if copy.is_null() {
        return Err(no_memory());
    }
    // SAFETY: `copy` has room for the bytes and one more, and is new, so that nothing overlaps.
    unsafe {
        copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        copy.add(bytes.len()).write(0);
    }
    Ok(copy.cast())
}

/// The JSON of a value, for [`skipd_string_free`].
pub(crate) fn allocated_json(value: &impl serde::Serialize) -> Result<*mut c_char, Error> {
    allocated(&serde_json::to_vec(value).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?)
}

/// Frees text that was given out.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_string_free(text: *mut c_char) {
    // SAFETY: null, or from `allocated`, which the header asks for.
    unsafe { libc::free(text.cast()) }
}
