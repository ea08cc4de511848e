//! The bus's members: what the introspection says of them, and the words of the code that serves them.

use std::collections::HashMap;
use std::fmt::Write;

/// All interfaces as tables.
pub fn chapter() -> String {
    let words = words();
    let xml = crate::read("daemon/service/dbus/org.skipd.Skipd1.xml");
    let mut out = String::new();
    for interface in xml.split("<interface ").skip(1) {
        let interface = interface.split("</interface>").next().unwrap();
        let name = attribute(interface, "name").unwrap();
        let _ = write!(out, "\n### {name}\n\n| | | |\n|---|---|---|\n");
        for member in members(interface) {
            let said = words.get(&(name.to_owned(), member.name.clone())).map_or("", String::as_str);
            let _ = writeln!(out, "| {} | `{}` | {said} |", member.what, member.signature);
        }
    }
    out
}

struct Member {
    what: &'static str,
    name: String,
    signature: String,
}

fn members(interface: &str) -> Vec<Member> {
    let mut members = Vec::new();
    for (what, open, close) in [("method", "<method ", "</method>"), ("signal", "<signal ", "</signal>")] {
        for part in interface.split(open).skip(1) {
            let part = part.split(close).next().unwrap();
            let name = attribute(part, "name").unwrap().to_owned();
            let (mut takes, mut gives) = (Vec::new(), Vec::new());
            for arg in part.split("<arg ").skip(1) {
                let text = format!("{} {}", attribute(arg, "type").unwrap(), attribute(arg, "name").unwrap());
                if attribute(arg, "direction") == Some("out") { &mut gives } else { &mut takes }.push(text);
            }
            let gives = if gives.is_empty() { String::new() } else { format!(" → ({})", gives.join(", ")) };
            members.push(Member { what, signature: format!("{name}({}){gives}", takes.join(", ")), name });
        }
    }
    for part in interface.split("<property ").skip(1) {
        let name = attribute(part, "name").unwrap().to_owned();
        members.push(Member { what: "property", signature: format!("{name}: {}", attribute(part, "type").unwrap()), name });
    }
    members
}

/// The first value of an attribute.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let element = element.split('>').next()?;
    let (_, rest) = element.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// The first sentence of documentation by interface and member.
fn words() -> HashMap<(String, String), String> {
    let mut words = HashMap::new();
    for module in ["manager", "control", "jobs", "prefixes", "profile", "requests", "update"] {
        let text = crate::read(&format!("daemon/service/src/bus/{module}.rs"));
        for served in text.split("#[interface(name = \"").skip(1) {
            let (interface, body) = served.split_once('"').unwrap();
            let mut docs: Vec<&str> = Vec::new();
            for line in body.lines().take_while(|line| *line != "}") {
                let line = line.trim();
                if let Some(text) = line.strip_prefix("///") {
                    docs.push(text.trim());
                } else if let Some(function) = line.split_once("fn ").filter(|_| !line.starts_with("//")).map(|(_, rest)| rest) {
                    let name: String = function.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    words.insert((interface.to_owned(), member_name(&name)), docs.join(" "));
                    docs.clear();
                } else if !line.starts_with("#[") {
                    docs.clear();
                }
            }
        }
    }
    words
}

/// `set_table` is `SetTable` on the bus.
fn member_name(function: &str) -> String {
    let word = |word: &str| word.chars().enumerate().map(|(i, c)| if i == 0 { c.to_ascii_uppercase() } else { c }).collect::<String>();
    function.split('_').map(word).collect()
}
