//! Cuts a byte stream into lines, wherever the reads split it, with a bound on the longest line.

use crate::protocol::error::{Error, ErrorKind};

/// Longest line accepted, bytes; a token with 20 log-probabilities takes about two thousand.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Bytes received and not yet cut.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Start of what is not cut yet.
    start: usize,
    /// Up to here no line end was found.
    scanned: usize,
}

impl Lines {
    /// Adds what a read returned.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line without its end (`\n` or `\r\n`); None: more bytes are needed.
    pub(crate) fn next_line(&mut self) -> Result<Option<String>, Error> {
        let found = self.buffer[self.scanned..].iter().position(|&byte| byte == b'\n').map(|at| at + self.scanned);
        let end = found.unwrap_or(self.buffer.len());
        if end - self.start > MAX_LINE {
            return Err(Error::new(ErrorKind::Protocol, format!("a line of the stream is longer than {MAX_LINE} bytes")));
        }
        self.scanned = end;
        let Some(end) = found else { return Ok(None) };
        let line = &self.buffer[self.start..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = std::str::from_utf8(line).map_err(|_| Error::new(ErrorKind::Protocol, "the stream is not UTF-8"))?.to_owned();
        self.start = end + 1;
        self.scanned = self.start;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(input: &[u8], step: usize) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for piece in input.chunks(step.max(1)) {
            lines.push(piece);
            while let Some(line) = lines.next_line().unwrap() {
                out.push(line);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn where_reads_split_does_not_matter(text in "[a-zä€\\r\\n]{0,60}", step in 1usize..9) {
            prop_assert_eq!(cut(text.as_bytes(), step), cut(text.as_bytes(), usize::MAX));
        }
    }

    #[test]
    fn both_line_ends_are_cut_and_the_rest_waits() {
        assert_eq!(cut(b"a\r\nb\n\nc", 1), ["a", "b", ""]);
    }

    #[test]
    fn an_endless_line_is_an_error_and_not_memory() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MAX_LINE + 1]);
        assert_eq!(lines.next_line().unwrap_err().kind, ErrorKind::Protocol);
    }

    #[test]
    fn bad_utf8_is_an_error() {
        let mut lines = Lines::default();
        lines.push(b"\xff\n");
        assert_eq!(lines.next_line().unwrap_err().kind, ErrorKind::Protocol);
    }
}
