//! The Jinja environment that transformers gives a chat template (`utils/chat_template_utils.py`), with limits.

use super::python_json;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::fmt;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Work a rendering may take: one unit an instruction or 64 bytes of text handled. A thousand messages of a thousand bytes take about 100,000.
const FUEL: u64 = 2_000_000;
/// Longest rendering, in bytes.
const MAX_OUTPUT: usize = 64 << 20;

/// An environment without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    // The delimiters are the default ones, which are valid.
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// Transformers marks the assistant's turns for training with `{% generation %}`; here the marks say nothing. They become a block that
/// always runs, so that whitespace around them behaves the same.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    // Copied up to here; looked at up to there; and the first end behind the opening last found.
    let (mut copied, mut seen, mut end) = (0, 0, 0);
    while let Some(at) = source[seen..].find("{%") {
        let inside = seen + at + 2;
        if end < inside {
            let Some(length) = source[inside..].find("%}") else { break };
            end = inside + length;
        }
        let name = source[inside..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => {
                // Only the opening is passed over: a string inside may hold what looks like an end.
                seen = inside;
                continue;
            }
        };
        out.push_str(&source[copied..inside]);
        out.push_str(&source[inside..end].replace(name, replacement));
        (copied, seen) = (end, end);
    }
    out.push_str(&source[copied..]);
    out
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn tojson(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.map_or_else(|| kwargs.get("indent"), |n| Ok(Some(n)))?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let _: (Option<Value>, Option<bool>) = (kwargs.get("separators")?, kwargs.get("sort_keys")?);
    kwargs.assert_all_used()?;
    if ascii == Some(true) || indent.is_some_and(|n| n > 16) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: ensure_ascii and indents above 16 are not supported"));
    }
    python_json::dumps(value, indent).map(Value::from_safe_string).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// What `raise_exception` was called with; the source of the error it makes.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

/// The message of `raise_exception`, where that ended the rendering.
pub(super) fn raised(error: &minijinja::Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        source = inner.source();
    }
    None
}

/// The present date and time in UTC, in the fields that templates use.
fn strftime_now(format: String) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(&format, seconds)
}

fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    const MONTHS: [&str; 12] =
        ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out += &match chars.next() {
            Some('Y') => format!("{year:04}"),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => format!("{:02}", time / 3600),
            Some('M') => format!("{:02}", time / 60 % 60),
            Some('S') => format!("{:02}", time % 60),
            Some('%') => "%".to_owned(),
            other => {
                let field = other.map(String::from).unwrap_or_default();
                return Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now: %{field} is not supported")));
            }
        };
    }
    Ok(out)
}

/// Year, month (1 to 12) and day of days since 1970-01-01 (Hinnant's `civil_from_days`, for days ≥ 0).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// Output that refuses to grow beyond the limit.
#[derive(Default)]
pub(super) struct Bounded {
    /// What was written.
    pub bytes: Vec<u8>,
}

impl io::Write for Bounded {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buffer.len() > MAX_OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_marks_keep_their_whitespace_control() {
        let source = "{%- generation %}a{{ '{% generation %}' }}{% endgeneration -%}{% if x %}b{% endif %}";
        assert_eq!(without_generation_marks(source), "{%- if true %}a{{ '{% if true %}' }}{% endif -%}{% if x %}b{% endif %}");
        assert_eq!(without_generation_marks("{% broken"), "{% broken");
    }

    #[test]
    fn dates_are_formatted_like_pythons() {
        assert_eq!(strftime("%d %B %Y, %A %H:%M:%S %%", 951_782_400).unwrap(), "29 February 2000, Tuesday 00:00:00 %");
        assert_eq!(strftime("%d %b %y", 1_796_000_000).unwrap(), "30 Nov 26");
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
    }
}
