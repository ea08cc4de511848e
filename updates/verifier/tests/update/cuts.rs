//! The real program, killed at random moments of every command: what is found afterwards is the state before or the one after, and whole.
//! 40 cuts; `SKIP_UPDATE_CUTS=500 cargo test …` for more.

use crate::world::{Device, lasting, tables};
use skip_updates::{Begun, RealDisk, SlotName, State, View};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Versions that are signed beforehand; each is staged more than once.
const VERSIONS: u64 = 400;

struct Random(u64);

impl Random {
    /// splitmix64.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// A command, and the state that it leads to.
struct Step {
    arguments: Vec<String>,
    after: State,
}

fn next(device: &Device, view: &View, random: &mut Random) -> Step {
    let state = &view.state;
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let trial = state.trial.clone();
    let step = match (random.below(6), &trial) {
        (0, Some(slot)) => Some((words(&["commit", &slot.to_string()]), state.commit(slot))),
        (1, Some(slot)) => Some((words(&["fail", &slot.to_string(), "--reason", "a test"]), state.fail(slot, "a test"))),
        (2, Some(_)) => {
            let after = match state.begin() {
                Begun::Try(_, after) | Begun::GivenUp(after) => Some(after),
                Begun::NoTrial => None,
            };
            Some((words(&["begin"]), after))
        }
        (3, _) => Some((words(&["rollback", "--reason", "a test"]), state.roll_back("a test"))),
        _ => None,
    };
    if let Some((arguments, Some(after))) = step {
        return Step { arguments, after };
    }
    let version = view.floor + 1 + random.below(2);
    assert!(version <= VERSIONS, "more versions are used up than were made");
    let files = lasting(version);
    let bundle = device.put(&format!("{version}.tar"), &files);
    let manifest = files.iter().find(|(name, _)| name.ends_with(".manifest.json")).unwrap().1;
    let checkpoint = crate::world::checkpoint().to_string();
    let arguments = words(&["apply", bundle.to_str().unwrap(), "--checkpoint-sha256", &checkpoint]);
    Step { arguments, after: state.stage(SlotName::of(version, manifest)) }
}

fn assert_whole(view: &View, what: &str) {
    assert!(view.problems.is_empty(), "{what}: {:?}", view.problems);
    for slot in [&view.active, &view.previous, &view.trial].into_iter().flatten() {
        assert_eq!(slot.tables, tables(slot.name.version()), "{what}");
    }
}

#[test]
fn killed_at_any_moment_the_program_leaves_the_state_before_or_after() {
    let cuts: u32 = std::env::var("SKIP_UPDATE_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut random = Random(seed);
    let device = Device::new();
    let read = |what: &str| {
        let view = View::read(&RealDisk::new(device.store())).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_whole(&view, what);
        view
    };
    // How long a command takes here, undisturbed: cuts fall into that time and a little more.
    let started = Instant::now();
    assert!(device.apply(&device.put("first.tar", &lasting(1))).code == Some(0));
    let span = started.elapsed().as_micros() as u64 * 5 / 4;
    let (mut killed, mut done, mut undone) = (0, 0, 0);
    let mut tried = 0;
    while killed < cuts {
        tried += 1;
        assert!(tried < cuts * 20, "seed {seed}: after {tried} tries only {killed} cuts came before the end");
        let before = read("before");
        let step = next(&device, &before, &mut random);
        let what = format!("seed {seed}, cut {killed}: {:?}", step.arguments);
        let mut child = device.command().args(&step.arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(span)));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        killed += u32::from(ended.code().is_none());
        let after = read(&what);
        assert!([&before.state, &step.after].contains(&&after.state), "{what}: {:?} became {:?}", before.state, after.state);
        assert!(after.floor >= before.floor, "{what}");
        if after.state == step.after {
            done += 1
        } else {
            undone += 1
        }
        // The next opening brings everything up to the state, and the links with it.
        let shown = device.run(&["begin", "--wait", "0"]);
        assert_eq!(shown.code, Some(0), "{what}: {shown:?}");
        let settled = read(&what);
        let link = std::fs::read_link(device.store().join("current")).ok();
        assert_eq!(link, settled.state.active.as_ref().map(|slot| std::path::Path::new("slots").join(slot.to_string())), "{what}");
        let incoming = std::fs::read_dir(device.store().join("incoming")).map_or(0, Iterator::count);
        assert_eq!(incoming, 0, "{what}");
    }
    println!("{killed} kills within {span} µs of the start (seed {seed}): {done} steps came to their end, {undone} were undone");
}
