//! Variable tracking: one chain of four hops in noise, behind an example with shorter names.

use super::super::fit::Draft;
use super::super::seed::Rng;
use super::super::{Framing, PromptError};
use super::{needles, prompts};

const HOPS: usize = 4;
/// Tokens of the example at most.
const EXAMPLE: usize = 500;

struct Chain {
    variables: Vec<String>,
    value: String,
    statements: Vec<String>,
    depths: Vec<f64>,
}

impl Chain {
    fn new(letters: usize, rng: &mut Rng) -> Self {
        let mut variables: Vec<String> = Vec::new();
        while variables.len() <= HOPS {
            let name: String = (0..letters).map(|_| char::from(b'A' + rng.below(26) as u8)).collect();
            if !variables.contains(&name) {
                variables.push(name);
            }
        }
        let value = (10_000 + rng.below(89_999)).to_string();
        let mut statements = vec![format!("VAR {} = {value}", variables[0])];
        statements.extend(variables.windows(2).map(|pair| format!("VAR {} = VAR {} ", pair[1], pair[0])));
        let mut depths: Vec<f64> = statements.iter().map(|_| rng.fraction()).collect();
        depths.sort_by(f64::total_cmp);
        Self { variables, value, statements, depths }
    }

    fn ask(&self, words: usize, filler: &[&str]) -> (String, String) {
        let statements = self.statements.iter().map(String::as_str).zip(self.depths.iter().copied());
        let mut context = needles::noise(words, statements);
        if !filler.is_empty() {
            context.push('\n');
            context.push_str(&filler.join(" "));
        }
        prompts::tracking(&context, &self.value, HOPS + 1)
    }
}

/// Makes drafts with the same chain in more or less noise.
pub(super) struct Builder {
    example: String,
    chain: Chain,
}

impl Builder {
    pub(super) fn new(framing: &Framing<'_>, mut rng: Rng) -> Result<Self, PromptError> {
        let shown = Chain::new(3, &mut rng);
        let mut example = String::new();
        for lines in (0..=30).rev() {
            let (content, prefix) = shown.ask(lines * prompts::NOISE.split(' ').count(), &[]);
            example = format!("{content}{prefix} {}\n", shown.variables.join(" "));
            if framing.raw(&example)?.len() <= EXAMPLE {
                break;
            }
        }
        Ok(Self { example, chain: Chain::new(5, &mut rng) })
    }

    pub(super) fn draft(&self, units: usize, filler: &[&str]) -> Draft {
        let (content, prefix) = self.chain.ask(units, filler);
        Draft { content: format!("{}\n{content}", self.example), prefix, answers: self.chain.variables.clone() }
    }
}
