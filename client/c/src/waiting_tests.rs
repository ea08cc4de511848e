//! The C functions against a daemon that accepts and never answers, and over a restart of one that does.

use super::*;
use std::ffi::{CStr, CString, c_int};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const UNREACHABLE: c_int = 22;
/// Far below the usual limit of 30 seconds.
const SOON: Duration = Duration::from_secs(10);

/// A socket that somebody listens at: silent where there is no body to answer with. Dropped, it is gone as a killed daemon is.
struct Fake {
    path: PathBuf,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Fake {
    fn start(path: &Path, body: Option<&'static str>) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let thread = std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::Acquire) {
                    break;
                }
                let mut stream = stream;
                if let Some(body) = body {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
                } else {
                    held.push(stream);
                }
            }
        });
        Self { path: path.to_owned(), ended, thread: Some(thread) }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The listener looks up.
        let _ = std::os::unix::net::UnixStream::connect(&self.path);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn place() -> (PathBuf, CString) {
    let folder = std::env::temp_dir().join(format!("skipd-c-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("skipd.sock");
    let _ = std::fs::remove_file(&path);
    (path.clone(), CString::new(path.to_str().unwrap()).unwrap())
}

/// What a call gave through its first out argument.
fn given<T>(empty: T, call: impl FnOnce(crate::boundary::Out<'_, T>) -> c_int) -> (c_int, T) {
    let mut slot = MaybeUninit::new(empty);
    let code = call(Some(&mut slot));
    // SAFETY: initialised above; a call only ever writes a value over it.
    (code, unsafe { slot.assume_init() })
}

fn boxed<T>((code, handle): (c_int, *mut T)) -> Box<T> {
    assert!(code == 0 && !handle.is_null(), "{code}");
    // SAFETY: not null, and the library's own, given away by the call.
    unsafe { Box::from_raw(handle) }
}

#[test]
fn no_function_waits_for_a_daemon_that_is_silent() {
    let (path, name) = place();
    let _fake = Fake::start(&path, None);
    let mut client = boxed(given(null_mut(), |slot| skipd_connect(name.as_ptr(), slot, None)));
    assert_eq!(skipd_client_set_timeout(Some(&mut client), 50, None), 0);
    let request = boxed(given(null_mut(), |slot| skipd_complete(c"a".as_ptr(), slot, None)));
    let began = Instant::now();
    let (code, stream) = given(null_mut(), |slot| skipd_send(Some(&client), Some(&request), slot, None));
    assert!(code == UNREACHABLE && stream.is_null() && skipd_code_away(code), "{code}");
    type Told = extern "C" fn(Option<&ClientHandle>, crate::boundary::Out<'_, *mut libc::c_char>, ErrorOut<'_>) -> c_int;
    let functions: [Told; 9] =
        [skipd_status, skipd_tables, skipd_tiers, skipd_confirm, skipd_revert, skipd_reload, skipd_prefixes, skipd_activity, skipd_jobs];
    for (i, function) in functions.into_iter().enumerate() {
        let (code, json) = given(null_mut(), |slot| function(Some(&client), slot, None));
        assert!(code == UNREACHABLE && json.is_null(), "function {i}: {code}");
    }
    let pin = c"{\"prompt\": \"a\"}".as_ptr();
    assert_eq!(skipd_pin_prefix(Some(&client), pin, None, None), UNREACHABLE);
    assert_eq!(skipd_drop_prefix(Some(&client), c"a".as_ptr(), None, None), UNREACHABLE);
    assert_eq!(skipd_set_table(Some(&client), c"prefill".as_ptr(), c"none".as_ptr(), null(), None, None), UNREACHABLE);
    assert_eq!(skipd_start_job(Some(&client), c"qualify".as_ptr(), null(), None, None), UNREACHABLE);
    assert_eq!(skipd_cancel_job(Some(&client), c"1".as_ptr(), None), UNREACHABLE);
    assert_eq!(skipd_drain(Some(&client), None), UNREACHABLE);
    assert_eq!(skipd_wait_ready(Some(&client), 50, None), UNREACHABLE);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    skipd_request_free(Some(request));
    skipd_client_free(Some(client));
}

#[test]
fn a_client_begins_before_its_daemon_and_stays_good_over_a_restart() {
    let (path, name) = place();
    assert_eq!(given(null_mut(), |slot| skipd_connect_wait(name.as_ptr(), 20, slot, None)).0, UNREACHABLE);
    let later = path.clone();
    let coming = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        Fake::start(&later, Some(r#"{"state":"ready","progress":1}"#))
    });
    let client = boxed(given(null_mut(), |slot| skipd_connect_wait(name.as_ptr(), 10_000, slot, None)));
    drop(coming.join().unwrap());
    assert_eq!(skipd_wait_ready(Some(&client), 20, None), UNREACHABLE);
    let again = Fake::start(&path, Some(r#"{"state":"ready","progress":1,"jobs":[]}"#));
    assert_eq!(skipd_wait_ready(Some(&client), 10_000, None), 0);
    let (code, json) = given(null_mut(), |slot| skipd_jobs(Some(&client), slot, None));
    assert_eq!(code, 0);
    // SAFETY: the library's own text, not null where the call succeeded.
    assert_eq!(unsafe { CStr::from_ptr(json) }, c"{\"jobs\":[]}");
    skipd_string_free(json);
    skipd_client_free(Some(client));
    drop(again);
    let _ = std::fs::remove_dir(path.parent().unwrap());
}
