//! Several at once, clients that vanish, full queues, and many requests in a row.

use crate::{completion, prose, text};
use serde_json::{Value, json};
use skip_tests::process::eventually;
use skip_tests::{Daemon, Http, Options};
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";

fn cache(http: &Http) -> (u64, u64) {
    let status = http.get("/skipd/v1/status").unwrap().expect(200).unwrap();
    (status["cache"]["free"].as_u64().unwrap(), status["cache"]["pages"].as_u64().unwrap())
}

/// Waits until no page is reserved: every request has been retired.
fn all_free(http: &Http) {
    eventually(Duration::from_secs(10), "every page is free", || {
        let (free, pages) = cache(http);
        Ok((free == pages).then_some(()))
    })
    .unwrap();
}

#[test]
fn requests_together_answer_as_each_alone() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    // Different lengths, one of them skipping, so that batches are ragged and mixed.
    let prompts = [prose(40), "The capital of France is".to_owned(), prose(1200), "def fibonacci(n):".to_owned()];
    let body = |i: usize| {
        let mut body = completion(&prompts[i], 24);
        // All of each prompt takes its votes.
        body["skipd"] = json!({"prefix_reuse": false});
        if i == 2 {
            body["skipd"]["tables"] = json!({"prefill": "30%", "decode": "75%"});
        }
        body.to_string()
    };
    let ask = |i: usize| http.post(TEXT, body(i)).unwrap().expect(200).unwrap();
    let alone: Vec<Value> = (0..prompts.len()).map(ask).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..prompts.len()).map(|i| scope.spawn(move || ask(i))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (a, b) in alone.iter().zip(&together) {
        assert_eq!(text(a), text(b));
        for phase in ["prefill", "decode"] {
            let counts =
                |answer: &Value| (answer["usage"]["skipd"][phase]["votes"].clone(), answer["usage"]["skipd"][phase]["skipped"].clone());
            assert_eq!(counts(a), counts(b), "votes depend on nothing but the request");
        }
    }
    assert!(crate::votes(&alone[2], "prefill").1 > 0 && crate::votes(&alone[2], "decode").1 > 0);
}

#[test]
fn a_client_that_vanishes_frees_its_pages() {
    let daemon = Daemon::start(Options::default()).unwrap();
    let http = daemon.http();
    all_free(&http);
    let body = json!({"prompt": "Hello", "max_tokens": 8000, "ignore_eos": true, "stream": true}).to_string();
    let mut mid_decode = http.open(TEXT, &body).unwrap();
    mid_decode.event().unwrap().expect("a first piece");
    let (free, pages) = cache(&http);
    assert!(free < pages, "pages are reserved while it runs");
    drop(mid_decode);
    all_free(&http);

    let mid_prefill = http.open(TEXT, &json!({"prompt": prose(4000), "max_tokens": 100}).to_string()).unwrap();
    eventually(Duration::from_secs(5), "it is admitted", || Ok((cache(&http).0 < pages).then_some(()))).unwrap();
    drop(mid_prefill);
    all_free(&http);

    drop(http.open(TEXT, &body[..body.len() - 10]).unwrap()); // half a body
    daemon.assert_alive().unwrap();
}

#[test]
fn a_deadline_ends_a_request_with_its_reason() {
    let http = Daemon::shared().http();
    let mut body = json!({"prompt": "Hello", "max_tokens": 8000, "ignore_eos": true, "stream": true});
    body["skipd"] = json!({"deadline_ms": 3000});
    let start = Instant::now();
    let events = http.open(TEXT, &body.to_string()).unwrap().rest().unwrap();
    assert_eq!(crate::ends(&events), ["deadline_exceeded"]);
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());

    // Over before the first token: an error instead of an answer.
    let mut hopeless = completion(&prose(3000), 8);
    hopeless["skipd"] = json!({"deadline_ms": 1});
    let answer = http.post(TEXT, hopeless.to_string()).unwrap();
    assert!(answer.status >= 400 && answer.body.contains("deadline"), "{answer:?}");
    Daemon::shared().assert_alive().unwrap();
}

