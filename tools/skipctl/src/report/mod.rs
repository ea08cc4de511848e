//! `report`: one page of what `price` measured, of one run or several side by side, with nothing outside it: styles and drawings are in the page.

mod chart;
mod heat;
mod html;
mod limits;

pub use limits::check;

use crate::format::{ratio, times};
use chart::{Chart, Point, Series};
use html::{Html, escape};
use skip_client::protocol::{Price, PriceAccuracy, PriceSpeed};
use std::collections::BTreeSet;

/// One of the times of a length and tier, where there is one.
type TimeOf = fn(&PriceSpeed) -> Option<f64>;

/// The page of some runs.
pub fn page(runs: &[Price]) -> String {
    let mut out = Html::new("skipd: speed, accuracy and attention by tier");
    out.push("<h1>What skipping costs and gains</h1>");
    for run in runs {
        out.section(&title(run, runs.len()));
        facts(&mut out, run);
        speed(&mut out, run);
        accuracy(&mut out, run);
        break_even(&mut out, run);
        layers(&mut out, run);
    }
    if runs.len() > 1 {
        out.section("Side by side");
        side_by_side(&mut out, runs);
    }
    out.finish()
}

fn title(run: &Price, runs: usize) -> String {
    match (run.label.as_str(), runs) {
        ("", _) => run.model.clone(),
        (label, _) => format!("{label}: {}", run.model),
    }
}

fn facts(out: &mut Html, run: &Price) {
    let mut rows = [["model", &run.model], ["architecture", &run.architecture], ["device", &run.device], ["clocks", &run.clocks]]
        .map(|row| row.map(str::to_owned).to_vec())
        .to_vec();
    rows.extend(run.checkpoint_sha256.iter().map(|hash| vec!["weights".to_owned(), format!("SHA-256 {hash}")]));
    rows.push(vec!["measured".to_owned(), format!("{} by {}", run.date, run.tool)]);
    rows.retain(|row| !row[1].is_empty());
    out.table(&[], &rows);
}

/// The dense time of a length, to set others beside.
fn dense(run: &Price, length: usize) -> Option<&PriceSpeed> {
    run.speed.iter().find(|s| s.length == length && s.tier == "dense")
}

/// Tiers in the order they were measured, dense left out.
fn tiers(run: &Price) -> Vec<&str> {
    let mut tiers = Vec::new();
    for tier in run.speed.iter().map(|s| s.tier.as_str()).filter(|tier| *tier != "dense") {
        if !tiers.contains(&tier) {
            tiers.push(tier);
        }
    }
    tiers
}

/// A line a tier of how many times faster than dense `time` is.
fn speedups(run: &Price, name: impl Fn(&str) -> String, time: impl Fn(&PriceSpeed) -> Option<f64>) -> Vec<Series> {
    let line = |tier: &str| {
        let of_tier = run.speed.iter().filter(|s| s.tier == tier);
        let point = |s: &PriceSpeed| {
            let (dense, own) = (time(dense(run, s.length)?)?, time(s)?);
            Some(Point::new(s.length as f64, ratio(dense, own)?))
        };
        Series { name: name(tier), points: of_tier.filter_map(point).collect(), look: None }
    };
    tiers(run).into_iter().map(line).filter(|series| !series.points.is_empty()).collect()
}

fn speed(out: &mut Html, run: &Price) {
    out.push("<h3>Speed</h3>");
    let charts: [(&str, TimeOf); 3] = [
        ("Time to the first token, dense / tier", |s| s.ttft_ms),
        ("Attention in prefill, dense / tier", |s| s.attention_ms),
        ("Time of a further token, dense / tier", |s| s.tpot_ms),
    ];
    out.push("<div class=charts>");
    for (title, time) in charts {
        let series = speedups(run, str::to_owned, time);
        if !series.is_empty() {
            out.push(&Chart { title, x: "tokens of the prompt", unit: "×", base: Some(1.0), series: &series }.svg());
        }
    }
    out.push("</div>");
    let ms = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.2}"));
    let spread = |x: Option<[f64; 2]>| x.map_or("–".into(), |[low, high]| format!("{low:.2}–{high:.2}"));
    let row = |s: &PriceSpeed| {
        let than_dense = times(dense(run, s.length).and_then(|dense| dense.ttft_ms), s.ttft_ms);
        let skipped = [s.prefill_skipped, s.decode_skipped].map(percent);
        let [prefill, decode] = skipped;
        vec![
            s.length.to_string(),
            s.tier.clone(),
            ms(s.ttft_ms),
            spread(s.ttft_spread_ms),
            than_dense,
            ms(s.attention_ms),
            ms(s.tpot_ms),
            spread(s.tpot_spread_ms),
            prefill,
            decode,
        ]
    };
    let heads = [
        "tokens",
        "tier",
        "TTFT, ms",
        "rounds",
        "dense / tier",
        "attention, ms",
        "TPOT, ms",
        "rounds",
        "prefill skipped",
        "decode skipped",
    ];
    out.folded("All times", &heads, &run.speed.iter().map(row).collect::<Vec<_>>());
}

