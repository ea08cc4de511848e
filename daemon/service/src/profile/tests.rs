use super::*;
use crate::generation::{Ask, Input, Running, start};
use crate::request_id::RequestId;
use crate::testing::{OnBoard, myself};
use skip_client::protocol::{GenerationOptions, Priority, Prompt, SkipdOptions};

const THOR: &str = include_str!("../../../../platform/trees/thor-r39.txt");
const GPC: &str = "sys/class/devfreq/gpu-gpc-0/min_freq";
const ZONE: &str = "sys/class/thermal/thermal_zone0/temp";

/// The hardware does what it was told: a tree moves no clock by itself.
fn obey(board: &OnBoard) {
    for (domain, now) in [("gpu-gpc-0", "1575000000"), ("gpu-nvd-0", "1692000000"), ("bwmgr", "4266000000")] {
        board.write(&format!("sys/class/devfreq/{domain}/cur_freq"), now);
    }
    for policy in 0..2 {
        board.write(&format!("sys/devices/system/cpu/cpufreq/policy{policy}/cpuinfo_cur_freq"), "2601000");
    }
}

async fn background(board: &OnBoard) -> Running {
    let skipd = SkipdOptions { priority: Some(Priority::Background), ..SkipdOptions::default() };
    let options = GenerationOptions { max_tokens: Some(2), skipd: Some(skipd), ..GenerationOptions::new() };
    let ask = Ask { id: RequestId::new(None), model: None, input: Input::Raw(Prompt::from("ab")), options };
    start(&board.daemon, &myself(), ask).await.unwrap()
}

#[tokio::test]
async fn what_fits_this_board_is_told_of_each_profile() {
    let board = OnBoard::new(THOR).await;
    std::fs::create_dir_all(board.root.path().join("etc/skipd/profiles")).unwrap();
    board.write("etc/skipd/profiles/mine.toml", "about = \"mine\"\nspeed = 3\n");
    let shown = show(&board.daemon).await.unwrap();
    assert_eq!((shown.board.kind.as_str(), shown.board.mode.as_deref()), ("thor", Some("120W")));
    let unfit = |name: &str| shown.profiles.iter().find(|profile| profile.name == name).unwrap().unfit.clone();
    assert_eq!((unfit("thor-120w"), unfit("generic")), (None, None));
    for (name, why) in [("thor-maxn", "power mode MAXN"), ("orin-maxn", "for orin"), ("mine", "speed")] {
        assert!(unfit(name).unwrap().contains(why), "{name}");
    }
    assert!(shown.profiles.iter().all(|profile| profile.own == (profile.name == "mine")));
    assert_eq!(shown.clocks, ClockStatus::default());
}

#[tokio::test]
async fn a_profile_is_applied_and_released_to_the_byte() {
    let board = OnBoard::new(THOR).await;
    let before = board.read(GPC);
    let applied = apply(&board.daemon, "thor-120w").await.unwrap().clocks;
    assert_eq!((applied.profile.as_deref(), applied.pins_gpu, board.read(GPC).as_str()), (Some("thor-120w"), true, "1575000000"));
    assert_eq!(board.daemon.clocks.status(), Some(applied));
    let released = release(&board.daemon).await.unwrap().clocks;
    assert_eq!((released.state, released.profile, board.read(GPC)), (ClockState::Unpinned, None, before));
    release(&board.daemon).await.expect("there is nothing to do");
}

#[tokio::test]
async fn a_profile_that_does_not_fit_changes_nothing_of_the_one_before() {
    let board = OnBoard::new(THOR).await;
    apply(&board.daemon, "thor-120w").await.unwrap();
    for (name, kind) in
        [("thor-maxn", ErrorKind::InvalidRequest), ("none", ErrorKind::NotFound), ("../x", ErrorKind::NotFound), ("", ErrorKind::NotFound)]
    {
        let error = apply(&board.daemon, name).await.unwrap_err();
        assert_eq!((error.kind, error.param.as_deref()), (kind, Some("name")), "{name}");
    }
    assert_eq!(show(&board.daemon).await.unwrap().clocks.profile.as_deref(), Some("thor-120w"));
}

#[tokio::test]
async fn where_nothing_took_it_the_caller_is_told_so() {
    let board = OnBoard::new(include_str!("../../../../platform/trees/nothing.txt")).await;
    let error = apply(&board.daemon, "generic").await.unwrap_err();
    assert!(error.kind == ErrorKind::Internal && error.message.contains("nothing of profile generic is pinned"), "{error}");
}

#[tokio::test]
async fn clocks_become_throttled_once_and_stay_so_until_they_are_pinned_anew() {
    let board = OnBoard::new(THOR).await;
    apply(&board.daemon, "thor-120w").await.unwrap();
    obey(&board);
    let mut seen = Vec::new();
    for (celsius, over_current) in [("38800", "0"), ("101000", "0"), ("38800", "0"), ("38800", "2"), ("38800", "2")] {
        board.write(ZONE, celsius);
        board.write("sys/class/hwmon/hwmon5/oc1_event_cnt", over_current);
        let clocks = show(&board.daemon).await.unwrap().clocks;
        seen.push((clocks.state, clocks.throttles));
    }
    use ClockState::{Pinned, Throttled};
    // Slow before they obeyed, then hot, then an event that the profile's time has in it for good.
    assert_eq!(seen, [(Pinned, 1), (Throttled, 2), (Pinned, 2), (Throttled, 3), (Throttled, 3)]);
    let anew = apply(&board.daemon, "thor-120w").await.unwrap().clocks;
    assert_eq!((anew.state, anew.throttles), (Pinned, 3));
}

#[tokio::test]
async fn background_requests_wait_while_clocks_are_held_down_and_are_lost_to_nobody() {
    let board = OnBoard::new(THOR).await;
    show(&board.daemon).await.unwrap();
    assert!(!board.daemon.clocks.holds_background());
    board.write(ZONE, "101000");
    assert!(show(&board.daemon).await.unwrap().clocks.background_held);
    let mut held = background(&board).await;
    let early = tokio::time::timeout(Duration::from_millis(200), held.next()).await;
    assert!(early.is_err(), "it runs");
    board.write(ZONE, "38800");
    let end = Instant::now() + Duration::from_secs(30);
    while show(&board.daemon).await.unwrap().clocks.background_held {
        assert!(Instant::now() < end, "it stays held");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(held.next().await.is_some(), "it was lost");
}
