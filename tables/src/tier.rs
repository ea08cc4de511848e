//! A sparsity tier's name: "75%", "75.0%", 0.75 and 75 are one tier.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A target share of tiles to skip, above 0 and below 1, in hundredths of a percent so that equal tiers compare equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tier(u16);

/// Why a text or number names no tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no tier: write a share above 0 and below 1 (0.75) or a percentage (75%)")]
pub struct TierError(String);

impl Tier {
    /// The tier of a share above 0 and below 1, rounded to a hundredth of a percent.
    pub fn from_share(share: f64) -> Result<Self, TierError> {
        // A NaN fails the comparison.
        let hundredths = (share * 10_000.0).round();
        if (1.0..=9_999.0).contains(&hundredths) { Ok(Self(hundredths as u16)) } else { Err(TierError(share.to_string())) }
    }

    /// The tier of a bare number: a share below 1, a percentage from 1 on.
    pub fn from_number(number: f64) -> Result<Self, TierError> {
        let share = if number >= 1.0 { number / 100.0 } else { number };
        Self::from_share(share).map_err(|_| TierError(number.to_string()))
    }

    /// The share of tiles it aims at, above 0 and below 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

impl FromStr for Tier {
    type Err = TierError;

    fn from_str(text: &str) -> Result<Self, TierError> {
        let refused = || TierError(format!("{text:?}"));
        let trimmed = text.trim();
        let (digits, percent) = match trimmed.strip_suffix('%') {
            Some(digits) => (digits.trim_end(), true),
            None => (trimmed, false),
        };
        // f64's parser also takes "inf" and "nan", which are no tiers, and signs, which are refused below.
        let number: f64 = digits.parse().map_err(|_| refused())?;
        let tier = if percent { Self::from_share(number / 100.0) } else { Self::from_number(number) };
        tier.map_err(|_| refused())
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match part {
            0 => write!(f, "{whole}%"),
            p if p % 10 == 0 => write!(f, "{whole}.{}%", p / 10),
            p => write!(f, "{whole}.{p:02}%"),
        }
    }
}

impl Serialize for Tier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Spelling {
            Number(f64),
            Text(String),
        }
        match Spelling::deserialize(deserializer)? {
            Spelling::Number(number) => Self::from_number(number),
            Spelling::Text(text) => text.parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_tier_are_equal() {
        let tiers: Vec<Tier> = ["75%", "75.0%", " 75 %", "0.75", "75"].iter().map(|t| t.parse().unwrap()).collect();
        assert!(tiers.iter().all(|&t| t == Tier::from_share(0.75).unwrap()));
        assert_eq!(tiers[0].to_string(), "75%");
        assert_eq!("62.5%".parse::<Tier>().unwrap().to_string(), "62.5%");
        assert_eq!("0.0705".parse::<Tier>().unwrap().to_string(), "7.05%");
    }

    #[test]
    fn shares_outside_zero_and_one_are_refused() {
        for text in ["0", "0%", "100%", "100", "-5%", "nan", "inf", "", "%", "half", "1e9"] {
            assert!(text.parse::<Tier>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_tier_reads_back_from_its_name(hundredths in 1u16..10_000) {
            let tier = Tier(hundredths);
            prop_assert_eq!(tier.to_string().parse::<Tier>().unwrap(), tier);
            prop_assert_eq!(Tier::from_share(tier.share()).unwrap(), tier);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = text.parse::<Tier>();
        }
    }
}
