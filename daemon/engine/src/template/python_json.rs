//! JSON as Python's `json.dumps(…, ensure_ascii=False)` writes it: a space after `,` and `:`, floats as `repr` gives them.

use super::environment::Bounded;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Serialises; with `indent`, over several lines. Fails where the text grows beyond what a rendering may have.
pub(super) fn dumps(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut out = Bounded::default();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Python))?,
        Some(indent) => {
            let indent = " ".repeat(indent);
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(indent.as_bytes())))?;
        }
    }
    String::from_utf8(out.bytes).map_err(serde::ser::Error::custom)
}

struct Python;

impl Formatter for Python {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float_repr(value).as_bytes())
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Python's `repr` of a finite float: shortest digits, an exponent of at least two digits below 1e-4 and from 1e16 on.
fn float_repr(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dumps_is_pythons() {
        let value = json!({"b": [1, 2.0, "é\n\"<"], "a": {}, "n": null, "t": true});
        assert_eq!(dumps(&value, None).unwrap(), r#"{"b": [1, 2.0, "é\n\"<"], "a": {}, "n": null, "t": true}"#);
        assert_eq!(dumps(&json!({"a": [1], "e": []}), Some(2)).unwrap(), "{\n  \"a\": [\n    1\n  ],\n  \"e\": []\n}");
    }

    #[test]
    fn floats_are_pythons_repr() {
        for (value, repr) in
            [(1e-5, "1e-05"), (1.5e-7, "1.5e-07"), (1e16, "1e+16"), (123456.0, "123456.0"), (0.1, "0.1"), (-2.5e100, "-2.5e+100")]
        {
            assert_eq!(float_repr(value), repr);
        }
    }
}