fn accuracy(out: &mut Html, run: &Price) {
    out.push("<h3>Accuracy</h3>");
    if run.accuracy.is_empty() {
        out.push("<p>Not measured (<code>price --accuracy-lengths</code>).</p>");
        return;
    }
    let arms: BTreeSet<&str> = run.accuracy.iter().map(|a| a.arm.as_str()).collect();
    out.push("<div class=charts>");
    for arm in arms {
        let title = format!("{}: points against dense, 95 % intervals", arm_words(arm));
        let series = scores(run, arm);
        out.push(&Chart { title: &title, x: "tier, % of tiles", unit: "", base: Some(0.0), series: &series }.svg());
    }
    out.push("</div>");
    let row = |a: &PriceAccuracy| {
        let [low, high] = a.interval.map(|x| format!("{:+.1}", -100.0 * x));
        vec![
            a.length.to_string(),
            a.tier.clone(),
            a.arm.clone(),
            percent(a.dense),
            percent(a.score),
            format!("{:+.1}", -100.0 * a.drop),
            format!("{high} to {low}"),
            a.items.to_string(),
        ]
    };
    let heads = ["tokens", "tier", "arm", "dense", "tier", "points", "95 % interval", "items"];
    out.folded("All scores", &heads, &run.accuracy.iter().map(row).collect::<Vec<_>>());
}

/// A line a length of how far the tiers are from dense, in points.
fn scores(run: &Price, arm: &str) -> Vec<Series> {
    let of = || run.accuracy.iter().filter(|a| a.arm == arm);
    let lengths: BTreeSet<usize> = of().map(|a| a.length).collect();
    let point = |a: &PriceAccuracy| {
        let tier: f64 = a.tier.trim_end_matches('%').parse().unwrap_or(0.0);
        let [low, high] = a.interval;
        Point { range: Some([-high, -low].map(|x| 100.0 * x)), ..Point::new(tier, -100.0 * a.drop) }
    };
    let points = |length| of().filter(move |a| a.length == length).map(point).collect();
    let line = |length| Series { name: format!("{length} tokens"), points: points(length), look: None };
    lengths.into_iter().map(line).collect()
}

fn arm_words(arm: &str) -> &str {
    match arm {
        "both" => "Both phases skip",
        "prefill" => "Prefill skips",
        "decode" => "Decode skips",
        other => other,
    }
}

fn break_even(out: &mut Html, run: &Price) {
    let Some(found) = &run.break_even else { return };
    out.push("<h3>Where skipping decode pays</h3>");
    let tier = escape(&found.tier);
    out.push(&match found.length {
        Some(length) => format!("<p>From {length} tokens on ({tier}).</p>"),
        None => format!("<p>At no measured length ({tier}).</p>"),
    });
    let row = |&(length, dense, skip): &(usize, f64, f64)| {
        vec![length.to_string(), format!("{dense:.3}"), format!("{skip:.3}"), times(Some(dense), Some(skip))]
    };
    out.folded(
        "Times of a token",
        &["tokens", "dense, ms", "skipping, ms", "dense / skipping"],
        &found.measured.iter().map(row).collect::<Vec<_>>(),
    );
}

fn layers(out: &mut Html, run: &Price) {
    for of in &run.layers {
        out.push(&format!("<h3>Layers, {} at {}</h3>", escape(&of.phase), escape(&of.tier)));
        out.push("<div class=charts>");
        out.push(&heat::map("Share of tiles skipped", &of.bins, &of.share));
        out.push(&heat::map("Share of softmax mass skipped with them", &of.bins, &of.mass));
        out.push("</div>");
    }
}

