//! What a price.json may hold: more than `price` ever measures, less than a page cannot show, and no numbers that no clock gives.

use skip_client::protocol::{Price, PriceLayers};

/// Rows of one kind.
const MOST_ROWS: usize = 5000;
/// Phases with layers, bins of one, and layers of a bin.
const MOST_PHASES: usize = 4;
const MOST_BINS: usize = 256;
const MOST_LAYERS: usize = 1024;
/// Cells of all drawings of layers.
const MOST_CELLS: usize = 200_000;
/// The longest time, in milliseconds (a year and more), and the largest of any other number.
const MOST: f64 = 1e12;

/// Whether the page of a run can be made.
///
/// # Errors
/// What is too much, or no number.
pub fn check(run: &Price) -> Result<(), String> {
    let measured = run.break_even.as_ref().map_or(0, |even| even.measured.len());
    for (what, rows) in [("speed", run.speed.len()), ("accuracy", run.accuracy.len()), ("break_even.measured", measured)] {
        if rows > MOST_ROWS {
            return Err(format!("{what} has {rows} rows; a page shows at most {MOST_ROWS}"));
        }
    }
    check_layers(&run.layers)?;
    let times = run.speed.iter().flat_map(|s| {
        let spreads = [s.ttft_spread_ms, s.tpot_spread_ms].into_iter().flatten().flatten();
        [s.ttft_ms, s.tpot_ms, s.attention_ms].into_iter().flatten().chain(spreads)
    });
    let of_tokens = run.break_even.iter().flat_map(|even| &even.measured).flat_map(|&(_, dense, skip)| [dense, skip]);
    if let Some(time) = times.chain(of_tokens).find(|time| !(0.0..=MOST).contains(time)) {
        return Err(format!("{time} is no time in milliseconds"));
    }
    let scores = run.accuracy.iter().flat_map(|a| [a.dense, a.score, a.drop].into_iter().chain(a.interval));
    let shares = run.speed.iter().flat_map(|s| [s.prefill_skipped, s.decode_skipped]);
    match scores.chain(shares).find(|share| !(-2.0..=2.0).contains(share)) {
        Some(share) => Err(format!("{share} is no share nor score")),
        None => Ok(()),
    }
}

fn check_layers(all: &[PriceLayers]) -> Result<(), String> {
    if all.len() > MOST_PHASES {
        return Err(format!("layers has {} phases", all.len()));
    }
    let mut cells = 0;
    for of in all {
        let rows = || of.share.iter().chain(&of.mass);
        if of.share.len().max(of.mass.len()).max(of.bins.len()) > MOST_BINS || rows().any(|row| row.len() > MOST_LAYERS) {
            return Err(format!("layers: at most {MOST_BINS} bins of {MOST_LAYERS} layers"));
        }
        cells += rows().map(Vec::len).sum::<usize>();
        if let Some(share) = rows().flatten().find(|share| !(0.0..=1.0 + 1e-9).contains(*share)) {
            return Err(format!("layers: {share} is no share"));
        }
    }
    if cells > MOST_CELLS { Err(format!("layers has {cells} values; a page shows at most {MOST_CELLS}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;
    use skip_client::protocol::{BreakEven, PriceSpeed};

    #[test]
    fn more_than_a_page_shows_is_refused_by_name() {
        let many = |n| vec![PriceSpeed::default(); n];
        assert_eq!(check(&Price { speed: many(MOST_ROWS), ..Price::default() }), Ok(()));
        let layers = |bins, layers| {
            let rows = vec![vec![0.5; layers]; bins];
            vec![PriceLayers { bins: vec![0; bins], share: rows.clone(), mass: rows, ..PriceLayers::default() }]
        };
        let even = BreakEven { measured: vec![(1, 1.0, 1.0); 1_000_000], ..BreakEven::default() };
        for (run, word) in [
            (Price { speed: many(2_000_000), ..Price::default() }, "speed has 2000000 rows; a page shows at most 5000"),
            (Price { break_even: Some(even), ..Price::default() }, "break_even.measured has 1000000 rows"),
            (Price { layers: layers(1, 2_000_000), ..Price::default() }, "at most 256 bins of 1024 layers"),
            (Price { layers: layers(256, 1024), ..Price::default() }, "layers has 524288 values"),
            (Price { layers: vec![PriceLayers::default(); 5], ..Price::default() }, "layers has 5 phases"),
        ] {
            let said = check(&run).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn what_no_clock_gives_is_refused() {
        let spoils: [fn(&mut Price); 5] = [
            |run| run.speed[0].ttft_ms = Some(1e300),
            |run| run.speed[0].tpot_spread_ms = Some([-1.0, 2.0]),
            |run| run.speed[0].prefill_skipped = 70.0,
            |run| run.accuracy[0].interval[1] = f64::INFINITY,
            |run| run.layers[0].mass[0][1] = -1.0,
        ];
        for (i, spoil) in spoils.into_iter().enumerate() {
            let mut run = run("");
            spoil(&mut run);
            assert!(check(&run).is_err(), "{i}");
        }
        assert_eq!(check(&run("")), Ok(()));
    }
}
