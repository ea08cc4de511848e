//! The page: chapters of tables, made of what [`source`](super::source) and [`bus`](super::bus) read and of the protocol's own tables.

use crate::bus;
use crate::source::{self, Item, Member};
use skip_client::ErrorKind;
use skip_client::protocol::routes::ROUTES;
use skip_client::protocol::{FinishReason, names, unsupported};
use std::fmt::Write;

/// Types that belong together.
pub struct Chapter {
    title: &'static str,
    words: &'static str,
    pub modules: &'static [&'static str],
}

/// The chapters that are made of types.
pub const CHAPTERS: &[Chapter] = &[
    Chapter {
        title: "Requests",
        words: "On the socket the fields of `GenerationOptions` lie beside `messages` or `prompt`. On the bus they are the keys of the `a{sv}`, with \
            those of `SkipdOptions` beside them, and with `model`, `handle_token` (the last part of the request's path) and `error_details`. A wrong \
            field is refused by its whole path.",
        modules: &["request", "options", "prompt", "form", "tools", "bias"],
    },
    Chapter {
        title: "Answers",
        words: "A stream of server-sent events ends with the chunk that has the reason, then usage if it was asked for, then `[DONE]`; or with one event \
            `{\"error\": …}`, whose `details` hold the usage, and nothing more. On the bus the descriptor carries one `StreamEvent` a line, the last of \
            them `finished`. Text is always whole UTF-8, and what may begin a stop string is held back.",
        modules: &["completion", "event", "finish", "usage"],
    },
    Chapter { title: "Status and requests under way", words: "", modules: &["status", "activity"] },
    Chapter { title: "Tables", words: "", modules: &["tables"] },
    Chapter { title: "Updates over the air", words: "", modules: &["update"] },
    Chapter { title: "Clock profiles", words: "", modules: &["profile"] },
    Chapter { title: "Pinned prefixes", words: "", modules: &["prefixes"] },
    Chapter { title: "Jobs", words: "", modules: &["jobs", "calibrate", "evaluate", "price"] },
];

/// Modules that are on the page otherwise.
pub const OTHERWISE: &[&str] = &["error", "names", "routes", "unsupported"];

/// All of it.
pub fn page() -> String {
    let mut out = String::from(
        "<!-- Written by the test that compares it with the types in client/src/protocol: SKIPD_WRITE_DOCS=1 tools/test pages. -->\n# Protocol\n\n\
        What goes over the socket and the bus, type by type; [interfaces](interfaces.md) says how it is meant. `?` behind a type: the field may be \
        absent or null.\n",
    );
    let types: Vec<String> =
        CHAPTERS.iter().flat_map(|c| c.modules).flat_map(|module| source::items(module)).map(|item| item.name).collect();
    routes(&mut out);
    let _ = write!(out, "\n## Bus\n\nName `{}`, object `{}`.\n{}", names::BUS_NAME, names::OBJECT_PATH, plain(&bus::chapter(), &types));
    for chapter in CHAPTERS {
        let _ = write!(out, "\n## {}\n", chapter.title);
        if !chapter.words.is_empty() {
            let _ = write!(out, "\n{}\n", chapter.words);
        }
        for item in chapter.modules.iter().flat_map(|module| source::items(module)) {
            item_section(&mut out, &item, &types);
        }
        if chapter.title == "Requests" {
            refused(&mut out);
        }
    }
    errors(&mut out, &types);
    out
}

fn routes(out: &mut String) {
    out.push_str("\n## Routes\n\n| | takes | answers | who | |\n|---|---|---|---|---|\n");
    let link = |name: &str| if name.is_empty() { String::new() } else { format!("[{name}](#{})", name.to_lowercase()) };
    for route in ROUTES {
        let _ = writeln!(
            out,
            "| `{} {}` | {} | {} | {} | {} |",
            route.method,
            route.path,
            link(route.takes),
            link(route.answers),
            route.who.name(),
            route.words
        );
    }
    let header =
        |name: &str| source::constants("names").into_iter().find(|c| c.value == name).map(|c| plain(&c.docs, &[])).unwrap_or_default();
    let _ = write!(
        out,
        "\nMembers are in the group of `--group`, administrators are uid 0 and the daemon's own user. `{}`: {} `{}`: {} `Retry-After`: seconds, with `busy`, \
        `not_ready` and `draining`.\n",
        names::REQUEST_ID_HEADER,
        header(names::REQUEST_ID_HEADER),
        names::IGNORED_HEADER,
        header(names::IGNORED_HEADER),
    );
}

fn item_section(out: &mut String, item: &Item, types: &[String]) {
    let _ = write!(out, "\n### {}\n\n{}\n", item.name, plain(&item.docs, types));
    if let Some(tag) = item.tag() {
        let _ = write!(out, "\n| `{tag}` | further fields | |\n|---|---|---|\n");
        for variant in &item.members {
            let fields: Vec<String> = variant
                .members
                .iter()
                .map(|field| format!("`{}` {}: {}", field.wire, kind(field, types), plain(&field.docs, types)))
                .collect();
            let _ = writeln!(out, "| `{}` | {} | {} |", variant.wire, fields.join("<br>"), plain(&variant.docs, types));
        }
    } else if item.is_enum && item.names_variants() {
        out.push_str("\n| | |\n|---|---|\n");
        for variant in &item.members {
            let error = FinishReason::error_kind;
            let of = |reason: &FinishReason| item.name == "FinishReason" && reason.name() == variant.wire;
            let code = REASONS
                .iter()
                .find(|reason| of(reason))
                .and_then(|reason| error(*reason))
                .map_or(String::new(), |kind| format!(" Error code `{}`.", kind.code()));
            let value =
                if item.is_word() || variant.kind.is_empty() { String::new() } else { format!(": {}", typed(&variant.kind, types)) };
            let _ = writeln!(out, "| `{}`{value} | {}{code} |", variant.wire, plain(&variant.docs, types));
        }
    } else if item.is_enum {
        out.push('\n');
        for variant in &item.members {
            let _ = writeln!(out, "- {}", plain(&variant.docs, types));
        }
    } else if !item.members.is_empty() {
        out.push_str("\n| field | type | |\n|---|---|---|\n");
        for field in item.members.iter().filter(|field| field.wire != "unknown") {
            let _ = writeln!(out, "| `{}` | {} | {} |", field.wire, kind(field, types), plain(&field.docs, types));
        }
    }
}

