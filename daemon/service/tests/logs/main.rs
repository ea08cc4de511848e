//! `docs/logs.md` is made of the calls that write the log, so that every event and field of the usual level is on it, as it is.
//! `SKIPD_WRITE_DOCS=1` writes it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod calls;

use calls::{Event, events};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What fields mean, with their units. One that an event has and this list has not fails the test.
const FIELDS: [(&str, &str); 38] = [
    ("action", "the polkit action, `org.skipd.…`"),
    ("address", "address and port that are listened on"),
    ("class", "scheduling class of the request: `background`, `interactive`, `control`"),
    ("completion_tokens", "tokens of the answer"),
    ("decided_by", "what decided the table: `set-table`, `persisted`, `admin`, `update`, `checkpoint`, `default`"),
    ("decode_ms", "from the first token to the last, milliseconds"),
    ("decode_skipped", "share of decode's votes that skipped, 0 to 1"),
    ("device", "the GPU's name"),
    ("error", "why, in words"),
    ("faults", "device faults that are remembered"),
    ("folder", "a folder"),
    (
        "id",
        "of a span: the request's name, which its client gave (`X-Request-Id`) or the daemon; the same as in answers, `skipctl top` and on the bus",
    ),
    ("kernel", "a CUDA kernel"),
    ("kernels", "how many kernels"),
    ("ledger", "what the model was counted to take, by purpose, and what is free"),
    ("location", "file and key that a table comes from"),
    ("name", "of a bus: the name; of a prefix: what it was called when it was pinned"),
    ("note", "what is wrong with a kept bin of a calibration"),
    ("path", "a file"),
    ("phase", "`prefill` or `decode`"),
    ("pid", "a process"),
    ("prefill_ms", "from admission to the first token, milliseconds"),
    ("prefill_skipped", "share of prefill's votes that skipped, 0 to 1"),
    ("pretence", "for tests: what a broken device does"),
    ("profile", "a clock profile"),
    ("prompt_tokens", "tokens of the prompt"),
    ("queue_ms", "from arrival to admission, milliseconds"),
    (
        "reason",
        "of an ended request: how it finished (`stop`, `length`, `tool_calls`, `cancelled`, `deadline`, `slow_reader`, `shutdown`, `device_fault`, `error`), or `abort` where the client had gone; elsewhere why, in words",
    ),
    ("refused", "how many clocks did not take what a profile asks"),
    ("reused_tokens", "prompt tokens whose keys and values were in the cache"),
    ("seconds", "how long, seconds"),
    ("slot", "an update: version and the beginning of its digest"),
    ("socket", "the socket's path"),
    ("state", "of the clocks: `unpinned`, `pinned`, `throttled`, `uncontrolled`"),
    ("threads", "worker threads there are"),
    ("tokens", "tokens of a prefix"),
    ("uid", "the caller's user id"),
    ("verdict", "what was found of a kernel: `wrong`, `faulted`, `hung`, …"),
];

const HEAD: &str = "\
<!-- Written by the test that compares it with the calls that log: SKIPD_WRITE_DOCS=1 tools/test pages. -->
# The log

skipd writes lines to standard error: time in UTC, level, the span of the request if it is about one, the event, its fields as `name=value`. Under systemd the journal
has them as messages of `skipd.service`; fields are part of the text, not of the journal, and its priority is the same for all of them, so that levels are found by their word.

```
journalctl -u skipd.service -b                                  # since the machine started
journalctl -u skipd.service -f                                  # as it comes
journalctl -u skipd.service -b --grep ' (WARN|ERROR) '          # what somebody should look at
journalctl -u skipd.service -o cat --grep 'id=\"robot-7\"'        # one request, by its name
journalctl -u skipd.service -o cat --grep ': ended ' --since -1h | grep -oE 'prefill_ms=[0-9.]+' # times of an hour's requests
```

A request that ends is one line, with counts and times; refusals before it began are at `debug`:

```
2026-12-01T03:39:44.797723Z  INFO request{id=\"robot-7\"}: ended uid=0 class=\"interactive\" reason=\"length\" prompt_tokens=4 completion_tokens=8 reused_tokens=0
 queue_ms=0.07 prefill_ms=488.884 decode_ms=1946.906 prefill_skipped=0.0 decode_skipped=0.0        (all on one line)
```

**What is not in it.** At no level: prompts, answers, messages, tool arguments, stop strings, schemas, names in metadata, the key of `listen`. `tests/tests/e2e/streams.rs` sends a word by every
way that words come in and looks for it in the log at `debug`; `tests/tests/e2e/tcp.rs` looks for the key at `info`. File names are in it, and what polkit or a file system said.

**Level.** `info` unless `--log FILTER` (or `log` in the configuration) or `RUST_LOG` says otherwise, as `warn` or `info,skip_engine=debug`. The tables below are of `info` and above, what
libraries report of themselves aside. Words in braces stand for what differs. A start that fails says why in a line without time, `skipd: …`, and by its exit code ([running](running.md)).

";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Sources of the process, test modules aside.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["daemon/service/src", "daemon/engine/src", "kernels/src", "platform/src", "updates/src", "tables/src", "client/src"]
            .map(|folder| root().join(folder))
            .into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn all() -> Vec<Event> {
    sources().iter().flat_map(|path| events(&std::fs::read_to_string(path).unwrap())).collect()
}

fn page(events: &[Event]) -> String {
    let mut page = HEAD.to_owned();
    for (level, about) in
        [("error", "Something that was asked for does not work."), ("warn", "Something to look at."), ("info", "What happens.")]
    {
        let rows: BTreeMap<&str, &BTreeSet<String>> =
            events.iter().filter(|event| event.level == level).map(|event| (event.words.as_str(), &event.fields)).collect();
        let _ = writeln!(page, "## {}\n\n{about}\n\n| event | fields |\n|---|---|", level.to_uppercase());
        for (words, fields) in rows {
            let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
            let _ = writeln!(page, "| {} | {} |", words.replace('|', "\\|"), fields.join(", "));
        }
        page.push('\n');
    }
    page.push_str("## Fields\n\n| field | |\n|---|---|\n");
    for (field, meaning) in FIELDS {
        let _ = writeln!(page, "| `{field}` | {meaning} |");
    }
    page
}

#[test]
fn the_logs_page_is_the_one_in_the_tree() {
    let page = page(&all());
    let file = root().join("docs/logs.md");
    if std::env::var_os("SKIPD_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert!(page == std::fs::read_to_string(&file).unwrap_or_default(), "docs/logs.md is not current: SKIPD_WRITE_DOCS=1 tools/test pages");
}

#[test]
fn every_field_that_is_logged_is_explained_and_no_other() {
    let used: BTreeSet<String> = all().into_iter().filter(|event| event.is_usual()).flat_map(|event| event.fields).collect();
    let explained: BTreeSet<String> = FIELDS.map(|(field, _)| field.to_owned()).into();
    assert_eq!(used.difference(&explained).collect::<Vec<_>>(), Vec::<&String>::new(), "no word on these in FIELDS");
    assert_eq!(explained.difference(&used).collect::<Vec<_>>(), Vec::<&String>::new(), "no event has these");
}

#[test]
fn events_of_one_text_have_one_set_of_fields() {
    let mut known: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
    for event in all() {
        let fields = event.fields.clone();
        let first = known.entry((event.level, event.words)).or_insert_with(|| fields.clone());
        assert_eq!(*first, fields);
    }
}
