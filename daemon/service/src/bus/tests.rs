//! The daemon on a real private bus, seen by zbus, busctl and gdbus. Its model says the alphabet.

use super::private::PrivateBus;
use super::{JoinError, join};
use crate::config::Bus;
use crate::lifecycle::Stage;
use crate::load::{self, LoadError};
use crate::state::{Daemon, Model};
use crate::testing;
use futures_util::StreamExt;
use skip_client::ErrorKind;
use skip_client::protocol::names::{
    BUS_NAME, JOB_INTERFACE, JOBS_INTERFACE, MANAGER_INTERFACE, OBJECT_PATH, REQUEST_INTERFACE, REQUEST_PATH_PREFIX, TABLES_INTERFACE,
};
use skip_client::protocol::{FinishReason, StreamEvent};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Variant};
use zbus::{Connection, MatchRule, Message, MessageStream};

/// What the package's bus policy does not name, nobody can call on a device.
#[test]
fn the_bus_policy_lets_everybody_call_every_interface() {
    let policy = include_str!("../../../../systemd/org.skipd.Skipd1.conf");
    let served =
        include_str!("../../dbus/org.skipd.Skipd1.xml").split("<interface name=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let served: Vec<&str> = served.collect();
    assert!(served.len() > 5, "{served:?}");
    for interface in served {
        assert!(policy.contains(&format!("send_interface=\"{interface}\"")), "{interface}");
    }
}

/// A daemon on a bus of its own.
struct World {
    bus: PrivateBus,
    daemon: Arc<Daemon>,
    stop: watch::Sender<bool>,
    staying: tokio::task::JoinHandle<()>,
}

fn daemon_on(address: String) -> Arc<Daemon> {
    let mut config = testing::config(std::path::Path::new("/nowhere/socket"));
    config.bus = Bus::Address(address);
    // A group that exists everywhere and that nobody is in by chance.
    config.group = "games".into();
    Arc::new(Daemon::new(config, Instant::now()))
}

impl World {
    async fn new(step: Duration) -> Self {
        Self::of(testing::alphabet(step)).await
    }

    async fn of(model: Model) -> Self {
        let bus = PrivateBus::start();
        let daemon = daemon_on(bus.address());
        let joined = join(&daemon).await.unwrap().unwrap();
        let (stop, stopping) = watch::channel(false);
        let staying = tokio::spawn(joined.stay(stopping));
        tokio::spawn(load::run(daemon.clone(), move |_| Ok::<_, LoadError>(model)));
        daemon.life.watch().wait_for(|stage| *stage == Stage::Ready).await.unwrap();
        Self { bus, daemon, stop, staying }
    }

    async fn client(&self) -> Connection {
        zbus::connection::Builder::address(self.bus.address().as_str()).build().await.unwrap()
    }

    async fn idle(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        let engine = &self.daemon.model().unwrap().engine;
        while engine.status().running > 0 || engine.status().queued > 0 {
            assert!(Instant::now() < end, "the request goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// `busctl call` on the main object; standard output or error.
    async fn busctl(&self, args: &[&str]) -> Result<String, String> {
        self.bus.run(&[&["busctl", "--address=BUS"], args].concat()).await
    }
}

type Options = HashMap<&'static str, Variant<'static>>;

fn options(max_tokens: u32) -> Options {
    HashMap::from([("max_tokens", Variant::new(max_tokens))])
}

async fn call<B>(client: &Connection, interface: &str, method: &str, body: &B) -> Result<Message, zbus::Error>
where
    B: serde::Serialize + zbus::DynamicType,
{
    client.call_method(Some(BUS_NAME), OBJECT_PATH, Some(interface), method, body).await
}

async fn generate(client: &Connection, options: Options) -> Result<(OwnedObjectPath, OwnedFd), zbus::Error> {
    let reply = call(client, MANAGER_INTERFACE, "Generate", &("hi", options)).await?;
    let (path, fd): (OwnedObjectPath, zbus::OwnedFd) = reply.body().deserialize()?;
    Ok((path, fd.into()))
}

fn kind(error: &zbus::Error) -> ErrorKind {
    match error {
        zbus::Error::MethodError(name, ..) => ErrorKind::from_dbus_name(name.as_str()).unwrap_or_else(|| panic!("{error}")),
        _ => panic!("{error}"),
    }
}

/// Reads a stream to its end.
async fn events(fd: OwnedFd) -> Vec<StreamEvent> {
    let reading = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        std::fs::File::from(fd).read_to_string(&mut text).unwrap();
        text
    });
    let text = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the stream ends").unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(events: &[StreamEvent]) -> String {
    let text = |event: &StreamEvent| match event {
        StreamEvent::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

fn end(events: &[StreamEvent]) -> FinishReason {
    let ends: Vec<_> = events.iter().filter(|event| matches!(event, StreamEvent::Finished { .. })).collect();
    assert_eq!(ends.len(), 1, "exactly one terminal event");
    match events.last() {
        Some(StreamEvent::Finished { reason, usage, .. }) => {
            assert_eq!(usage.prompt_tokens, 2);
            *reason
        }
        other => panic!("{other:?} is last"),
    }
}

async fn finished_signals(client: &Connection) -> MessageStream {
    let rule = MatchRule::builder().msg_type(zbus::message::Type::Signal).interface(REQUEST_INTERFACE).build().unwrap();
    MessageStream::for_match_rule(rule, client, None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_is_answered_on_the_stream_and_by_a_signal_on_a_path_known_beforehand() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let mut signals = finished_signals(&client).await;
    let mut wanted = options(3);
    wanted.insert("handle_token", Variant::new("mine"));
    let (path, stream) = generate(&client, wanted).await.unwrap();
    let sender = client.unique_name().unwrap().trim_start_matches(':').replace('.', "_");
    assert_eq!(path.as_str(), format!("/org/skipd/Skipd1/request/{sender}/mine"));
    let events = events(stream).await;
    assert_eq!((text(&events).as_str(), end(&events)), ("cde", FinishReason::Length));

    let signal = tokio::time::timeout(Duration::from_secs(5), signals.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(signal.header().path().unwrap().as_str(), path.as_str());
    let body = signal.body();
    let (reason, usage): (String, HashMap<String, OwnedVariant>) = body.deserialize().unwrap();
    assert_eq!((reason.as_str(), &usage["completion_tokens"]), ("length", &OwnedVariant::try_from(Variant::new(3i64)).unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_many_bytes_are_whole_in_every_line() {
    for (script, stop, shown) in testing::SCRIPTS {
        let world = World::of(testing::says(script)).await;
        let client = world.client().await;
        let mut wanted = options(500);
        wanted.extend(stop.map(|stop| ("stop", Variant::new(stop))));
        let (_, stream) = generate(&client, wanted).await.unwrap();
        let events = events(stream).await;
        assert_eq!((text(&events).as_str(), end(&events)), (shown, FinishReason::Stop));
        let Some(StreamEvent::Finished { usage, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(usage.completion_tokens as usize, testing::tokens_of(stop, shown), "{shown}");
        assert!(events.len() >= 2 && !text(&events).contains('\u{fffd}'));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_and_token_ids() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let messages = r#"[{"role": "user", "content": "hi"}]"#;
    let reply = call(&client, MANAGER_INTERFACE, "Chat", &(messages, options(2))).await.unwrap();
    let (_, stream): (OwnedObjectPath, zbus::OwnedFd) = reply.body().deserialize().unwrap();
    assert_eq!(text(&events(stream.into()).await), "ij");
    let reply = call(&client, MANAGER_INTERFACE, "Tokenize", &("ab",)).await.unwrap();
    assert_eq!(reply.body().deserialize::<Vec<u32>>().unwrap(), [97, 98]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_prompt_comes_in_a_sealed_memory_file() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let mut file = std::fs::File::from(memfd_create("prompt", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all(b"hi").unwrap();
    let from = |file: &std::fs::File| zbus::Fd::from(OwnedFd::from(file.try_clone().unwrap()));
    let refused = call(&client, MANAGER_INTERFACE, "GenerateFd", &(from(&file), options(1))).await.unwrap_err();
    assert_eq!(kind(&refused), ErrorKind::InvalidRequest);
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).unwrap();
    let reply = call(&client, MANAGER_INTERFACE, "GenerateFd", &(from(&file), options(1))).await.unwrap();
    let (_, stream): (OwnedObjectPath, zbus::OwnedFd) = reply.body().deserialize().unwrap();
    assert_eq!(text(&events(stream.into()).await), "c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_typed_errors_and_leave_nothing_behind() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let with = |key: &'static str, value: Variant<'static>| HashMap::from([(key, value)]);
    for (prompt, options, expected) in [
        ("", Options::new(), ErrorKind::InvalidRequest),
        ("hi", with("max_tokens", Variant::new(9999)), ErrorKind::ContextOverflow),
        ("hi", with("max_tokens", Variant::new("many")), ErrorKind::InvalidRequest),
        ("hi", with("colour", Variant::new("red")), ErrorKind::InvalidRequest),
        ("hi", with("model", Variant::new("other")), ErrorKind::ModelNotFound),
        ("hi", with("handle_token", Variant::new("a/b")), ErrorKind::InvalidRequest),
        ("hi", with("handle_token", Variant::new(1)), ErrorKind::InvalidRequest),
        ("hi", with("error_details", Variant::new(1)), ErrorKind::InvalidRequest),
        ("hi", with("temperature", Variant::new(f64::NAN)), ErrorKind::InvalidRequest),
        ("hi", with("priority", Variant::new("urgent")), ErrorKind::InvalidRequest),
    ] {
        let error = call(&client, MANAGER_INTERFACE, "Generate", &(prompt, options)).await.unwrap_err();
        assert_eq!(kind(&error), expected, "{error}");
    }
    let error = call(&client, MANAGER_INTERFACE, "Chat", &("[{]", Options::new())).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::InvalidRequest);
    let error = call(&client, TABLES_INTERFACE, "SetTable", &("sideways", "none", Options::new())).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::NotFound);
    let error = call(&client, TABLES_INTERFACE, "SetTable", &("prefill", "50%", Options::new())).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::TableRefused);
    let error = call(&client, TABLES_INTERFACE, "Confirm", &()).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::NothingPending);
    assert!(generate(&client, options(1)).await.is_ok(), "the daemon lives on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_words_alone_unless_field_and_numbers_are_asked_for() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let mut wanted = options(9999);
    let plain = call(&client, MANAGER_INTERFACE, "Generate", &("hi", wanted.clone())).await.unwrap_err();
    wanted.insert("error_details", Variant::Bool(true));
    let detailed = call(&client, MANAGER_INTERFACE, "Generate", &("hi", wanted)).await.unwrap_err();
    let body = |error: zbus::Error| match error {
        zbus::Error::MethodError(_, words, reply) => (words, reply),
        other => panic!("{other}"),
    };
    let (plain, plain_reply) = body(plain);
    let (words, reply) = body(detailed);
    assert_eq!((plain_reply.body().signature().to_string(), plain), ("s".into(), words), "GLib shows words that are alone");
    let (_, fields): (String, HashMap<String, OwnedVariant>) = reply.body().deserialize().unwrap();
    let fields = skip_client::variant::from_dict(&fields).unwrap();
    assert_eq!(fields["details"]["context_length"], 4096);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_ids_are_a_prompt_too() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let reply = call(&client, MANAGER_INTERFACE, "GenerateTokens", &(vec![104u32, 105], options(3))).await.unwrap();
    let (_, stream): (OwnedObjectPath, zbus::OwnedFd) = reply.body().deserialize().unwrap();
    assert_eq!(text(&events(stream.into()).await), "cde");
    for wrong in [vec![], vec![256u32]] {
        let error = call(&client, MANAGER_INTERFACE, "GenerateTokens", &(wrong, options(3))).await.unwrap_err();
        assert_eq!(kind(&error), ErrorKind::InvalidRequest);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_is_the_one_of_the_socket() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let reply = call(&client, MANAGER_INTERFACE, "Status", &()).await.unwrap();
    let dict: HashMap<String, OwnedVariant> = reply.body().deserialize().unwrap();
    let object = skip_client::variant::from_dict(&dict).unwrap();
    let mut told: skip_client::protocol::Status = serde_json::from_value(object.into()).unwrap();
    let mut report = crate::status::report(&world.daemon);
    (told.uptime_ms, report.uptime_ms) = (0, 0);
    assert_eq!(told, report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_on_the_bus_is_listed_by_the_end_of_its_path() {
    let world = World::new(Duration::from_millis(10)).await;
    let client = world.client().await;
    let (path, _stream) = generate(&client, options(2000)).await.unwrap();
    let reply = call(&client, MANAGER_INTERFACE, "Requests", &()).await.unwrap();
    let dict: HashMap<String, OwnedVariant> = reply.body().deserialize().unwrap();
    let object = skip_client::variant::from_dict(&dict).unwrap();
    let told: skip_client::protocol::Activity = serde_json::from_value(object.into()).unwrap();
    let names: Vec<String> = told.requests.iter().map(|request| format!("{REQUEST_PATH_PREFIX}/{}", request.id)).collect();
    assert_eq!(names, [path.as_str()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_ends_a_request_with_its_counts() {
    let world = World::new(Duration::from_millis(10)).await;
    let client = world.client().await;
    let mut signals = finished_signals(&client).await;
    let (path, stream) = generate(&client, options(2000)).await.unwrap();
    let stranger = world.client().await;
    let close = |client: Connection| {
        let path = path.clone();
        async move { client.call_method(Some(BUS_NAME), &path, Some(REQUEST_INTERFACE), "Close", &()).await }
    };
    close(client.clone()).await.unwrap();
    assert_eq!(end(&events(stream).await), FinishReason::Cancelled);
    let signal = tokio::time::timeout(Duration::from_secs(5), signals.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(signal.body().deserialize::<(String, HashMap<String, OwnedVariant>)>().unwrap().0, "cancelled");
    world.idle().await;
    // The object goes right after its signal.
    let end = Instant::now() + Duration::from_secs(5);
    while close(stranger.clone()).await.is_ok() {
        assert!(Instant::now() < end, "the object stays");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_up_the_stream_cancels_before_the_next_token_is_due() {
    let world = World::new(Duration::from_millis(400)).await;
    let client = world.client().await;
    let mut signals = finished_signals(&client).await;
    let (_, stream) = generate(&client, options(2000)).await.unwrap();
    drop(stream);
    let signal = tokio::time::timeout(Duration::from_secs(5), signals.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(signal.body().deserialize::<(String, HashMap<String, OwnedVariant>)>().unwrap().0, "cancelled");
    world.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_the_bus_cancels() {
    let world = World::new(Duration::from_millis(10)).await;
    let client = world.client().await;
    let (_, stream) = generate(&client, options(2000)).await.unwrap();
    client.close().await.unwrap();
    world.idle().await;
    assert_eq!(end(&events(stream).await), FinishReason::Cancelled, "who left the bus may still hold the stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_loses_its_own_request_only() {
    let world = World::new(Duration::ZERO).await;
    let (lazy, eager) = (world.client().await, world.client().await);
    let (_, unread) = generate(&lazy, options(4000)).await.unwrap();
    let (_, stream) = generate(&eager, options(50)).await.unwrap();
    assert_eq!(end(&events(stream).await), FinishReason::Length);
    world.idle().await;
    // It was cut off; what it did not read is still there, and so is the end.
    assert!(matches!(end(&events(unread).await), FinishReason::SlowReader | FinishReason::Length));
}

/// The first signal that `property` changed: that the daemon became ready is a change too, and may be told after a client has begun to listen.
async fn change_of(signals: &mut MessageStream, property: &str) -> HashMap<String, OwnedVariant> {
    let told = async {
        loop {
            let signal = signals.next().await.unwrap().unwrap();
            let (_, changed, _): (String, HashMap<String, OwnedVariant>, Vec<String>) = signal.body().deserialize().unwrap();
            if changed.contains_key(property) {
                return changed;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), told).await.unwrap_or_else(|_| panic!("{property} changes"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_set_by_busctl_shown_by_gdbus_and_changes_are_signalled() {
    let world = World::new(Duration::ZERO).await;
    let client = world.client().await;
    let signal = MatchRule::builder().msg_type(zbus::message::Type::Signal);
    let rule = signal.member("PropertiesChanged").arg(0, TABLES_INTERFACE).build().unwrap();
    let mut changes = MessageStream::for_match_rule(rule, &client, None).await.unwrap();
    let tables = ["call", BUS_NAME, OBJECT_PATH, TABLES_INTERFACE];
    let set = ["SetTable", "ssa{sv}", "prefill", "[[1024, 833.6]]", "1", "confirm_within", "u", "60"];
    world.busctl(&[&tables[..], &set[..]].concat()).await.unwrap();
    let changed = change_of(&mut changes, "PrefillTable").await;
    assert!(changed.contains_key("Pending") && !changed.contains_key("DecodeTable"), "{changed:?}");

    let get = ["get-property", BUS_NAME, OBJECT_PATH, TABLES_INTERFACE];
    assert_eq!(world.busctl(&[&get[..], &["PrefillDecidedBy"]].concat()).await.unwrap(), "s \"set-table\"\n");
    assert!(world.busctl(&[&get[..], &["Pending"]].concat()).await.unwrap().contains("\"prefill\""));
    let method = format!("{TABLES_INTERFACE}.Show");
    let show = ["gdbus", "call", "--address", "BUS", "-d", BUS_NAME, "-o", OBJECT_PATH, "-m", &method];
    let shown = world.bus.run(&show).await.unwrap();
    assert!(shown.contains("'decided_by': <'set-table'>") && shown.contains("833.5") || shown.contains("833.6"), "{shown}");

    world.busctl(&[&tables[..], &["Revert"]].concat()).await.unwrap();
    assert_eq!(world.busctl(&[&get[..], &["PrefillTable"]].concat()).await.unwrap(), "a(ud) 0\n");
    let refused = world.busctl(&[&tables[..], &["SetTable", "ssa{sv}", "prefill", "[[2, 1], [1, 1]]", "0"]].concat()).await.unwrap_err();
    assert!(refused.contains("row 1: length 1 does not come after 2"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outsiders_see_the_state_members_generate_and_neither_sets_tables() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let world = World::new(Duration::ZERO).await;
    let as_user = |groups: &'static str, args: &'static [&'static str]| {
        let user = ["setpriv", "--reuid=nobody", "--regid=nogroup", groups, "busctl", "--address=BUS"];
        let command: Vec<&str> = user.iter().chain(args).copied().collect();
        let world = &world;
        async move { world.bus.run(&command).await }
    };
    let state = &["get-property", BUS_NAME, OBJECT_PATH, MANAGER_INTERFACE, "State"];
    let generate = &["call", BUS_NAME, OBJECT_PATH, MANAGER_INTERFACE, "Generate", "sa{sv}", "hi", "1", "max_tokens", "u", "2"];
    let set = &["call", BUS_NAME, OBJECT_PATH, TABLES_INTERFACE, "SetTable", "ssa{sv}", "prefill", "none", "0"];
    let (outsider, member) = ("--clear-groups", "--groups=games");
    for who in [outsider, member] {
        assert_eq!(as_user(who, state).await.unwrap(), "s \"ready\"\n");
        let refused = as_user(who, set).await.unwrap_err();
        assert!(refused.contains("uid 65534 may not control skipd"), "{refused}");
    }
    let refused = as_user(outsider, generate).await.unwrap_err();
    assert!(refused.contains("members of group games may"), "{refused}");
    let started = as_user(member, generate).await.unwrap();
    assert!(started.starts_with("oh \"/org/skipd/Skipd1/request/"), "{started}");

    // How far a job is may everybody see; what it read or found may not.
    let client = world.client().await;
    let none: Options = HashMap::new();
    let job: OwnedObjectPath = call(&client, JOBS_INTERFACE, "Start", &("qualify", none)).await.unwrap().body().deserialize().unwrap();
    let show = &["call", BUS_NAME, "/org/skipd/Skipd1/job/1", JOB_INTERFACE, "Show"];
    let list = &["call", BUS_NAME, OBJECT_PATH, JOBS_INTERFACE, "List"];
    let result = &["get-property", BUS_NAME, "/org/skipd/Skipd1/job/1", JOB_INTERFACE, "Result"];
    assert_eq!(job.as_str(), show[2]);
    let failed = async {
        while !world.busctl(show).await.unwrap().contains("\"failed\"") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), failed).await.expect("the job ends");
    assert!(world.busctl(show).await.unwrap().contains("\"error\""), "its owner may see why");
    for who in [outsider, member] {
        for asked in [show, list] {
            let shown = as_user(who, asked).await.unwrap();
            assert!(
                shown.contains("\"failed\"") && shown.contains("\"unsupported_parameter\"") && !shown.contains("\"error\" s"),
                "{shown}"
            );
        }
        assert_eq!(as_user(who, result).await.unwrap(), "a{sv} 1 \"error_code\" s \"unsupported_parameter\"\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_an_object_that_tells_how_it_ends() {
    let mut world = World::new(Duration::ZERO).await;
    // Where there is a driver, it has no kernel files to try.
    let client = world.client().await;
    let rule = MatchRule::builder().msg_type(zbus::message::Type::Signal).interface("org.freedesktop.DBus.Properties");
    let mut signals = MessageStream::for_match_rule(rule.build().unwrap(), &client, None).await.unwrap();
    let none = || -> Options { HashMap::new() };
    let job: OwnedObjectPath = call(&client, JOBS_INTERFACE, "Start", &("qualify", none())).await.unwrap().body().deserialize().unwrap();
    assert_eq!(job.as_str(), "/org/skipd/Skipd1/job/1");
    let ended = async {
        loop {
            let signal = signals.next().await.unwrap().unwrap();
            let from_job = signal.header().path().is_some_and(|path| path.as_str() == job.as_str());
            let (_, changed, others): (String, HashMap<String, OwnedVariant>, Vec<String>) = signal.body().deserialize().unwrap();
            if from_job && changed.get("State").is_some_and(|state| matches!(&**state, Variant::Str(s) if s.as_str() == "failed")) {
                return (changed, others);
            }
        }
    };
    let (changed, others) = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the job ends");
    // Everybody hears the signal, and not everybody may see what is in these.
    assert!(others.contains(&"Result".into()) && others.contains(&"Stage".into()) && !changed.contains_key("Result"), "{changed:?}");
    let result = world.busctl(&["get-property", BUS_NAME, job.as_str(), JOB_INTERFACE, "Result"]).await.unwrap();
    assert!(result.contains("\"error\" s ") && result.contains("\"error_code\" s \"unsupported_parameter\""), "{result}");
    let shown = world.busctl(&["call", BUS_NAME, job.as_str(), JOB_INTERFACE, "Show"]).await.unwrap();
    assert!(shown.contains("\"kind\" s \"qualify\"") && shown.contains("\"failed\""), "{shown}");
    for (kind_of_job, refused) in [("bench", ErrorKind::Unsupported), ("dance", ErrorKind::InvalidRequest)] {
        let error = call(&client, JOBS_INTERFACE, "Start", &(kind_of_job, none())).await.unwrap_err();
        assert_eq!(kind(&error), refused);
    }
    world.bus.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_introspection_is_the_one_in_the_tree() {
    let world = World::new(Duration::from_millis(10)).await;
    let client = world.client().await;
    let (request, _stream) = generate(&client, options(2000)).await.unwrap();
    let mut live =
        String::from("<!-- Written by the test that compares it with the live objects: SKIPD_WRITE_DOCS=1 tools/test pages. -->\n<node>\n");
    let none: Options = HashMap::new();
    let job: OwnedObjectPath = call(&client, JOBS_INTERFACE, "Start", &("qualify", none)).await.unwrap().body().deserialize().unwrap();
    for path in [OBJECT_PATH, request.as_str(), job.as_str()] {
        let reply = client.call_method(Some(BUS_NAME), path, Some("org.freedesktop.DBus.Introspectable"), "Introspect", &()).await.unwrap();
        live.push_str(&interfaces(&reply.body().deserialize::<String>().unwrap()));
    }
    live.push_str("</node>\n");
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dbus/org.skipd.Skipd1.xml");
    if std::env::var_os("SKIPD_WRITE_DOCS").is_some() {
        std::fs::write(&file, &live).unwrap();
    }
    assert_eq!(live, std::fs::read_to_string(&file).unwrap());
}

/// Our own interfaces of an introspection, in name order.
fn interfaces(xml: &str) -> String {
    // Child objects, such as requests, come after the interfaces.
    let own = xml.split("<node name=").next().unwrap_or_default();
    let parts = own.split_inclusive("</interface>\n");
    let mut found: Vec<&str> = parts.filter_map(|part| part.find("<interface name=\"org.skipd.").map(|at| &part[at..])).collect();
    found.sort();
    found.iter().map(|interface| format!("  {interface}")).collect()
}

#[tokio::test]
async fn a_missing_bus_and_a_taken_name_are_told_apart() {
    let error = join(&daemon_on("unix:path=/nowhere/bus".into())).await.err().unwrap();
    assert!(matches!(error, JoinError::NoBus { .. }), "{error}");
    assert!(error.to_string().starts_with("no bus at unix:path=/nowhere/bus: "), "{error}");
    let bus = PrivateBus::start();
    let _first = join(&daemon_on(bus.address())).await.unwrap();
    let error = join(&daemon_on(bus.address())).await.err().unwrap();
    assert!(matches!(error, JoinError::NameTaken(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bus_that_comes_back_is_joined_again() {
    let mut world = World::new(Duration::from_millis(10)).await;
    let client = world.client().await;
    let (_, _stream) = generate(&client, options(2000)).await.unwrap();
    world.bus.kill();
    world.idle().await;
    world.bus.restart();
    let client = world.client().await;
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(error) = generate(&client, options(1)).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_running_requests_reach_their_readers() {
    let world = World::new(Duration::from_millis(10)).await;
    let client = world.client().await;
    let (_, stream) = generate(&client, options(2000)).await.unwrap();
    world.stop.send_replace(true);
    world.daemon.model().unwrap().engine.shutdown();
    assert_eq!(end(&events(stream).await), FinishReason::Shutdown);
    tokio::time::timeout(Duration::from_secs(5), world.staying).await.expect("the bus is left").unwrap();
}
