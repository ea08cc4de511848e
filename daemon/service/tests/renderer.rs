//! Chat templates that ask for everything, against the real rendering process: each is refused by name, and the next conversation is rendered.
#![allow(clippy::unwrap_used, reason = "a failing helper fails its test")]

use serde_json::json;
use skipd::renderer::{RenderError, Renderer};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SKIPD: &str = env!("CARGO_BIN_EXE_skipd");
const PATIENCE: Duration = Duration::from_secs(3);

/// A folder with this template, which begins with a way out for messages that say `plain`.
fn folder(template: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("{{% if messages[0].content == 'plain' %}}plain{{% else %}}{template}{{% endif %}}");
    std::fs::write(dir.path().join("chat_template.jinja"), text).unwrap();
    dir
}

fn open(dir: &Path) -> Result<Option<Renderer>, RenderError> {
    Renderer::open_with(Path::new(SKIPD), dir, PATIENCE)
}

fn say(renderer: &Renderer, content: &str) -> Result<String, RenderError> {
    renderer.render(&[json!({"role": "user", "content": content})], &[])
}

#[test]
fn a_conversation_is_rendered_again_and_again_by_one_process() {
    let dir = folder("{{ messages[0].content }}|{{ add_generation_prompt }}");
    let renderer = open(dir.path()).unwrap().unwrap();
    assert_eq!(renderer.template(), "chat_template.jinja");
    let long = "ü\n\"".repeat(100_000);
    for content in ["hi", "", long.as_str()] {
        assert_eq!(say(&renderer, content).unwrap(), format!("{content}|True"));
    }
}

/// What fuel does not see: values that share their parts, printed, compared, sorted and joined as if they did not.
#[test]
fn templates_that_ask_for_all_memory_or_time_end_with_their_process_alone() {
    let doubled = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    for hostile in [
        "{% set z = ns.x ~ '' %}",
        "{% set z %}{{ ns.x }}{% endset %}",
        "{{ ns.x == ns.y }}",
        "{{ [ns.x]|join('') }}",
        "{{ ''.join([ns.x]) }}",
        "{{ ns.x in [ns.y] }}",
        "{{ [ns.x, ns.y]|sort }}",
        "{{ '%s' % (ns.x,) }}",
        "{{ '{:>4000000000}'.format('x') }}",
        "{{ raise_exception(ns.x) }}",
    ] {
        let dir = folder(&format!("{doubled}{hostile}"));
        let renderer = open(dir.path()).unwrap().unwrap();
        let began = Instant::now();
        let error = say(&renderer, "hostile").unwrap_err();
        assert!(error.to_string().contains("chat_template.jinja"), "{hostile}: {error}");
        assert!(began.elapsed() < PATIENCE + Duration::from_secs(10), "{hostile}");
        assert_eq!(say(&renderer, "plain").unwrap(), "plain", "{hostile}: the next conversation");
    }
}

#[test]
fn of_those_some_are_ended_for_memory_and_some_for_time() {
    let doubled = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    for (hostile, expected) in [("{{ '{:>4000000000}'.format('x') }}", "ended its process"), ("{{ ns.x == ns.y }}", "did not end")] {
        let dir = folder(&format!("{doubled}{hostile}"));
        let error = say(&open(dir.path()).unwrap().unwrap(), "hostile").unwrap_err();
        assert!(matches!(&error, RenderError::TooMuch { how, .. } if *how == expected), "{hostile}: {error}");
    }
}

#[test]
fn fuel_and_refusals_are_told_without_ending_the_process() {
    for (template, words) in [
        ("{% for a in range(10000) %}{% for b in range(10000) %}{{ a }}{% endfor %}{% endfor %}", "too much work"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ] {
        let dir = folder(template);
        let renderer = open(dir.path()).unwrap().unwrap();
        let error = say(&renderer, "x").unwrap_err();
        assert!(matches!(&error, RenderError::Refused { param, .. } if param == "messages"), "{error}");
        assert!(error.to_string().contains(words) && error.to_string().contains("chat_template.jinja"), "{error}");
    }
    let renderer = open(folder("x").path()).unwrap().unwrap();
    let error = renderer.render(&[json!({"role": "user", "content": 3})], &[]).unwrap_err();
    assert!(matches!(&error, RenderError::Refused { param, .. } if param == "messages[0].content"), "{error}");
}

#[test]
fn folders_without_a_template_or_with_a_broken_one_are_told_apart() {
    let empty = tempfile::tempdir().unwrap();
    assert!(open(empty.path()).unwrap().is_none());
    std::fs::write(empty.path().join("chat_template.jinja"), "{% if %}").unwrap();
    assert!(matches!(open(empty.path()), Err(RenderError::Template(_))));
    assert!(matches!(Renderer::open_with(Path::new("/nonexistent/skipd"), empty.path(), PATIENCE), Err(RenderError::Process(_))));
}

#[test]
fn several_at_once_are_all_rendered() {
    let dir = folder("{{ messages[0].content }}");
    let renderer = open(dir.path()).unwrap().unwrap();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let renderer = &renderer;
            scope.spawn(move || (0..20).for_each(|i| assert_eq!(say(renderer, &format!("{n}.{i}")).unwrap(), format!("{n}.{i}"))));
        }
    });
}

/// The children of this process that are rendering processes.
#[test]
fn its_processes_end_with_it() {
    let dir = folder("{{ messages[0].content }}");
    let marked = dir.path().to_str().unwrap().to_owned();
    let running = || {
        let cmdlines = std::fs::read_dir("/proc").unwrap().filter_map(|entry| std::fs::read(entry.unwrap().path().join("cmdline")).ok());
        cmdlines.filter(|line| String::from_utf8_lossy(line).contains(&marked)).count()
    };
    let renderer = open(dir.path()).unwrap().unwrap();
    assert_eq!(running(), 1);
    drop(renderer);
    assert_eq!(running(), 0);
}
