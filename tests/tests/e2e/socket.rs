//! OpenAI's routes on the socket: whole and streamed answers, what usage says, and the options.

use crate::{completion, streamed_text, text};
use serde_json::{Value, json};
use skip_tests::Daemon;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn question(max_tokens: u32) -> Value {
    json!({"model": "default", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": max_tokens, "temperature": 0})
}

fn with(mut body: Value, more: Value) -> String {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

#[test]
fn a_chat_is_answered_with_true_counts() {
    let answer = Daemon::shared().http().post(CHAT, question(30).to_string()).unwrap().expect(200).unwrap();
    assert!(text(&answer).contains("Paris"), "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    let usage = &answer["usage"];
    assert!(usage["prompt_tokens"].as_u64().unwrap() > 10, "{usage}");
    assert!((1..=30).contains(&usage["completion_tokens"].as_u64().unwrap()), "{usage}");
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );
    let own = &usage["skipd"];
    assert_eq!(own["prefill"], json!({"table": null, "row": null, "votes": 0, "skipped": 0}));
    assert_eq!(own["decode"], json!({"table": null, "votes": 0, "skipped": 0}));
    assert!(own["timings_ms"]["prefill"].as_f64().unwrap() > 0.0 && own["timings_ms"]["decode"].as_f64().unwrap() > 0.0, "{own}");
}

#[test]
fn a_stream_says_the_same_as_the_whole_answer() {
    let http = Daemon::shared().http();
    let whole = http.post(CHAT, question(24).to_string()).unwrap().expect(200).unwrap();
    let stream = http.post(CHAT, with(question(24), json!({"stream": true, "stream_options": {"include_usage": true}}))).unwrap();
    assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
    let events = stream.events().unwrap();
    assert_eq!(streamed_text(&events), text(&whole));
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let reasons: Vec<_> = events.iter().map(|e| &e["choices"][0]["finish_reason"]).filter(|r| !r.is_null()).collect();
    assert_eq!(reasons, [&whole["choices"][0]["finish_reason"]], "exactly one reason");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert!(events.len() > 4, "it comes in pieces: {events:?}");
}

#[test]
fn text_and_its_token_ids_are_one_prompt() {
    let http = Daemon::shared().http();
    let prompt = "The robot arm stopped because";
    let ids = http.post("/skipd/v1/tokenize", json!({"text": prompt}).to_string()).unwrap().expect(200).unwrap()["tokens"].clone();
    assert!(ids.as_array().unwrap().len() > 3);
    let by_text = http.post(TEXT, completion(prompt, 10).to_string()).unwrap().expect(200).unwrap();
    let by_ids = http.post(TEXT, json!({"prompt": ids, "max_tokens": 10, "temperature": 0}).to_string()).unwrap().expect(200).unwrap();
    assert_eq!(text(&by_text), text(&by_ids));
    assert_eq!(by_text["usage"]["prompt_tokens"].as_u64().unwrap() as usize, ids.as_array().unwrap().len());
}

#[test]
fn log_probabilities_are_those_of_the_drawn_tokens() {
    let http = Daemon::shared().http();
    let answer = http.post(CHAT, with(question(8), json!({"logprobs": true, "top_logprobs": 3}))).unwrap().expect(200).unwrap();
    let entries = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let delivered = answer["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert!(entries.len() == delivered || entries.len() + 1 == delivered, "one a token (a closing end-of-sequence token apart)");
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["token"], entry["token"], "greedy draws the most likely");
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values[0] <= 0.0 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
        assert!(values.iter().map(|v| v.exp()).sum::<f64>() <= 1.0 + 1e-5, "{values:?}");
    }
    let answer = http.post(TEXT, with(completion("One, two, three,", 4), json!({"logprobs": 2}))).unwrap().expect(200).unwrap();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4, "{logprobs}");
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect::<String>(), text(&answer));
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let http = Daemon::shared().http();
    let whole = http.post(TEXT, completion("Counting up: one, two, three,", 24).to_string()).unwrap().expect(200).unwrap();
    let whole = text(&whole);
    // A stop string across token borders: the last letter of one word and the first of the next.
    let middle = whole.char_indices().filter(|(_, c)| *c == ' ').nth(3).expect("several words").0;
    let stop = &whole[middle - 1..middle + 2];
    let expected = &whole[..whole.find(stop).unwrap()];
    let body = with(completion("Counting up: one, two, three,", 24), json!({"stop": [stop, "never said"]}));
    let answer = http.post(TEXT, &body).unwrap().expect(200).unwrap();
    assert_eq!((text(&answer), &answer["choices"][0]["finish_reason"]), (expected, &json!("stop")));
    let streamed = http.post(TEXT, body.replacen('{', r#"{"stream": true, "#, 1)).unwrap().events().unwrap();
    assert_eq!(streamed_text(&streamed), expected, "nothing of the stop string was let out");
}

#[test]
fn a_seed_repeats_a_draw() {
    let http = Daemon::shared().http();
    let draw = |seed: u32| {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 1.2, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "seed": seed});
        text(&http.post(TEXT, body.to_string()).unwrap().expect(200).unwrap()).to_owned()
    };
    let first = draw(1);
    assert_eq!(first, draw(1));
    assert!((2..6).any(|seed| draw(seed) != first), "four other seeds all drew {first:?}");
}

