//! From solved rows to the keys of one phase: a table a tier, the tier that is deployed, and what was not reached.

use super::bins::Bin;
use super::solve::Solved;
use skip_tables::{Calibration, Deployed, Digest, Geometry, PhaseTables, Row, ScaleTable, TableError, Tier, Unreached};
use std::collections::BTreeMap;

/// One tier's rows, one a bin.
#[derive(Clone, Debug, PartialEq)]
pub struct TierRows {
    /// The share that was aimed at.
    pub tier: Tier,
    /// Bins in ascending order.
    pub rows: Vec<(Bin, Solved)>,
}

impl TierRows {
    fn is_reached(&self) -> bool {
        self.rows.iter().any(|(_, solved)| solved.s.is_some())
    }

    fn table(&self, max_length: u32) -> Result<ScaleTable, TableError> {
        let row = |&(bin, solved): &(Bin, Solved)| Row { first_length: bin.first as u32, s: solved.s.unwrap_or(0.0) as f32 };
        ScaleTable::new(self.rows.iter().map(row).collect(), Some(max_length))
    }

    /// One entry a bin, or a single one with the largest share where no bin reaches the tier.
    fn unreached(&self) -> Vec<Unreached> {
        let entry = |first_length, share| Unreached { tier: self.tier, first_length, share };
        let shares = self.rows.iter().map(|(_, solved)| solved.skipped.share());
        if !self.is_reached() {
            return vec![entry(None, shares.fold(0.0, f64::max))];
        }
        let missed = self.rows.iter().filter(|(_, solved)| solved.s.is_none());
        missed.map(|(bin, solved)| entry(Some(bin.first as u32), solved.skipped.share())).collect()
    }
}

/// What does not follow from the rows.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Votes that were measured.
    pub geometry: Geometry,
    /// Kernels that measured: `cpu`, `portable`, `hopper`.
    pub kernel_family: String,
    /// The weights.
    pub checkpoint: Digest,
    /// The texts.
    pub corpus: Digest,
    /// ISO 8601.
    pub date: String,
}

/// The keys of a phase. Deployed is `wanted` where some bin reaches it, else the highest tier that one reaches, else none: a tier that no λ below 1
/// reaches is recorded and left dense, never clamped.
///
/// # Errors
/// No bins.
pub fn tables(tiers: &[TierRows], wanted: Tier, origin: Origin) -> Result<PhaseTables, TableError> {
    let bins = || tiers.iter().flat_map(|tier| tier.rows.iter().map(|(bin, _)| *bin));
    let (Some(min_length), Some(end)) = (bins().map(|bin| bin.first).min(), bins().map(|bin| bin.end).max()) else {
        return Err(TableError::Empty);
    };
    let max_length = (end - 1) as u32;
    let ladder = tiers.iter().map(|rows| Ok((rows.tier, rows.table(max_length)?))).collect::<Result<BTreeMap<_, _>, TableError>>()?;
    let reached = |rows: &&TierRows| rows.is_reached();
    let target =
        tiers.iter().filter(reached).find(|rows| rows.tier == wanted).or_else(|| tiers.iter().filter(reached).max_by_key(|rows| rows.tier));
    let target = target.map(|rows| rows.tier);
    let deployed = target.and_then(|tier| ladder.get(&tier)).cloned();
    let record = Calibration {
        geometry: origin.geometry,
        kernel_family: origin.kernel_family,
        min_length: min_length as u32,
        max_length,
        checkpoint_sha256: Some(origin.checkpoint),
        corpus_sha256: Some(origin.corpus),
        table_sha256: deployed.as_ref().map(ScaleTable::digest),
        unreached: tiers.iter().flat_map(TierRows::unreached).collect(),
        tool: concat!("skipd ", env!("CARGO_PKG_VERSION")).into(),
        date: origin.date,
        extra: serde_json::Map::new(),
    };
    let deployed = deployed.map_or(Deployed::Absent, Deployed::Table);
    Ok(PhaseTables { deployed, ladder, target, record: Some(record), force: false })
}

#[cfg(test)]
mod tests {
    use super::super::curve::Skipped;
    use super::*;
    use skip_tables::{Phase, TableFile};

    const BINS: [Bin; 2] = [Bin { first: 4096, end: 6144 }, Bin { first: 6144, end: 8193 }];

    fn tier(name: &str, scales: [Option<f64>; 2], share: f64) -> TierRows {
        let solved = |s| Solved { s, skipped: Skipped { votes: share, mass: 0.01, all_votes: 1.0, all_mass: 1.0 } };
        TierRows { tier: name.parse().unwrap(), rows: BINS.into_iter().zip(scales.map(solved)).collect() }
    }

    fn origin() -> Origin {
        let digest = Digest::of(b"");
        let geometry = Geometry::portable(Phase::Prefill);
        Origin { geometry, kernel_family: "cpu".into(), checkpoint: digest, corpus: digest, date: "2026-11-30".into() }
    }

    #[test]
    fn a_ladder_reads_back_as_it_was_written() {
        let tiers = [tier("50%", [Some(1252.5), Some(1351.0)], 0.5), tier("75%", [None, Some(5000.0)], 0.62)];
        let wanted = "75%".parse().unwrap();
        let file = TableFile { prefill: tables(&tiers, wanted, origin()).unwrap(), ..TableFile::default() };
        let back = TableFile::parse(serde_json::to_string(&file.to_object()).unwrap().as_bytes()).unwrap();
        assert_eq!(back, file);
        let (tables, record) = (&back.prefill, back.prefill.record.as_ref().unwrap());
        assert_eq!(tables.target, Some(wanted));
        assert_eq!(tables.deployed.table().unwrap().rows()[0].s, 0.0, "a bin that does not reach the tier is dense");
        assert_eq!((record.min_length, record.max_length), (4096, 8192));
        assert_eq!(record.unreached, [Unreached { tier: wanted, first_length: Some(4096), share: 0.62 }]);
    }

    #[test]
    fn the_highest_reached_tier_is_deployed_where_the_wanted_one_is_not() {
        let tiers =
            [tier("50%", [Some(1252.5), Some(1351.0)], 0.5), tier("60%", [Some(2000.0), None], 0.55), tier("75%", [None, None], 0.64)];
        let found = tables(&tiers, "75%".parse().unwrap(), origin()).unwrap();
        assert_eq!(found.target, Some("60%".parse().unwrap()));
        assert_eq!(found.record.unwrap().never_reached("75%".parse().unwrap()), Some(0.64));
    }

    #[test]
    fn nothing_reached_deploys_nothing() {
        let found = tables(&[tier("75%", [None, None], 0.3)], "75%".parse().unwrap(), origin()).unwrap();
        assert_eq!((found.target, found.deployed.clone()), (None, Deployed::Absent));
        assert_eq!(found.record.unwrap().table_sha256, None);
        assert_eq!(tables(&[], "75%".parse().unwrap(), origin()).unwrap_err(), TableError::Empty);
    }
}
