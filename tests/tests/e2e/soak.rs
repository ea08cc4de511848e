//! Mixed load for as long as `SKIP_SOAK_SECONDS` says: what it must leave as it was, and whom it must not keep waiting.

use crate::{completion, ends, prose, streamed_text, text};
use serde_json::json;
use skip_tests::process::eventually;
use skip_tests::{Daemon, Http, Options};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
/// Tokens of the cache: few, so that all of it has been written before anything is measured.
const CACHE: usize = 2048;
/// KiB by which anonymous memory may grow over the second half, as a straight line through its samples has it.
const GROWTH: f64 = 8192.0;

const PROMPTS: [&str; 5] =
    ["The capital of France is", "def fibonacci(n):", "The robot arm stopped because", "Once upon a time", "Water boils at"];

/// Anonymous memory in KiB, descriptors, threads.
fn held(pid: u32) -> (u64, usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let anonymous = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
    (anonymous.split_whitespace().next().unwrap().parse().unwrap(), count("fd"), count("task"))
}

/// A counter's samples, added up where its labels hold `label`.
fn counted(http: &Http, name: &str, label: &str) -> u64 {
    let page = http.get("/metrics").unwrap().body;
    let of = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    page.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// Slope of the straight line nearest to the points, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let both: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    both / points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>()
}

/// One of the clients' turns: mostly whole answers, some given up, some wrong, and tables that change.
fn turn(http: &Http, client: usize, round: usize, alone: &[String], answered: &AtomicU64, asked: &AtomicU64) {
    let of = (client + round) % PROMPTS.len();
    let priority = ["background", "interactive"][client % 2];
    let body = |tokens: u32| {
        let mut body = completion(PROMPTS[of], tokens);
        body["skipd"] = json!({"priority": priority, "tables": {"prefill": "none", "decode": "none"}});
        body
    };
    match (client + round) % 6 {
        0 => {
            let mut stream = http.open(TEXT, &json!({"prompt": prose(300), "max_tokens": 500, "stream": true}).to_string()).unwrap();
            asked.fetch_add(1, Ordering::Relaxed);
            stream.event().unwrap().expect("a first piece of what is then given up");
        }
        1 => assert_eq!(http.post(TEXT, r#"{"prompt": 3}"#).unwrap().status, 400),
        2 => {
            let table = if round.is_multiple_of(2) { r#"{"selector": "30%"}"# } else { r#"{"selector": "none"}"# };
            http.put("/skipd/v1/tables/prefill", table).unwrap().expect(200).unwrap();
        }
        3 => {
            let mut body = body(8);
            body["stream"] = json!(true);
            asked.fetch_add(1, Ordering::Relaxed);
            let events = http.open(TEXT, &body.to_string()).unwrap().rest().unwrap();
            assert_eq!((ends(&events).len(), streamed_text(&events)), (1, alone[of].clone()));
            answered.fetch_add(1, Ordering::Relaxed);
        }
        _ => {
            asked.fetch_add(1, Ordering::Relaxed);
            assert_eq!(text(&http.post(TEXT, body(8).to_string()).unwrap().expect(200).unwrap()), alone[of]);
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_soak_of_mixed_requests_leaves_nothing_behind_and_keeps_control_requests_waiting_for_two_steps_at_most() {
    let seconds = std::env::var("SKIP_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let daemon = Daemon::start(Options::default().flags(&["--kv-tokens", &CACHE.to_string()])).unwrap();
    let (http, pid) = (daemon.http(), daemon.pid());
    let ask = |prompt: &str, tokens| http.post(TEXT, completion(prompt, tokens).to_string()).unwrap().expect(200).unwrap();
    let alone: Vec<String> = PROMPTS.iter().map(|prompt| text(&ask(prompt, 8)).to_owned()).collect();
    // Every page of the cache once, and some: memory is committed as it is written.
    for round in 0..3 {
        ask(&format!("{round} {}", prose(CACHE * 3 / 4)), 4);
    }
    let settled = || {
        eventually(Duration::from_secs(10), "every request has ended", || {
            let status = http.get("/skipd/v1/status")?.expect(200)?;
            Ok((status["cache"]["free"] == status["cache"]["pages"]).then_some(()))
        })
    };
    settled().unwrap();
    let before = held(pid);
    let ended = || counted(&http, "vllm:request_success_total", "");
    let ended_before = ended();
    let (asked, answered, control) = <(AtomicU64, AtomicU64, AtomicU64)>::default();
    let (begin, length) = (Instant::now(), Duration::from_secs(seconds));
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (http, alone, asked, answered) = (http.clone(), &alone, &asked, &answered);
            scope.spawn(move || {
                (0..).take_while(|_| begin.elapsed() < length).for_each(|round| turn(&http, client, round, alone, answered, asked))
            });
        }
        scope.spawn(|| {
            let mut body = completion("Stop now?", 2);
            body["skipd"] = json!({"priority": "control"});
            while begin.elapsed() < length {
                asked.fetch_add(1, Ordering::Relaxed);
                http.post(TEXT, body.to_string()).unwrap().expect(200).unwrap();
                control.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        while begin.elapsed() < length {
            samples.push((begin.elapsed().as_secs_f64(), held(pid).0 as f64));
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    settled().unwrap();
    let (asked, answered, control) = (asked.into_inner(), answered.into_inner(), control.into_inner());
    assert!(answered >= 8 && control >= 8, "{answered} answers and {control} of control in {seconds} s");
    eventually(Duration::from_secs(5), "every request has ended once", || Ok((ended() - ended_before == asked).then_some(())))
        .unwrap_or_else(|error| panic!("{error}: {asked} asked, {} ended", ended() - ended_before));

    let waits = |steps: &str| counted(&http, "skipd_control_waits_total", &format!("steps=\"{steps}\""));
    let by_steps = ["0", "1", "2", "more"].map(waits);
    assert_eq!(by_steps.iter().sum::<u64>(), control);
    assert!(by_steps[3] * 100 <= control, "control requests by the steps they waited for: {by_steps:?}");

    let later = &samples[samples.len() / 2..];
    let growth = slope(later) * (later[later.len() - 1].0 - later[0].0);
    assert!(growth < GROWTH, "anonymous memory grew by {growth:.0} KiB in the second half: {later:?}");
    eventually(Duration::from_secs(10), "no descriptor and no thread is left", || {
        let now = held(pid);
        Ok((now.1 <= before.1 && now.2 <= before.2).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {before:?} before, {:?} after", held(pid)));
    println!(
        "{seconds} s: {asked} asked, {answered} answered whole, {control} of control that waited for 0, 1, 2, more steps: {by_steps:?}; \
         anonymous memory {} to {} KiB, {growth:.0} KiB by its slope in the second half",
        before.0,
        held(pid).0
    );
}
