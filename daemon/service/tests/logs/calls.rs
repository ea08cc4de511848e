//! The calls of tracing's macros in a source, read well enough for the forms that are used here.

use std::collections::BTreeSet;

/// An event or a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// `error`, `warn`, `info`, `debug`, `trace`; `info_span`, …
    pub level: &'static str,
    /// Its text, or the span's name.
    pub words: String,
    /// Names of its fields.
    pub fields: BTreeSet<String>,
}

impl Event {
    /// Whether it is in the log at the usual level.
    pub fn is_usual(&self) -> bool {
        ["error", "warn", "info", "error_span", "warn_span", "info_span"].contains(&self.level)
    }
}

const LEVELS: [&str; 10] = ["error", "warn", "info", "debug", "trace", "error_span", "warn_span", "info_span", "debug_span", "trace_span"];

/// All of a source; what follows its tests' `#[cfg(test)]` is not of the process.
pub fn events(source: &str) -> Vec<Event> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for level in LEVELS {
        let call = format!("{level}!(");
        for (at, _) in source.match_indices(&call) {
            let before = &source[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            // One spelling, so that none is missed.
            assert!(before.ends_with("tracing::"), "{call} without tracing:: before it");
            found.push(event(level, &arguments(&source[at + call.len()..])));
        }
    }
    found
}

fn event(level: &'static str, arguments: &[String]) -> Event {
    let mut fields = BTreeSet::new();
    for argument in arguments {
        if let Some(words) = argument.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            // A span's name comes first, its fields after it; an event's fields before its text, whose arguments follow.
            if level.ends_with("_span") {
                fields.extend(arguments[1..].iter().map(|argument| field(argument)));
            }
            return Event { level, words: words.to_owned(), fields };
        }
        fields.insert(field(argument));
    }
    panic!("{level}!({arguments:?}) has no text");
}

/// `uid = x`, `%error`, `reason`.
fn field(argument: &str) -> String {
    let name = argument.split('=').next().unwrap_or_default().trim().trim_start_matches(['%', '?']);
    assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{argument} is no field");
    name.to_owned()
}

/// The arguments up to the call's end, without spaces around.
fn arguments(text: &str) -> Vec<String> {
    let (mut depth, mut quoted, mut escaped) = (0_i32, false, false);
    let (mut all, mut one) = (Vec::new(), String::new());
    for c in text.chars() {
        if quoted {
            (quoted, escaped) = (escaped || c != '"', !escaped && c == '\\');
        } else {
            match c {
                '"' => quoted = true,
                '(' | '[' | '{' => depth += 1,
                ')' if depth == 0 => break,
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 0 => {
                    all.push(std::mem::take(&mut one).trim().to_owned());
                    continue;
                }
                _ => {}
            }
        }
        one.push(c);
    }
    all.push(one.trim().to_owned());
    all.retain(|argument| !argument.is_empty());
    all
}

#[test]
fn calls_are_read_as_tracing_reads_them() {
    let source = r#"
        tracing::info!(%error, uid = self.f(a, "x, \"y"), reason, "gone: {}", why(1));
        async { next.instrument(tracing::info_span!("request", id = id.name())) };
        tracing::warn!("plain, {words}");
        #[cfg(test)]
mod tests { tracing::info!("not this"); }"#;
    let of = |level, words: &str, fields: &[&str]| Event {
        level,
        words: words.into(),
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
    };
    assert_eq!(
        events(source),
        [of("warn", "plain, {words}", &[]), of("info", "gone: {}", &["error", "uid", "reason"]), of("info_span", "request", &["id"])]
    );
}
