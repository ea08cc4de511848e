//! Standard output: text as it streams, aligned tables, JSON; a vanished reader is an error that ends the command quietly.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Prints a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Io("output".into(), error.into()))?;
    text_line(&text)
}

/// Prints a line.
pub fn text_line(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints lines to stderr, where they do not mix with the answer; a closed stderr is no reason to fail.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints streamed text at once. On a terminal, control characters other than line feed and tab are left out: a model's text must not drive it.
pub struct Streamed {
    clean: bool,
    ends_line: bool,
}

impl Streamed {
    /// For standard output as it is.
    pub fn new() -> Self {
        Self { clean: io::stdout().is_terminal(), ends_line: true }
    }

    /// Prints a piece.
    pub fn push(&mut self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if self.clean {
            out.write_all(printable(text).as_bytes())?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        if let Some(last) = text.chars().next_back() {
            self.ends_line = last == '\n';
        }
        Ok(out.flush()?)
    }

    /// Ends the last line.
    pub fn finish(&mut self) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.ends_line, true) {
            text_line("")?;
        }
        Ok(())
    }
}

/// Without control characters but line feed and tab.
pub fn printable(text: &str) -> String {
    text.chars().filter(|&c| c == '\n' || c == '\t' || !c.is_control()).collect()
}

/// Lines of cells as aligned columns, two spaces apart; nothing trails.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> =
        (0..count).map(|i| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_characters_and_end_bare() {
        let rows = [vec!["a".into(), "b".into()], vec!["λλλ".into(), "c".into()], vec!["x".into(), String::new()]];
        assert_eq!(columns(&rows), "a    b\nλλλ  c\nx\n");
    }

    #[test]
    fn escapes_of_a_model_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n\tc\u{7}\u{9b}"), "a[31mb\n\tc");
    }
}