#[test]
fn what_does_not_fit_waits_and_what_never_fits_is_refused() {
    let daemon = Daemon::start(Options::default().flags(&["--kv-tokens", "1024", "--queue", "2"])).unwrap();
    let http = daemon.http();
    let refused = http.post(TEXT, json!({"prompt": vec![504; 1000], "max_tokens": 500}).to_string()).unwrap();
    assert!(
        refused.status == 400 && (refused.body.contains("cache_too_small") || refused.body.contains("context_length_exceeded")),
        "{refused:?}"
    );

    let body = |tokens: u32| json!({"prompt": "Hello", "max_tokens": tokens, "ignore_eos": true, "stream": true}).to_string();
    let mut first = http.open(TEXT, &body(900)).unwrap();
    first.event().unwrap().expect("a first piece");
    let waiting: Vec<_> = (0..2).map(|_| http.open(TEXT, &body(200)).unwrap()).collect();
    let queued = |http: &Http| http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["queue"]["waiting"].as_u64().unwrap();
    eventually(Duration::from_secs(5), "two wait", || Ok((queued(&http) == 2).then_some(()))).unwrap();
    let busy = http.post(TEXT, completion("Hello", 200).to_string()).unwrap();
    assert_eq!(busy.expect(429).unwrap()["error"]["code"], "busy");
    assert!(busy.header("retry-after").is_some_and(|v| v.parse::<u32>().is_ok()), "{:?}", busy.headers);
    drop(first);
    for mut stream in waiting {
        stream.event().unwrap().expect("its turn comes");
    }
    all_free(&http);
}

#[test]
fn sixty_four_clients_on_a_queue_of_sixteen_get_their_answer_or_are_told_when_to_come_back() {
    let daemon = Daemon::start(Options::default().flags(&["--queue", "16", "--max-running", "4"])).unwrap();
    let http = daemon.http();
    let prompts = ["The capital of France is", "def fibonacci(n):", "The robot arm stopped because", "Once upon a time", "Water boils at"];
    let body = |i: usize| completion(prompts[i % prompts.len()], 16).to_string();
    let alone: Vec<String> = (0..prompts.len()).map(|i| text(&http.post(TEXT, body(i)).unwrap().expect(200).unwrap()).to_owned()).collect();
    let start = std::sync::Barrier::new(64);
    let refused: u32 = std::thread::scope(|scope| {
        let client = |i: usize| {
            let (http, start, alone, body) = (&http, &start, &alone, &body);
            scope.spawn(move || {
                start.wait();
                let begun = Instant::now();
                for refused in 0.. {
                    let answer = http.open(TEXT, &body(i)).unwrap().response().unwrap();
                    if answer.status == 200 {
                        assert_eq!(text(&answer.expect(200).unwrap()), alone[i % alone.len()]);
                        return refused;
                    }
                    assert_eq!(answer.expect(429).unwrap()["error"]["code"], "busy");
                    let wait: f64 = answer.header("retry-after").unwrap().parse().unwrap();
                    assert!(begun.elapsed() < Duration::from_secs(150), "client {i} was refused {refused} times");
                    std::thread::sleep(Duration::from_secs_f64(wait));
                }
                unreachable!()
            })
        };
        let clients: Vec<_> = (0..64).map(client).collect();
        clients.into_iter().map(|c| c.join().unwrap()).sum()
    });
    assert!(refused >= 16, "{refused} refusals: 4 run and 16 wait, the others are told so at once");
    all_free(&http);
    let status = http.get("/skipd/v1/status").unwrap().expect(200).unwrap();
    assert_eq!((&status["queue"]["running"], &status["queue"]["waiting"]), (&json!(0), &json!(0)));
}

#[test]
fn background_load_does_not_keep_a_control_request_out() {
    let flags = ["--kv-tokens", "4096", "--max-running", "2", "--queue", "2"];
    let daemon = Daemon::start(Options::default().flags(&flags)).unwrap();
    let http = daemon.http();
    let body = |priority: &str, tokens: u32| {
        json!({"prompt": "Hello", "max_tokens": tokens, "ignore_eos": true, "stream": true, "skipd": {"priority": priority}}).to_string()
    };
    let mut background = Vec::new();
    for _ in 0..2 {
        let mut stream = http.open(TEXT, &body("background", 1500)).unwrap();
        stream.event().unwrap().expect("it runs");
        background.push(stream);
    }
    let _waiting: Vec<_> = (0..2).map(|_| http.open(TEXT, &body("background", 1500)).unwrap()).collect();
    let full = |http: &Http| http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["queue"]["waiting"] == 2;
    eventually(Duration::from_secs(5), "slots and queue are full", || Ok(full(&http).then_some(()))).unwrap();
    http.post(TEXT, body("background", 8)).unwrap().expect(429).unwrap();

    let start = Instant::now();
    let events = http.open(TEXT, &body("control", 8)).unwrap().rest().unwrap();
    assert_eq!(crate::ends(&events), ["length"]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(full(&http), "those who waited still do");
    for stream in &mut background {
        stream.event().unwrap().expect("and those who ran go on");
    }
}
