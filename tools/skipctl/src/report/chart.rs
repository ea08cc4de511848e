//! Lines over lengths or tiers, as a drawing that scales with the page.

use super::html::escape;
use std::fmt::Write;

/// Distinct for most eyes, on light and dark (Okabe and Ito 2008, without yellow).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080"];
/// For what else a line tells, and where colours run out.
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\""];
/// The drawing's own units.
const SIZE: [f64; 2] = [480.0, 280.0];
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Between the ranges of two lines at one place, which would hide each other.
const BESIDE: f64 = 3.0;

/// A point, and the range it may be anywhere in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub range: Option<[f64; 2]>,
}

impl Point {
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, range: None }
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
    /// Which colour and which dash; None: by its place among the lines.
    pub look: Option<[usize; 2]>,
}

impl Series {
    /// Its colour, and how its line is broken.
    fn strokes(&self, place: usize) -> (&'static str, &'static str) {
        let [colour, dash] = self.look.unwrap_or([place, place / COLOURS.len()]);
        (COLOURS[colour % COLOURS.len()], DASHES[dash % DASHES.len()])
    }
}

/// A drawing of lines.
pub struct Chart<'a> {
    pub title: &'a str,
    pub x: &'a str,
    /// Behind the numbers of the vertical axis.
    pub unit: &'a str,
    /// A value that is always in sight, with a line of its own.
    pub base: Option<f64>,
    pub series: &'a [Series],
}

impl Chart<'_> {
    /// The drawing, with its title and legend.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| &s.points).filter(|p| p.x.is_finite() && p.y.is_finite());
        let xs = limits(points().map(|p| p.x)).unwrap_or([0.0, 1.0]);
        let values = points().flat_map(|p| p.range.unwrap_or([p.y; 2])).chain(self.base).filter(|y| y.is_finite());
        let [low, high] = limits(values).unwrap_or([0.0, 1.0]);
        // Values that are all alike have an axis too, with numbers that differ.
        let step = step((high - low).max(0.04 * high.abs().max(low.abs())).max(1e-9) / 4.0);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let high = if high > low { high } else { low + step };
        let span = if xs[1] > xs[0] { xs[1] - xs[0] } else { 1.0 };
        let x = |v: f64| LEFT + 8.0 + (v - xs[0]) / span * (SIZE[0] - LEFT - RIGHT - 16.0);
        let y = |v: f64| TOP + (high - v) / (high - low) * (SIZE[1] - TOP - BOTTOM);

        let mut out = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=img aria-label=\"{}\">",
            escape(self.title),
            SIZE[0],
            SIZE[1],
            escape(self.title)
        );
        let mut draw = |markup: std::fmt::Arguments<'_>| {
            // Writing into a string does not fail.
            let _ = out.write_fmt(markup);
        };
        let lines = ((high - low) / step).round() as usize;
        for i in 0..=lines {
            let value = low + i as f64 * step;
            let at = y(value);
            draw(format_args!("<line x1={LEFT} x2={} y1={at:.1} y2={at:.1} stroke=\"var(--line)\"/>", SIZE[0] - RIGHT));
            draw(format_args!(
                "<text x={} y={:.1} text-anchor=end>{}{}</text>",
                LEFT - 6.0,
                at + 4.0,
                number(value, step),
                escape(self.unit)
            ));
        }
        if let Some(base) = self.base {
            draw(format_args!(
                "<line x1={LEFT} x2={} y1={1:.1} y2={1:.1} stroke=\"var(--soft)\" stroke-dasharray=\"4 3\"/>",
                SIZE[0] - RIGHT,
                y(base)
            ));
        }
        for value in ticks(points().map(|p| p.x)) {
            draw(format_args!("<text x={:.1} y={} text-anchor=middle>{}</text>", x(value), SIZE[1] - BOTTOM + 18.0, short(value)));
        }
        draw(format_args!("<text x={} y={} text-anchor=middle>{}</text>", SIZE[0] / 2.0, SIZE[1] - 6.0, escape(self.x)));
        for (i, series) in self.series.iter().enumerate() {
            let (colour, dash) = series.strokes(i);
            let beside = BESIDE * (i as f64 - (self.series.len() as f64 - 1.0) / 2.0);
            let beside = if series.points.iter().any(|p| p.range.is_some()) { beside.clamp(-8.0, 8.0) } else { 0.0 };
            let x = |v: f64| x(v) + beside;
            let path: Vec<String> =
                series.points.iter().filter(|p| p.y.is_finite()).map(|p| format!("{:.1},{:.1}", x(p.x), y(p.y))).collect();
            draw(format_args!("<polyline points=\"{}\" fill=none stroke=\"{colour}\" stroke-width=2{dash} />", path.join(" ")));
            for p in series.points.iter().filter(|p| p.y.is_finite()) {
                if let Some([from, to]) = p.range {
                    draw(format_args!("<line x1={0:.1} x2={0:.1} y1={1:.1} y2={2:.1} stroke=\"{colour}\"/>", x(p.x), y(from), y(to)));
                }
                let told = format!("{}, {}: {}{}", series.name, short(p.x), number(p.y, step / 10.0), self.unit);
                draw(format_args!(
                    "<circle cx={:.1} cy={:.1} r=3 fill=\"{colour}\"><title>{}</title></circle>",
                    x(p.x),
                    y(p.y),
                    escape(&told)
                ));
            }
        }
        out.push_str("</svg><div class=legend>");
        for (i, series) in self.series.iter().enumerate() {
            let (colour, dash) = series.strokes(i);
            out.push_str(&format!(
                "<span><svg viewBox=\"0 0 24 8\" aria-hidden=true><line x1=0 x2=24 y1=4 y2=4 stroke=\"{colour}\" stroke-width=4{dash} /></svg>{}</span>",
                escape(&series.name)
            ));
        }
        out.push_str("</div></figure>");
        out
    }
}

