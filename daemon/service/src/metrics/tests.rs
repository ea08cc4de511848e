//! `docs/metrics.md` is made from a scrape, so that every name that is scraped is on it, as it is.

use crate::generation::{Ask, Input, start};
use crate::request_id::RequestId;
use crate::testing::{daemon, myself};
use skip_client::protocol::{GenerationOptions, Prompt};
use std::fmt::Write;
use std::time::Duration;

/// One family of a scrape.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    unit: String,
    help: String,
    labels: Vec<String>,
    samples: usize,
}

/// Families in the order they come; those labels that not every sample of the daemon has.
fn families(scrape: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in scrape.lines().filter(|line| *line != "# EOF") {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            if families.last().is_none_or(|family| family.name != name) {
                families.push(Family { name: name.to_owned(), ..Family::default() });
            }
            let family = families.last_mut().unwrap();
            match what {
                "HELP" => family.help = rest.trim_end_matches('.').to_owned(),
                "TYPE" => family.kind = rest.to_owned(),
                "UNIT" => family.unit = rest.to_owned(),
                _ => panic!("{line}"),
            }
            continue;
        }
        let family = families.last_mut().unwrap();
        let (name, labels) = line.split_once('{').unwrap();
        assert!(name.starts_with(&family.name), "{line} under {}", family.name);
        family.samples += 1;
        let names = labels.split_once('}').unwrap().0.split(',').map(|label| label.split_once('=').unwrap().0);
        for name in names.filter(|name| !["model_name", "le"].contains(name)) {
            if !family.labels.iter().any(|known| known == name) {
                family.labels.push(name.to_owned());
            }
        }
    }
    families
}

fn page(families: &[Family]) -> String {
    let mut page = String::from(
        "<!-- Written by the test that compares it with a scrape: SKIPD_WRITE_DOCS=1 tools/test pages. -->\n# Metrics\n\n\
        `GET /metrics` answers in OpenMetrics text, which Prometheus reads. Names that vLLM has too are spelt as vLLM spells them, so that its\n\
        dashboards work; the rest begins with `skipd_` or, for what every process has, `process_`. Every sample has the label `model_name`. Samples\n\
        of a counter end in `_total`, those of a histogram in `_bucket` (label `le`), `_sum` and `_count`. Before the model is known, only those of\n\
        process and requests are there. Requests one by one, as far as the caller may see them, are at `/skipd/v1/requests` (`skipctl top`).\n\n\
        | name | type | unit | labels | |\n|---|---|---|---|---|\n",
    );
    for Family { name, kind, unit, help, labels, .. } in families {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        // Infallible: a string takes all.
        let _ = writeln!(page, "| `{name}` | {kind} | {unit} | {} | {help} |", labels.join(", "));
    }
    page
}

#[tokio::test]
async fn the_metrics_page_is_the_one_in_the_tree() {
    let daemon = daemon(Duration::ZERO).await;
    let ask = |prompt: &str| {
        let options = GenerationOptions { max_tokens: Some(2), ..GenerationOptions::new() };
        Ask { id: RequestId::new(None), model: None, input: Input::Raw(Prompt::from(prompt)), options }
    };
    // One that is answered and one that is refused, so that every family has a sample, and with it its labels.
    let mut running = start(&daemon, &myself(), ask("ab")).await.unwrap();
    while running.next().await.is_some() {}
    assert!(start(&daemon, &myself(), ask("")).await.is_err());
    crate::profile::show(&daemon).await.unwrap();
    let families = families(&super::render(&daemon).unwrap());
    for family in &families {
        assert!(family.samples > 0 && !family.help.is_empty(), "{family:?}");
    }
    let page = page(&families);
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("SKIPD_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert!(page == std::fs::read_to_string(&file).unwrap_or_default(), "docs/metrics.md is not current:\n{page}");
}
