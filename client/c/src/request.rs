//! Requests under construction; what they are made of is checked when they are sent.

use crate::boundary::{Out, given, guarded, json, numbers, out, text};
use crate::client::ClientHandle;
use crate::error::ErrorOut;
use crate::stream::StreamHandle;
use libc::c_char;
use serde_json::{Map, Number, Value};
use skip_client::Error;
use skip_client::protocol::{ChatMessage, GenerationOptions, Prompt};
use std::ffi::c_int;
use std::ptr::null_mut;

/// `skipd_request`.
#[derive(Debug)]
pub struct RequestHandle {
    input: Input,
    options: Map<String, Value>,
}

#[derive(Debug)]
enum Input {
    Chat(Vec<ChatMessage>),
    Text(Prompt),
}

fn hand_out(slot: &mut *mut RequestHandle, input: Input) {
    *slot = Box::into_raw(Box::new(RequestHandle { input, options: Map::new() }));
}

/// A conversation.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_chat(request: Out<'_, *mut RequestHandle>, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        hand_out(out("request", request, null_mut())?, Input::Chat(Vec::new()));
        Ok(())
    })
}

/// A text to be continued.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_complete(prompt: *const c_char, request: Out<'_, *mut RequestHandle>, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        let slot = out("request", request, null_mut())?;
        hand_out(slot, Input::Text(text("prompt", prompt)?.to_owned().into()));
        Ok(())
    })
}

/// Token ids to be continued.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_complete_tokens(
    tokens: *const u32,
    count: usize,
    request: Out<'_, *mut RequestHandle>,
    error: ErrorOut<'_>,
) -> c_int {
    guarded(error, || {
        let slot = out("request", request, null_mut())?;
        hand_out(slot, Input::Text(numbers("tokens", tokens, count)?.into()));
        Ok(())
    })
}

/// Frees a request.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_free(request: Option<Box<RequestHandle>>) {
    drop(request);
}

fn messages(request: Option<&mut RequestHandle>) -> Result<&mut Vec<ChatMessage>, Error> {
    match &mut given("request", request)?.input {
        Input::Chat(messages) => Ok(messages),
        Input::Text(_) => Err(Error::invalid("request", "is no conversation: skipd_chat makes one")),
    }
}

/// Adds a message.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_message(
    request: Option<&mut RequestHandle>,
    role: *const c_char,
    content: *const c_char,
    error: ErrorOut<'_>,
) -> c_int {
    guarded(error, || {
        let message = ChatMessage::new(text("role", role)?, text("text", content)?);
        messages(request)?.push(message);
        Ok(())
    })
}

/// Adds a message in OpenAI's shape.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_message_json(request: Option<&mut RequestHandle>, message: *const c_char, error: ErrorOut<'_>) -> c_int {
    guarded(error, || {
        let message = ChatMessage::list(Value::Array(vec![json("message", message)?]))?;
        messages(request)?.extend(message);
        Ok(())
    })
}

fn set(
    request: Option<&mut RequestHandle>,
    option: *const c_char,
    error: ErrorOut<'_>,
    value: impl FnOnce() -> Result<Value, Error>,
) -> c_int {
    guarded(error, || {
        let (request, option) = (given("request", request)?, text("option", option)?.to_owned());
        request.options.insert(option, value()?);
        Ok(())
    })
}

/// Sets a whole number.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_set_int(
    request: Option<&mut RequestHandle>,
    option: *const c_char,
    value: i64,
    error: ErrorOut<'_>,
) -> c_int {
    set(request, option, error, || Ok(value.into()))
}

/// Sets a number.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_set_number(
    request: Option<&mut RequestHandle>,
    option: *const c_char,
    value: f64,
    error: ErrorOut<'_>,
) -> c_int {
    set(request, option, error, || {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| Error::invalid("value", format!("{value} is no finite number")))
    })
}

/// Sets a flag. Any byte but 0 is true, whatever C's `bool` holds.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_set_bool(
    request: Option<&mut RequestHandle>,
    option: *const c_char,
    value: u8,
    error: ErrorOut<'_>,
) -> c_int {
    set(request, option, error, || Ok((value != 0).into()))
}

/// Sets a text.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_set_text(
    request: Option<&mut RequestHandle>,
    option: *const c_char,
    value: *const c_char,
    error: ErrorOut<'_>,
) -> c_int {
    set(request, option, error, || Ok(text("value", value)?.into()))
}

/// Sets what JSON text says.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_request_set_json(
    request: Option<&mut RequestHandle>,
    option: *const c_char,
    value: *const c_char,
    error: ErrorOut<'_>,
) -> c_int {
    set(request, option, error, || json("value", value))
}

/// Sends a request.
#[unsafe(no_mangle)]
pub extern "C" fn skipd_send(
    client: Option<&ClientHandle>,
    request: Option<&RequestHandle>,
    stream: Out<'_, *mut StreamHandle>,
    error: ErrorOut<'_>,
) -> c_int {
    guarded(error, || {
        let slot = out("stream", stream, null_mut())?;
        let (client, request) = (&given("client", client)?.0, given("request", request)?);
        let options = GenerationOptions::from_bus(request.options.clone())?;
        let generation = match &request.input {
            Input::Chat(messages) => client.chat().messages(messages.iter().cloned()).options(options).send()?,
            Input::Text(prompt) => client.complete(prompt.clone()).options(options).send()?,
        };
        *slot = Box::into_raw(Box::new(StreamHandle::new(generation)));
        Ok(())
    })
}