#[test]
fn the_answer_has_as_many_tokens_as_asked_where_its_end_is_ignored() {
    let answer = Daemon::shared().http().post(CHAT, with(question(70), json!({"ignore_eos": true}))).unwrap().expect(200).unwrap();
    assert_eq!((&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]), (&json!(70), &json!("length")));
}

#[test]
fn fields_that_are_ignored_are_named() {
    let http = Daemon::shared().http();
    let answer = http.post(CHAT, with(question(2), json!({"store": true, "metadata": {"a": "b"}}))).unwrap();
    answer.expect(200).unwrap();
    let ignored = answer.header("x-skipd-ignored").unwrap_or_default();
    assert!(ignored.contains("store") && ignored.contains("metadata"), "{:?}", answer.headers);
}

#[test]
fn the_daemon_says_what_it_is() {
    let daemon = Daemon::shared();
    let http = daemon.http();
    assert_eq!(http.get("/health").unwrap().status, 200);
    assert_eq!(http.get("/ready").unwrap().expect(200).unwrap()["state"], "ready");
    let models = http.get("/v1/models").unwrap().expect(200).unwrap();
    assert!(models["data"].as_array().unwrap().iter().any(|m| m["id"] == "smollm2"), "{models}");
    let status = http.get("/skipd/v1/status").unwrap().expect(200).unwrap();
    assert_eq!(
        (&status["state"], &status["model"]["context_length"], &status["backend"]["name"]),
        (&json!("ready"), &json!(8192), &json!("cpu"))
    );
    assert!(status["cache"]["pages"].as_u64().unwrap() > 0);
}

#[test]
fn metrics_count_requests_and_tokens() {
    let daemon = Daemon::shared();
    daemon.assert_alive().unwrap();
    let metrics = daemon.http().get("/metrics").unwrap();
    assert_eq!(metrics.status, 200);
    for line in metrics.body.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "Prometheus text: {line}");
    }
    let page = std::fs::read_to_string(skip_tests::process::root().join("docs/metrics.md")).unwrap();
    for name in metrics.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
    }
    let drawn = |text: &str| -> f64 {
        let line =
            text.lines().find(|l| l.contains("generation_tokens_total") && !l.starts_with('#')).expect("a count of generated tokens");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let before = drawn(&metrics.body);
    daemon.assert_alive().unwrap();
    assert!(drawn(&daemon.http().get("/metrics").unwrap().body) >= before + 4.0, "four tokens more");
}
