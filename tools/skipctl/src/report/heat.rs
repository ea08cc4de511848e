//! A map of values by bin and layer.

use super::chart::short;
use super::html::escape;
use std::fmt::Write;

const LEFT: f64 = 52.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 40.0;
const WIDTH: f64 = 480.0;
const ROW: f64 = 18.0;

/// Bins downwards, layers to the right; the darker the more, from nothing to the largest value.
pub fn map(title: &str, bins: &[usize], values: &[Vec<f64>]) -> String {
    let layers = values.iter().map(Vec::len).max().unwrap_or(0);
    let most = values.iter().flatten().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    let height = TOP + ROW * values.len() as f64 + BOTTOM;
    let cell = (WIDTH - LEFT - 8.0) / layers.max(1) as f64;
    let told = format!("{title}, at most {:.1} %", 100.0 * most);
    let mut out =
        format!("<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{0}\">", escape(&told));
    let mut draw = |markup: std::fmt::Arguments<'_>| {
        // Writing into a string does not fail.
        let _ = out.write_fmt(markup);
    };
    for (row, (values, bin)) in values.iter().zip(bins).enumerate() {
        let y = TOP + ROW * row as f64;
        draw(format_args!("<text x={} y={:.1} text-anchor=end>{}</text>", LEFT - 6.0, y + 13.0, short(*bin as f64)));
        for (layer, &value) in values.iter().enumerate() {
            let part = if most > 0.0 && value.is_finite() { (value / most).clamp(0.0, 1.0) } else { 0.0 };
            let x = LEFT + cell * layer as f64;
            let name = format!("{bin} tokens, layer {layer}: {:.2} %", 100.0 * value);
            draw(format_args!(
                "<rect x={x:.2} y={y:.1} width={:.2} height={} fill=\"#0072b2\" fill-opacity={:.3}><title>{name}</title></rect>",
                cell * 0.96,
                ROW - 1.0,
                0.04 + 0.96 * part
            ));
        }
    }
    let under = TOP + ROW * values.len() as f64 + 16.0;
    for layer in (0..layers).step_by(layers.div_ceil(8).max(1)) {
        draw(format_args!("<text x={:.1} y={under:.1} text-anchor=middle>{layer}</text>", LEFT + cell * (layer as f64 + 0.5)));
    }
    draw(format_args!("<text x={} y={:.1} text-anchor=middle>layer; rows: first length of the bin</text>", WIDTH / 2.0, under + 18.0));
    out.push_str("</svg></figure>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_a_value_the_largest_opaque() {
        let svg = map("m", &[4096, 6144], &[vec![0.1, 0.2], vec![0.0, 0.4]]);
        assert_eq!(svg.matches("<rect").count(), 4);
        assert_eq!(svg.matches("fill-opacity=1.000").count(), 1);
        assert!(svg.contains("6144 tokens, layer 1: 40.00 %"));
        assert!(!map("m", &[], &[]).contains("NaN"));
    }
}
