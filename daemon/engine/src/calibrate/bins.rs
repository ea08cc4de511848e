//! Length bins of a table, and the lengths of the prompts that measure one.

use skip_kernels::PAGE;

/// Most bins: a table has a row for each.
pub const MAX_BINS: usize = 256;

/// Prompt lengths from `first` up to, not including, `end`, in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// The row's first length.
    pub first: usize,
    /// Where the next bin begins, or behind the longest calibrated length.
    pub end: usize,
}

/// Why there are no bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinError {
    /// Smaller than a tile.
    #[error("bin-min {0}: at least {PAGE}, the keys of a tile")]
    Min(usize),
    /// Likewise.
    #[error("bin-step {0}: at least {PAGE}, the keys of a tile")]
    Step(usize),
    /// Nothing to measure.
    #[error("max-seqlen {max} is below bin-min {min}")]
    Range {
        /// bin-min.
        min: usize,
        /// max-seqlen.
        max: usize,
    },
    /// More than a table holds.
    #[error("{0} bins; at most {MAX_BINS}: take a larger bin-step")]
    Many(usize),
}

impl BinError {
    /// The option that is wrong.
    pub fn option(self) -> &'static str {
        match self {
            BinError::Min(_) => "bin_min",
            BinError::Step(_) | BinError::Many(_) => "bin_step",
            BinError::Range { .. } => "max_seqlen",
        }
    }
}

/// Bins from `min` on, `step` apart; the last includes `max`.
///
/// # Errors
/// [`BinError`], naming the option.
pub fn bins(min: usize, step: usize, max: usize) -> Result<Vec<Bin>, BinError> {
    if min < PAGE {
        return Err(BinError::Min(min));
    }
    if step < PAGE {
        return Err(BinError::Step(step));
    }
    if max < min {
        return Err(BinError::Range { min, max });
    }
    let end = max.checked_add(1).ok_or(BinError::Range { min, max })?;
    let count = ((max - min) / step).saturating_add(1);
    if count > MAX_BINS {
        return Err(BinError::Many(count));
    }
    let bin = |i: usize| Bin { first: min + i * step, end: step.saturating_mul(i + 1).saturating_add(min).min(end) };
    Ok((0..count).map(bin).collect())
}

impl Bin {
    /// The largest S that every length of the bin may have: tables are compared with lengths in float32, and S = L is dense.
    pub fn largest_scale(self) -> f64 {
        f64::from((self.first as f32).next_down())
    }

    /// Lengths of `samples` prompts, spread evenly from the bin's first length to its last, so that its S holds for all of them and not for one end.
    pub fn lengths(self, samples: usize) -> Vec<usize> {
        let width = self.end - self.first;
        (0..samples).map(|i| self.first + ((2 * i + 1) as u128 * width as u128 / (2 * samples) as u128) as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bins_cover_every_length_once() {
        for (min, step, max) in [(4096, 2048, 32_768), (1024, 1024, 8192), (4096, 2048, 4096), (128, 128, 1000)] {
            let bins = bins(min, step, max).unwrap();
            assert_eq!((bins[0].first, bins.last().unwrap().end), (min, max + 1));
            assert!(bins.windows(2).all(|pair| pair[0].end == pair[1].first && pair[1].first == pair[0].first + step));
        }
    }

    #[test]
    fn what_makes_no_bins_is_named() {
        assert_eq!(bins(64, 2048, 8192), Err(BinError::Min(64)));
        assert_eq!(bins(4096, 0, 8192), Err(BinError::Step(0)));
        assert_eq!(bins(4096, 2048, 4095), Err(BinError::Range { min: 4096, max: 4095 }));
        assert_eq!(bins(128, 128, 128 * 1000), Err(BinError::Many(1000)));
    }

    #[test]
    fn numbers_at_the_end_of_their_range_make_bins_or_a_refusal() {
        let last = usize::MAX;
        assert_eq!(bins(4096, last, 8192).unwrap(), [Bin { first: 4096, end: 8193 }], "one step reaches beyond everything");
        assert_eq!(bins(128, last, last - 1).unwrap(), [Bin { first: 128, end: last }]);
        assert_eq!(bins(128, last - 1, last), Err(BinError::Range { min: 128, max: last }));
        assert_eq!(bins(last, 128, last), Err(BinError::Range { min: last, max: last }));
        assert_eq!(bins(128, 128, last - 1), Err(BinError::Many((last - 129) / 128 + 1)));
    }

    proptest! {
        #[test]
        fn whatever_the_numbers_bins_are_whole(min in edges(), step in edges(), max in edges()) {
            if let Ok(bins) = bins(min, step, max) {
                prop_assert!(bins[0].first == min && bins[bins.len() - 1].end == max + 1 && bins.len() <= MAX_BINS);
                prop_assert!(bins.iter().all(|bin| bin.first < bin.end));
                prop_assert!(bins.windows(2).all(|pair| pair[0].end == pair[1].first));
            }
        }
    }

    /// Small, everyday and enormous.
    fn edges() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..300, 0usize..200_000, (0usize..300).prop_map(|n| usize::MAX - n), any::<usize>()]
    }

    #[test]
    fn prompts_are_spread_over_the_bin() {
        let bin = Bin { first: 4096, end: 6144 };
        assert_eq!(bin.lengths(4), [4352, 4864, 5376, 5888]);
        assert_eq!(Bin { first: 8192, end: 8193 }.lengths(3), [8192; 3]);
        assert!(bin.lengths(0).is_empty());
    }
}
