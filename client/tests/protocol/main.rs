//! `docs/protocol.md` is made from the types of the protocol: their fields, their documentation, the tables that parsing and errors go by, and the
//! bus's introspection. `SKIPD_WRITE_DOCS=1` writes it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bus;
mod page;
mod source;

use skip_client::protocol::{GenerationOptions, routes};
use std::path::{Path, PathBuf};

/// A file of the tree.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_protocol_page_is_the_one_in_the_tree() {
    let page = page::page();
    if std::env::var_os("SKIPD_WRITE_DOCS").is_some() {
        std::fs::write(file("docs/protocol.md"), &page).unwrap();
    }
    assert!(page == read("docs/protocol.md"), "docs/protocol.md is not current: SKIPD_WRITE_DOCS=1 tools/test pages");
}

#[test]
fn every_module_of_the_protocol_has_its_place_on_the_page() {
    let modules = read("client/src/protocol/mod.rs");
    let modules: Vec<&str> = modules.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let placed: Vec<&str> = page::CHAPTERS.iter().flat_map(|chapter| chapter.modules).copied().collect();
    for module in &modules {
        let elsewhere = page::OTHERWISE.contains(module);
        assert!(placed.contains(module) != elsewhere, "{module} is not placed, or twice");
    }
    assert!(modules.len() == placed.len() + page::OTHERWISE.len() && modules.len() > 12, "{modules:?}");
}

#[test]
fn every_option_on_the_page_is_read_and_its_type_checked() {
    let options = source::items("options").into_iter().find(|item| item.name == "GenerationOptions").unwrap();
    let names: Vec<String> = options.members.iter().map(|member| member.wire.clone()).filter(|name| name != "logprobs").collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        // No option is a list of lists.
        let wrong = serde_json::json!({ name.clone(): [[]] });
        let error = GenerationOptions::from_bus(wrong.as_object().unwrap().clone()).unwrap_err();
        assert!(error.param.as_deref().is_some_and(|param| param.starts_with(&name)), "{name}: {error:?}");
    }
}

#[test]
fn every_name_that_a_request_s_parser_takes_is_on_the_page() {
    let page = page::page();
    let mut taken = 0;
    for module in [
        "options",
        "request",
        "form",
        "tools",
        "prompt",
        "tables",
        "status",
        "jobs",
        "calibrate",
        "evaluate",
        "price",
        "prefixes",
        "profile",
    ] {
        for name in source::names_taken(module) {
            taken += 1;
            let told = page.contains(&format!("`{name}`")) || page.contains(&format!("\"{name}\""));
            assert!(told, "{name}, which {module}.rs reads, is not on the page");
        }
    }
    assert!(taken > 50, "{taken} names: the source is not read as it was");
}

#[test]
fn every_route_has_a_type_that_is_on_the_page_and_every_path_a_route() {
    let page = page::page();
    for route in routes::ROUTES {
        for name in [route.takes, route.answers] {
            assert!(name.is_empty() || page.contains(&format!("### {name}\n")), "{name} of {}", route.path);
        }
    }
    let paths: Vec<String> = source::constants("names").into_iter().map(|c| c.value).filter(|v| v.starts_with('/')).collect();
    let elsewhere = |path: &str| path.starts_with("/org/") || path.ends_with(".sock");
    for path in paths.iter().filter(|path| !elsewhere(path)) {
        assert!(routes::ROUTES.iter().any(|route| route.path == path), "{path} is no route");
    }
    assert!(paths.len() > 12);
}
