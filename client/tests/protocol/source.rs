//! Reads the protocol's source as rustfmt leaves it: public structures, enums and constants, with their documentation and how they are written.

/// A public structure or enum that goes over the wire.
#[derive(Debug, Default)]
pub struct Item {
    pub name: String,
    pub docs: String,
    pub is_enum: bool,
    /// Its `#[serde(…)]`.
    serde: String,
    /// Fields, or variants.
    pub members: Vec<Member>,
}

/// A field, or a variant.
#[derive(Debug, Default)]
pub struct Member {
    /// Its name on the wire.
    pub wire: String,
    pub docs: String,
    /// The type of a field.
    pub kind: String,
    /// It is left out, or may be.
    pub optional: bool,
    /// The fields of a variant.
    pub members: Vec<Member>,
}

/// A public text constant.
#[derive(Debug)]
pub struct Constant {
    pub docs: String,
    pub value: String,
}

impl Item {
    /// It is one word of several.
    pub fn is_word(&self) -> bool {
        self.is_enum
            && self.serde.contains("rename_all")
            && self.members.iter().all(|member| member.members.is_empty() && member.kind.is_empty())
    }

    /// The field that tells its variants apart.
    pub fn tag(&self) -> Option<&str> {
        self.serde.split_once("tag = \"")?.1.split_once('"').map(|(tag, _)| tag)
    }

    /// Variants have their names on the wire, as words or as the one field of an object.
    pub fn names_variants(&self) -> bool {
        self.serde.contains("rename_all") || self.name == "ToolChoice"
    }
}

fn source(module: &str) -> String {
    let text = crate::read(&format!("client/src/protocol/{module}.rs"));
    text.split("#[cfg(test)]").next().unwrap().to_owned()
}

/// What precedes a declaration.
#[derive(Default)]
struct Above {
    docs: Vec<String>,
    attributes: String,
}

impl Above {
    /// Takes a line of documentation or attributes; false for another.
    fn takes(&mut self, line: &str) -> bool {
        let line = line.trim();
        if let Some(docs) = line.strip_prefix("///") {
            self.docs.push(docs.trim().to_owned());
        } else if line.starts_with("#[") {
            self.attributes.push_str(line);
        } else {
            return false;
        }
        true
    }

    fn docs(&self) -> String {
        self.docs.join(" ")
    }

    /// The text of `#[serde(key = "…")]`.
    fn serde(&self, key: &str) -> Option<String> {
        let (_, rest) = self.attributes.split_once(&format!("{key} = \""))?;
        rest.split_once('"').map(|(text, _)| text.to_owned())
    }
}

/// The types of a module that go over the wire, in order.
pub fn items(module: &str) -> Vec<Item> {
    let text = source(module);
    let (mut items, mut above) = (Vec::new(), Above::default());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if above.takes(line) {
            continue;
        }
        let above = std::mem::take(&mut above);
        let Some((is_enum, rest)) = declaration(line) else { continue };
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
        let own = format!("impl Serialize for {name} ");
        let goes = above.attributes.contains("Serialize") || text.contains(&own);
        let rename = above.serde("rename_all").unwrap_or_default();
        let mut members = Vec::new();
        if line.ends_with('{') {
            members = if is_enum { variants(&mut lines, &rename) } else { fields(&mut lines, "}") };
        }
        // The error itself has a shape of its own: that of its object.
        if goes && !["Error", "ErrorKind"].contains(&name.as_str()) {
            items.push(Item { name, docs: above.docs(), is_enum, serde: above.attributes.clone(), members });
        }
    }
    items
}

fn declaration(line: &str) -> Option<(bool, &str)> {
    let item = line.strip_prefix("pub ")?;
    item.strip_prefix("enum ").map(|rest| (true, rest)).or_else(|| item.strip_prefix("struct ").map(|rest| (false, rest)))
}

/// The public fields up to the line that closes them.
fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>, close: &str) -> Vec<Member> {
    let (mut fields, mut above) = (Vec::new(), Above::default());
    for line in lines {
        if line.trim() == close.trim() && line.len() <= close.len() {
            break;
        }
        if above.takes(line) {
            continue;
        }
        let above = std::mem::take(&mut above);
        let line = line.trim();
        let Some((name, kind)) = line.strip_prefix("pub ").unwrap_or(line).trim_end_matches(',').split_once(": ") else { continue };
        fields.push(Member {
            wire: if above.attributes.contains("flatten") {
                "…".into()
            } else {
                above.serde("rename").unwrap_or_else(|| name.to_owned())
            },
            docs: above.docs(),
            kind: kind.to_owned(),
            optional: kind.starts_with("Option<")
                || above.attributes.contains("default")
                || above.attributes.contains("skip_serializing_if"),
            members: Vec::new(),
        });
    }
    fields
}

fn variants<'a>(lines: &mut impl Iterator<Item = &'a str>, rename: &str) -> Vec<Member> {
    let (mut variants, mut above) = (Vec::new(), Above::default());
    while let Some(line) = lines.next() {
        if line == "}" {
            break;
        }
        if above.takes(line) {
            continue;
        }
        let above = std::mem::take(&mut above);
        let name: String = line.trim().chars().take_while(|c| c.is_alphanumeric()).collect();
        let kind = line.split_once('(').map(|(_, rest)| rest.trim_end_matches([',', ')']).to_owned()).unwrap_or_default();
        let members = if line.ends_with('{') { fields(lines, "    },") } else { Vec::new() };
        variants.push(Member { wire: spelled(&name, rename), docs: above.docs(), kind, optional: false, members });
    }
    variants
}

/// A variant's name as serde writes it; without a rule in lower case.
fn spelled(name: &str, rename: &str) -> String {
    let separator = match rename {
        "snake_case" => "_",
        "kebab-case" => "-",
        _ => "",
    };
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_uppercase() && i > 0 {
            out.push_str(separator);
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// The documentation of each variant of `ErrorKind`, in order.
pub fn error_kinds() -> Vec<String> {
    let text = source("error");
    let mut lines = text.lines().skip_while(|line| !line.starts_with("pub enum ErrorKind"));
    lines.next();
    variants(&mut lines, "").into_iter().map(|variant| variant.docs).collect()
}

/// The text constants of a module.
pub fn constants(module: &str) -> Vec<Constant> {
    let text = source(module);
    let (mut constants, mut above) = (Vec::new(), Above::default());
    for line in text.lines() {
        if above.takes(line) {
            continue;
        }
        let above = std::mem::take(&mut above);
        let Some((_, value)) = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": &str = ")) else { continue };
        constants.push(Constant { docs: above.docs(), value: value.trim_matches([';', '"']).to_owned() });
    }
    constants
}

/// The names of fields that a module's parsers take.
pub fn names_taken(module: &str) -> Vec<String> {
    let text = source(module);
    let mut names = Vec::new();
    for call in ["optional", "required", "inner"] {
        for (at, _) in text.match_indices(&format!(".{call}")) {
            let argument = text[at..].split_once('(').map(|(_, rest)| rest).unwrap_or_default();
            names.extend(argument.strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()));
        }
    }
    names.sort();
    names.dedup();
    names
}
