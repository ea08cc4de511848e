//! Comma-separated rows (RFC 4180): fields may be quoted, quotes in them doubled, and hold line breaks.

/// A row and the line it begins on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub line: usize,
    pub fields: Vec<String>,
}

/// The rows of a text.
///
/// # Errors
/// The line, and what is wrong with it.
pub(super) fn rows(text: &str) -> Result<Vec<Row>, (usize, String)> {
    let mut out = Vec::new();
    let mut line = 1;
    let mut chars = text.chars().peekable();
    while chars.peek().is_some() {
        let begin = line;
        let mut fields = Vec::new();
        loop {
            let mut field = String::new();
            if chars.next_if_eq(&'"').is_some() {
                loop {
                    match chars.next() {
                        Some('"') if chars.next_if_eq(&'"').is_some() => field.push('"'),
                        Some('"') => break,
                        Some(c) => {
                            line += usize::from(c == '\n');
                            field.push(c);
                        }
                        None => return Err((begin, "a quoted field does not end".into())),
                    }
                }
                if let Some(c) = chars.peek().filter(|c| !matches!(c, ',' | '\r' | '\n')) {
                    return Err((line, format!("{c:?} behind a quoted field")));
                }
            } else {
                while let Some(c) = chars.next_if(|c| !matches!(c, ',' | '\n')) {
                    field.push(c);
                }
                field.truncate(field.trim_end_matches('\r').len());
            }
            fields.push(field);
            chars.next_if_eq(&'\r');
            match chars.next() {
                Some(',') => {}
                Some('\n') => {
                    line += 1;
                    break;
                }
                None => break,
                Some(c) => return Err((line, format!("{c:?} where a comma or the end of the line should be"))),
            }
        }
        if fields.iter().any(|field| !field.trim().is_empty()) {
            out.push(Row { line: begin, fields });
        }
    }
    Ok(out)
}
