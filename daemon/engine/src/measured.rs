//! Votes by gap of one request: what calibration measures a prompt for.

use skip_kernels::Phase;
use skip_kernels::gaps::{GapHistogram, Gaps};

/// A request's votes by gap, layer by layer; windowed layers have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// From the first layer on.
    pub layers: Vec<LayerVotes>,
}

/// One layer's votes by gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerVotes {
    /// Of the prompt.
    pub prefill: GapHistogram,
    /// Of the tokens drawn: by the backend's votes, and by 128-key pages against a running maximum.
    pub decode: Gaps,
}

impl Measured {
    /// Adds a step's, one a layer.
    pub(crate) fn add(&mut self, phase: Phase, step: &[Gaps]) {
        self.layers.resize_with(self.layers.len().max(step.len()), LayerVotes::default);
        for (layer, gaps) in self.layers.iter_mut().zip(step) {
            match phase {
                Phase::Prefill => layer.prefill += &gaps[0],
                Phase::Decode => layer.decode.iter_mut().zip(gaps).for_each(|(sum, new)| *sum += new),
            }
        }
    }
}