fn limits(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    values.fold(None, |seen, v| Some(seen.map_or([v, v], |[low, high]: [f64; 2]| [low.min(v), high.max(v)])))
}

/// The least of 1, 2 and 5 times a power of ten that is not below.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= least).unwrap_or(10.0 * power)
}

/// At most seven of the values.
fn ticks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let every = all.len().div_ceil(7).max(1);
    all.into_iter().step_by(every).collect()
}

fn number(value: f64, step: f64) -> String {
    let digits = (-step.log10()).ceil().clamp(0.0, 4.0) as usize;
    format!("{:.digits$}", if value == 0.0 { 0.0 } else { value })
}

/// `4k` for 4096.
pub fn short(value: f64) -> String {
    match value as u64 {
        n if n >= 1024 && n.is_multiple_of(1024) => format!("{}k", n / 1024),
        n if n >= 1000 => format!("{:.1}k", value / 1024.0),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!([0.03, 0.1, 0.11, 3.0, 70.0].map(step), [0.05, 0.1, 0.2, 5.0, 100.0]);
    }

    #[test]
    fn every_point_lies_in_the_drawing() {
        let series = [Series {
            name: "a".into(),
            look: None,
            points: vec![Point::new(4096.0, 0.5), Point { range: Some([-3.0, 9.0]), ..Point::new(8192.0, 2.0) }],
        }];
        let svg = Chart { title: "t", x: "x", unit: "", base: Some(1.0), series: &series }.svg();
        let numbers = |key: &str| -> Vec<f64> {
            svg.split(key).skip(1).map(|rest| rest.split([' ', '>']).next().unwrap().parse().unwrap()).collect()
        };
        for (keys, most) in [(["cx=", "x1="], SIZE[0]), (["cy=", "y1="], SIZE[1])] {
            let all: Vec<f64> = keys.into_iter().flat_map(numbers).collect();
            assert!(all.len() > 3 && all.iter().all(|v| (0.0..=most).contains(v)), "{all:?}");
        }
    }

    #[test]
    fn one_point_and_none_are_drawn_too() {
        let one = [Series { name: "a".into(), points: vec![Point::new(1.0, 1.0)], look: None }];
        for series in [&one[..], &[]] {
            assert!(!Chart { title: "t", x: "x", unit: "", base: None, series }.svg().contains("NaN"));
        }
        let svg = Chart { title: "t", x: "x", unit: "", base: None, series: &one }.svg();
        assert_eq!(svg.matches(">1.00<").count(), 1, "numbers of an axis differ: {svg}");
    }
}
