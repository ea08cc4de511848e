//! Whether skipping pays for its mass: the share of the softmax numerator that goes with the share of tiles.
//!
//! On attention with a far field the skipped tiles carry next to nothing; where scores are flat they carry what their number says, and skipping
//! drops that much of the answer's evidence. r = m / s tells the two apart (reference documentation, section 2.2).

use super::curve::Skipped;
use serde::Serialize;

/// The verdict, with the numbers and layers behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// `on` or `off`.
    pub advice: &'static str,
    /// s: share of tiles skipped at the deployed S, of the prompt with the largest r.
    pub sparsity: f64,
    /// m: share of mass skipped there, of the prompt with the largest r.
    pub mass: f64,
    /// r = m / s, the largest over the prompts.
    pub ratio: f64,
    /// The bound it was held to.
    pub mass_ratio: f64,
    /// Layers whose own r reaches the bound, the largest first.
    pub layers: Vec<LayerShare>,
}

/// One layer's shares, pooled over the prompts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerShare {
    /// Its number, from 0.
    pub layer: usize,
    /// s.
    pub sparsity: f64,
    /// m.
    pub mass: f64,
}

impl LayerShare {
    fn ratio(&self) -> f64 {
        if self.sparsity > 0.0 { self.mass / self.sparsity } else { 0.0 }
    }
}

/// Judges `prompts[i][layer]`, what each prompt's deployed threshold skips of each layer, against r < `mass_ratio`.
/// The mean over prompts would hide the one that loses most, so the largest r counts. None where nothing is skipped anywhere.
pub fn advise(prompts: &[Vec<Skipped>], mass_ratio: f64) -> Option<Advice> {
    let mut worst: Option<(f64, Skipped)> = None;
    let mut layers: Vec<Skipped> = Vec::new();
    for prompt in prompts {
        let mut all = Skipped::default();
        layers.resize(layers.len().max(prompt.len()), Skipped::default());
        for (sum, layer) in layers.iter_mut().zip(prompt) {
            all += *layer;
            *sum += *layer;
        }
        if all.votes > 0.0 {
            let ratio = all.mass_share() / all.share();
            if worst.is_none_or(|(most, _)| ratio > most) {
                worst = Some((ratio, all));
            }
        }
    }
    let (ratio, all) = worst?;
    let share = |(layer, skipped): (usize, &Skipped)| LayerShare { layer, sparsity: skipped.share(), mass: skipped.mass_share() };
    let mut layers: Vec<LayerShare> = layers.iter().enumerate().map(share).filter(|layer| layer.ratio() >= mass_ratio).collect();
    layers.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    let advice = if ratio < mass_ratio { "on" } else { "off" };
    Some(Advice { advice, sparsity: all.share(), mass: all.mass_share(), ratio, mass_ratio, layers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(votes: f64, mass: f64) -> Skipped {
        Skipped { votes, mass, all_votes: 100.0, all_mass: 100.0 }
    }

    #[test]
    fn a_far_field_is_on_and_flat_scores_are_off() {
        let far = [vec![skipped(50.0, 1.0), skipped(50.0, 2.0)]];
        let advice = advise(&far, 0.3).unwrap();
        assert_eq!((advice.advice, advice.sparsity, advice.mass), ("on", 0.5, 0.015));
        assert!(advice.layers.is_empty());
        let flat = [vec![skipped(50.0, 48.0), skipped(50.0, 2.0)]];
        let advice = advise(&flat, 0.3).unwrap();
        assert_eq!(advice.advice, "off");
        assert_eq!(advice.layers, [LayerShare { layer: 0, sparsity: 0.5, mass: 0.48 }]);
    }

    #[test]
    fn the_worst_prompt_decides_not_the_mean() {
        let prompts = [vec![skipped(50.0, 1.0)], vec![skipped(50.0, 1.0)], vec![skipped(40.0, 20.0)]];
        let advice = advise(&prompts, 0.3).unwrap();
        assert_eq!((advice.advice, advice.sparsity, advice.ratio), ("off", 0.4, 0.5));
        assert!(advice.layers.is_empty(), "pooled, the layer stays below: {advice:?}");
    }

    #[test]
    fn nothing_skipped_is_no_advice() {
        assert_eq!(advise(&[vec![skipped(0.0, 0.0)]], 0.3), None);
        assert_eq!(advise(&[], 0.3), None);
    }
}
