//! A page: styles that follow the reader's light or dark, and fit a phone.

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--band:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--paper:#0d1117;--band:#151b23}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;max-width:1100px;padding:1rem}
h1{font-size:1.6rem}h2{border-bottom:1px solid var(--line);padding-bottom:.3rem;margin-top:2.5rem;overflow-wrap:anywhere}h3{margin:1.5rem 0 .5rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
figure{margin:0;min-width:0}figcaption{font-weight:600}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}td.long{white-space:normal;overflow-wrap:anywhere}
th{background:var(--band)}details{margin:.75rem 0}summary{cursor:pointer;color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.875rem;color:var(--soft)}.legend svg{display:inline-block;width:1.6em;height:.5em;vertical-align:middle;margin-right:.4em}
@media(max-width:500px){svg text{font-size:14px}}
";

/// A page in the making.
pub struct Html(String);

impl Html {
    pub fn new(title: &str) -> Self {
        Self(format!(
            "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width,initial-scale=1\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
            escape(title)
        ))
    }

    /// Adds markup.
    pub fn push(&mut self, markup: &str) {
        self.0.push_str(markup);
        self.0.push('\n');
    }

    pub fn section(&mut self, title: &str) {
        self.push(&format!("<h2>{}</h2>", escape(title)));
    }

    /// A table of texts; without heads the first column is one.
    pub fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) {
        let cells = |row: &Vec<String>| -> String {
            let cell = |(i, text): (usize, &String)| match (heads.is_empty(), i) {
                (true, 0) => format!("<th scope=row>{}</th>", escape(text)),
                (true, _) => format!("<td class=long>{}</td>", escape(text)),
                (false, _) => format!("<td>{}</td>", escape(text)),
            };
            row.iter().enumerate().map(cell).collect()
        };
        let head: String = heads.iter().map(|head| format!("<th scope=col>{}</th>", escape(head))).collect();
        let head = if heads.is_empty() { String::new() } else { format!("<thead><tr>{head}</tr></thead>") };
        let body: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row))).collect();
        self.push(&format!("<div class=wide><table>{head}<tbody>\n{body}</tbody></table></div>"));
    }

    /// A table that opens when it is asked for.
    pub fn folded(&mut self, title: &str, heads: &[&str], rows: &[Vec<String>]) {
        self.push(&format!("<details><summary>{}</summary>", escape(title)));
        self.table(heads, rows);
        self.push("</details>");
    }

    pub fn finish(mut self) -> String {
        self.push("</body>\n</html>");
        self.0
    }
}

/// Text as markup.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