fn side_by_side(out: &mut Html, runs: &[Price]) {
    out.push("<div class=charts>");
    let charts: [(&str, TimeOf); 2] =
        [("Time to the first token, dense / tier", |s| s.ttft_ms), ("Time of a further token, dense / tier", |s| s.tpot_ms)];
    for (chart, time) in charts {
        // A colour a tier, a dash a run.
        let mut tiers: Vec<String> = Vec::new();
        let mut series = Vec::new();
        for (dash, run) in runs.iter().enumerate() {
            for mut line in speedups(run, str::to_owned, time) {
                let colour = tiers.iter().position(|tier| *tier == line.name).unwrap_or(tiers.len());
                if colour == tiers.len() {
                    tiers.push(line.name.clone());
                }
                line.look = Some([colour, dash]);
                line.name = format!("{} {}", title(run, 2), line.name);
                series.push(line);
            }
        }
        out.push(&Chart { title: chart, x: "tokens of the prompt", unit: "×", base: Some(1.0), series: &series }.svg());
    }
    out.push("</div>");
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip_client::protocol::{BreakEven, PriceLayers};

    pub(super) fn run(label: &str) -> Price {
        let speed = |length, tier: &str, ttft_ms: f64| PriceSpeed {
            length,
            tier: tier.into(),
            ttft_ms: Some(ttft_ms),
            ttft_spread_ms: Some([ttft_ms - 1.0, ttft_ms + 1.0]),
            tpot_ms: Some(ttft_ms / 100.0),
            tpot_spread_ms: Some([0.1, 0.2]),
            attention_ms: Some(ttft_ms / 2.0),
            rounds: 3,
            ..PriceSpeed::default()
        };
        let accuracy = |tier: &str, drop| PriceAccuracy {
            length: 4096,
            tier: tier.into(),
            arm: "both".into(),
            dense: 0.8,
            score: 0.8 - drop,
            drop,
            interval: [drop - 0.02, drop + 0.02],
            items: 104,
        };
        Price {
            format: 1,
            label: label.into(),
            model: "a <model> & more".into(),
            speed: vec![speed(4096, "dense", 100.0), speed(4096, "50%", 80.0), speed(8192, "dense", 300.0), speed(8192, "50%", 200.0)],
            accuracy: vec![accuracy("50%", 0.01), accuracy("75%", 0.05)],
            break_even: Some(BreakEven { length: Some(8192), tier: "50%".into(), measured: vec![(8192, 1.0, 0.9)] }),
            layers: vec![PriceLayers {
                phase: "prefill".into(),
                tier: "50%".into(),
                bins: vec![4096],
                share: vec![vec![0.1, 0.9]],
                mass: vec![vec![0.0, 0.02]],
            }],
            ..Price::default()
        }
    }

    #[test]
    fn a_page_shows_every_part_and_needs_nothing_outside_it() {
        let page = page(&[run("")]);
        for part in ["a &lt;model&gt; &amp; more", "1.50×", "From 8192 tokens on", "<svg", "Share of softmax mass", "viewport", "50%"] {
            assert!(page.contains(part), "{part}");
        }
        for outside in ["http://", "https://", "<script", "<link", "src=", "@import", "url("] {
            assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn times_that_make_no_number_are_words() {
        let mut odd = run("");
        odd.speed[1].ttft_ms = Some(0.0);
        odd.speed[3].ttft_ms = Some(1e-12);
        odd.speed[1].tpot_ms = None;
        odd.break_even = Some(BreakEven { length: None, tier: "50%".into(), measured: vec![(8192, 1.0, 0.0)] });
        let page = page(&[odd]);
        assert!(check(&run("")).is_ok() && page.matches("not timed").count() == 3 && page.contains("<td>–</td>"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn several_runs_stand_side_by_side() {
        let page = page(&[run("before"), run("after")]);
        assert!(page.contains("Side by side") && page.contains("before: a &lt;model&gt; &amp; more 50%"));
    }

    #[test]
    fn an_empty_run_is_a_page_all_the_same() {
        let page = page(&[Price::default()]);
        assert!(page.ends_with("</html>\n") && !page.contains("NaN"));
    }
}