const REASONS: [FinishReason; 9] = [
    FinishReason::Stop,
    FinishReason::Length,
    FinishReason::ToolCalls,
    FinishReason::Cancelled,
    FinishReason::Deadline,
    FinishReason::SlowReader,
    FinishReason::Shutdown,
    FinishReason::DeviceFault,
    FinishReason::Error,
];

fn refused(out: &mut String) {
    let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let _ = write!(
        out,
        "\n### Fields that are refused, and fields that are ignored\n\nRefused with `unsupported_parameter`, for they would change the output, unless the value asks \
        for nothing (zero, false, empty, the default): {}. `n` above 1 and `echo` likewise; of a message: {}. Any other field that is not known is ignored on the \
        socket and named in the header `{}`; on the bus it is refused.\n",
        list(unsupported::CHANGES_OUTPUT),
        list(unsupported::OF_A_MESSAGE),
        names::IGNORED_HEADER
    );
}

fn errors(out: &mut String, types: &[String]) {
    let _ = write!(
        out,
        "\n## Errors\n\nThe body is `{{\"error\": …}}` with an [ErrorObject](#errorobject); on the bus the error's name is below `{}`, its body the words, and where \
        `error_details` was asked for an `a{{sv}}` with `param` and `details`. skipctl's exit codes are, beside these, 0 done, 1 a local file or the terminal, 2 wrong \
        usage, 10 and 11 an evaluation that fails and one that cannot tell, 12 a doctor who found a failure, 130 interrupted.\n\n| `code` | HTTP | `type` | bus | exit | |\n|---|---|---|---|---|---|\n",
        skip_client::protocol::error::DBUS_ERROR_PREFIX,
    );
    for (kind, words) in ErrorKind::ALL.into_iter().zip(source::error_kinds()) {
        let bus = kind.dbus_name();
        let bus = bus.rsplit('.').next().unwrap();
        let _ = writeln!(
            out,
            "| `{}` | {} | `{}` | `{bus}` | {} | {} |",
            kind.code(),
            kind.http_status(),
            kind.openai_type(),
            kind.exit_code(),
            plain(&words, types)
        );
    }
    for item in source::items("error").into_iter().filter(|item| item.name == "ErrorObject") {
        item_section(out, &item, types);
    }
}

/// A field's type as JSON has it.
fn kind(field: &Member, types: &[String]) -> String {
    format!("{}{}", typed(&field.kind, types), if field.optional { "?" } else { "" })
}

fn typed(kind: &str, types: &[String]) -> String {
    let inside = |wrapper: &str| kind.strip_prefix(wrapper).and_then(|rest| rest.strip_suffix('>'));
    if let Some(inner) = inside("Option<") {
        return typed(inner, types);
    }
    if let Some(inner) = inside("Vec<") {
        return format!("list of {}", typed(inner, types));
    }
    match kind.trim_start_matches("serde_json::").trim_start_matches("std::collections::") {
        "String" => "text".into(),
        "bool" => "boolean".into(),
        "u8" | "u32" | "u64" | "usize" => "integer".into(),
        "[f64; 2]" => "`[number, number]`".into(),
        "(usize, f64, f64)" => "`[integer, number, number]`".into(),
        "f32" | "f64" => "number".into(),
        "Value" => "JSON".into(),
        "Map<String, Value>" | "Map<String, serde_json::Value>" => "object".into(),
        "BTreeMap<String, u64>" => "object of integers".into(),
        "(u32, f32)" | "TableRow" => "`[integer, number]`".into(),
        "Phase" => "`prefill`, `decode`".into(),
        "Error" => "[ErrorObject](#errorobject)".into(),
        name if types.iter().any(|known| known == name) => format!("[{name}](#{})", name.to_lowercase()),
        other => panic!("{other} has no words yet"),
    }
}

/// Documentation without the links of rustdoc, fit for a cell of a table.
fn plain(docs: &str, types: &[String]) -> String {
    let mut out = String::new();
    let mut rest = docs;
    while let Some((before, link)) = rest.split_once("[`") {
        out.push_str(before);
        let Some((name, behind)) = link.split_once("`]") else {
            out.push_str("[`");
            rest = link;
            continue;
        };
        rest = behind.strip_prefix('(').and_then(|target| target.split_once(')')).map_or(behind, |(_, behind)| behind);
        let name = name.trim_start_matches("Self::").trim_start_matches("super::");
        match types.iter().find(|known| *known == name) {
            Some(name) => out.push_str(&format!("[{name}](#{})", name.to_lowercase())),
            None => out.push_str(&format!("`{name}`")),
        }
    }
    out.push_str(rest);
    out
}
