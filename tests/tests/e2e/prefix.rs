//! Beginnings of prompts that are not computed again: by whom, for whom, and with which answers.

use crate::{completion, prose, text};
use serde_json::{Value, json};
use skip_tests::{Daemon, Http, Options};
use std::os::unix::fs::PermissionsExt;

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const PREFIXES: &str = "/skipd/v1/prefixes";

/// Chunks of a page: what follows on a reused page is computed as it would have been, to the last bit.
fn daemon(flags: &[&str]) -> Daemon {
    Daemon::start(Options::default().flags(&["--chunk", "128"]).flags(flags)).unwrap()
}

fn ask(http: &Http, prompt: &str) -> Value {
    http.post(TEXT, completion(prompt, 12).to_string()).unwrap().expect(200).unwrap()
}

fn reused(answer: &Value) -> u64 {
    answer["usage"]["skipd"]["reused_tokens"].as_u64().unwrap()
}

fn metric(http: &Http, name: &str) -> f64 {
    let text = http.get("/metrics").unwrap().body;
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
    line.unwrap_or_else(|| panic!("{name} in\n{text}")).split_whitespace().last().unwrap().parse().unwrap()
}

fn cache(http: &Http) -> Value {
    http.get("/skipd/v1/status").unwrap().expect(200).unwrap()["cache"].clone()
}

#[test]
fn a_known_beginning_is_not_computed_again_and_answers_stay_the_same() {
    let daemon = daemon(&[]);
    let http = daemon.http();
    let log = prose(900);
    assert_eq!(reused(&ask(&http, &format!("{log} In one word, the licence is"))), 0);
    for question in ["The first condition says that", "A contributor is", "In one word, the licence is"] {
        let prompt = format!("{log} {question}");
        let computed = metric(&http, "vllm:prompt_tokens_total");
        let with = ask(&http, &prompt);
        let computed = metric(&http, "vllm:prompt_tokens_total") - computed;
        let mut body = completion(&prompt, 12);
        body["skipd"] = json!({"prefix_reuse": false});
        let without = http.post(TEXT, body.to_string()).unwrap().expect(200).unwrap();
        assert_eq!((text(&with), reused(&without)), (text(&without), 0));
        let (all, taken) = (with["usage"]["prompt_tokens"].as_u64().unwrap(), reused(&with));
        assert!(taken >= 768 && taken.is_multiple_of(128) && taken < all, "{taken} of {all}");
        assert_eq!(computed as u64, all - taken);
    }
    assert!(metric(&http, "vllm:prefix_cache_hits_total") >= 3.0 * 768.0);
    let cache = cache(&http);
    assert!(cache["cached"].as_u64().unwrap() >= 6, "{cache}");
    assert_eq!(cache["free"], cache["pages"], "what is kept is free");
}

#[test]
fn a_table_skips_as_if_alone_and_its_pages_are_its_own() {
    let daemon = daemon(&[]);
    let http = daemon.http();
    let prompt = prose(1500);
    let body = |table: &Value| {
        let mut body = completion(&prompt, 4);
        body["skipd"] = json!({"tables": {"prefill": table, "decode": "none"}});
        body.to_string()
    };
    let ask = |table: Value| http.post(TEXT, body(&table)).unwrap().expect(200).unwrap();
    let (tier, own) = (json!("30%"), json!([[512, 40.0]]));
    let taken: Vec<u64> = [json!("none"), tier.clone(), own, tier, json!("none")].map(|table| reused(&ask(table))).to_vec();
    assert_eq!(taken[..3], [0, 0, 0], "pages of one table are not another's");
    assert!(taken[3] > 1000 && taken[4] > 1000, "{taken:?}");
}

#[test]
fn users_share_nothing_but_what_an_administrator_pinned() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: there are no two users to be");
        return;
    }
    let daemon = daemon(&["--group", "nogroup"]);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(daemon.folder(), open).unwrap();
    let user = |uid| daemon.http().of_user(uid, 65534);
    let (root, one, other) = (daemon.http(), user(4001), user(4002));
    let prompt = format!("{} In one word, the licence is", prose(500));
    let answer = ask(&one, &prompt);
    assert_eq!([&one, &other, &root].map(|http| reused(&ask(http, &prompt)) > 0), [true, false, false]);
    assert_eq!(reused(&ask(&other, &prompt)), reused(&ask(&one, &prompt)));

    let pin = json!({"prompt": prose(400), "name": "licence"}).to_string();
    assert_eq!(one.post(PREFIXES, &pin).unwrap().expect(403).unwrap()["error"]["code"], "access_denied");
    let pinned = root.post(PREFIXES, &pin).unwrap().expect(200).unwrap();
    let tokens = pinned["tokens"].as_u64().unwrap();
    assert!(tokens >= 256 && pinned["pages"] == pinned["held"] && pinned["owner"] == 0, "{pinned}");
    let third = ask(&user(4003), &prompt);
    assert_eq!((reused(&third), text(&third)), (tokens, text(&answer)));
    let list = other.get(PREFIXES).unwrap().expect(200).unwrap();
    assert_eq!((&list["prefixes"][0]["name"], &list["prefixes"][0]["hits"]), (&json!("licence"), &json!(1)));
    assert_eq!(cache(&root)["pinned"], pinned["pages"]);

    let route = format!("{PREFIXES}/licence");
    other.delete(&route).unwrap().expect(403).unwrap();
    root.delete(&route).unwrap().expect(200).unwrap();
    assert_eq!(root.delete(&route).unwrap().expect(404).unwrap()["error"]["param"], "name");
    assert_eq!(reused(&ask(&user(4004), &prompt)), 0, "dropped is dropped");
    assert_eq!(cache(&root)["pinned"], 0);
}

