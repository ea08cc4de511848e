//! A request's edits of its logits, token by token: the form of the answer, penalties of what was drawn, biases.

use crate::grammar::GrammarError;
use crate::handle::Steering;
use skip_kernels::sampling::LogitEdits;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is asked, and what of it follows from the tokens so far.
#[derive(Debug)]
pub(super) struct Steer {
    steering: Steering,
    /// How often each token was drawn, where penalties ask.
    drawn: BTreeMap<u32, u32>,
}

impl Steer {
    pub fn new(steering: Steering) -> Self {
        Self { steering, drawn: BTreeMap::new() }
    }

    /// Whether the edits change with every token.
    pub fn follows(&self) -> bool {
        self.steering.follows()
    }

    /// A token was drawn; true where the answer is complete with it.
    pub fn take(&mut self, token: u32) -> Result<bool, GrammarError> {
        if self.penalises() {
            *self.drawn.entry(token).or_default() += 1;
        }
        self.steering.grammar.as_mut().map_or(Ok(false), |grammar| grammar.take(token))
    }

    /// For the next token.
    pub fn edits(&self) -> Option<Arc<LogitEdits>> {
        if self.steering.is_idle() {
            return None;
        }
        let Steering { grammar, frequency_penalty, presence_penalty, bias } = &self.steering;
        let mut added: BTreeMap<u32, f32> = bias.iter().copied().collect();
        for (&token, &times) in &self.drawn {
            *added.entry(token).or_default() -= presence_penalty + frequency_penalty * times as f32;
        }
        let allowed = grammar.as_ref().map(|grammar| grammar.allowed().to_vec());
        Some(Arc::new(LogitEdits { allowed, added: added.into_iter().collect() }))
    }

    fn penalises(&self) -> bool {
        self.steering.frequency_penalty != 0.0 || self.steering.presence_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_count_what_was_drawn_and_go_on_top_of_biases() {
        let steering = Steering { frequency_penalty: 0.5, presence_penalty: 0.25, bias: vec![(7, 1.0), (9, 2.0)], ..Steering::default() };
        let mut steer = Steer::new(steering);
        assert_eq!(steer.edits().unwrap().added, [(7, 1.0), (9, 2.0)]);
        for token in [7, 3, 7] {
            assert_eq!(steer.take(token), Ok(false));
        }
        assert_eq!(steer.edits().unwrap().added, [(3, -0.75), (7, 1.0 - 1.25), (9, 2.0)]);
    }

    #[test]
    fn a_bias_alone_is_the_same_for_every_token_and_nothing_is_no_edit() {
        let mut steer = Steer::new(Steering { bias: vec![(1, 1.0)], ..Steering::default() });
        assert!(!steer.follows());
        steer.take(1).unwrap();
        assert_eq!(steer.edits().unwrap().added, [(1, 1.0)]);
        assert_eq!(Steer::new(Steering::default()).edits(), None);
    }
}