#[test]
fn skipctl_pins_a_system_message_that_conversations_begin_with() {
    let daemon = daemon(&[]);
    let http = daemon.http();
    let rules = format!("You are a robot. These are your rules: {}", prose(300));
    std::fs::write(daemon.folder().join("rules.txt"), &rules).unwrap();
    let file = daemon.folder().join("rules.txt").display().to_string();
    let printed = daemon.skipctl(&["prefix", "pin", "--system", "--name", "robot", "--file", &file]).unwrap().ok().unwrap();
    assert!(printed.starts_with("robot: ") && printed.contains("pages"), "{printed}");
    let conversation = |content: &str| {
        let messages = json!([{"role": "system", "content": rules}, {"role": "user", "content": content}]);
        let answer = http.post(CHAT, json!({"messages": messages, "max_tokens": 4, "temperature": 0}).to_string());
        answer.unwrap().expect(200).unwrap()
    };
    let (one, two) = (conversation("Hello"), conversation("Where are you?"));
    assert!(reused(&one) >= 256 && reused(&one) == reused(&two), "{one} {two}");
    let short = daemon.skipctl(&["prefix", "pin", "Too short"]).unwrap();
    assert!(short.code == Some(4) && short.stderr.contains("no whole page of 128"), "{short:?}");
    let taken = daemon.skipctl(&["prefix", "pin", "--name", "robot", &prose(400)]).unwrap();
    assert!(taken.code == Some(4) && taken.stderr.contains("robot"), "{taken:?}");
    let address = daemon.bus().address();
    let by_bus = |args: &[&str]| {
        let skipctl = skip_tests::process::binary("skipctl").unwrap();
        skip_tests::process::run(std::process::Command::new(skipctl).args(["--bus", &address, "prefix"]).args(args)).unwrap()
    };
    let listed = by_bus(&["list"]).ok().unwrap();
    assert!(listed.contains("robot") && listed.contains("HITS") && listed == daemon.skipctl(&["prefix", "list"]).unwrap().ok().unwrap());
    assert!(by_bus(&["pin", "--name", "more", &prose(300)]).ok().unwrap().starts_with("more: "));
    let status = daemon.skipctl(&["status"]).unwrap().ok().unwrap();
    assert!(status.contains("are pinned"), "{status}");
    for name in ["robot", "more"] {
        assert!(by_bus(&["drop", name]).ok().unwrap().starts_with(name));
    }
    assert_eq!(by_bus(&["drop", "more"]).code, Some(4));
    assert_eq!(cache(&http)["pinned"], 0);
}

#[test]
fn pinned_prefixes_take_no_more_than_they_may() {
    // A context of 64 pages in a cache of 68: four may be pinned.
    let daemon = daemon(&["--kv-tokens", "8704"]);
    let http = daemon.http();
    let pin = |pages: usize, first: u32| {
        let tokens: Vec<u32> = (0..pages as u32 * 128).map(|i| 500 + (first + i) % 1000).collect();
        http.post(PREFIXES, json!({"prompt": tokens}).to_string()).unwrap()
    };
    let refused = pin(5, 0).expect(400).unwrap();
    assert_eq!((&refused["error"]["code"], &refused["error"]["details"]["pages_limit"]), (&json!("cache_too_small"), &json!(4)));
    assert_eq!(pin(3, 0).expect(200).unwrap()["name"], "prefix-1");
    assert_eq!(pin(2, 7).expect(400).unwrap()["error"]["details"]["pages_pinned"], 3);
    assert_eq!(pin(1, 7).expect(200).unwrap()["name"], "prefix-2");
    // The largest request there may be still runs.
    let whole = json!({"prompt": vec![504; 92], "max_tokens": 8100, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = http.open(TEXT, &whole).unwrap();
    stream.event().unwrap().expect("a first piece");
    assert_eq!(cache(&http)["free"], 0);
}
