//! What the pages of a prompt hold, told by digests: one for each whole page, over its tokens and the digest of the page before it.
//! Equal digests mean equal tokens from the prompt's beginning to the page's end.

use skip_kernels::PAGE;
pub use skip_tables::Digest;

/// The digests of a prompt's whole pages, in order; a last page that is not full has none.
pub fn chain(tokens: &[u32]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(tokens.len() / PAGE);
    let mut bytes = Vec::with_capacity(64 + 4 * PAGE);
    for page in tokens.chunks_exact(PAGE) {
        bytes.clear();
        // The first page has no digest in front, so none can be mistaken for a later one.
        bytes.extend(chain.last().map(Digest::to_string).unwrap_or_default().bytes());
        bytes.extend(page.iter().flat_map(|token| token.to_le_bytes()));
        chain.push(Digest::of(&bytes));
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pages_digest_says_all_that_comes_before_it() {
        let tokens: Vec<u32> = (0..3 * PAGE as u32 + 5).collect();
        let whole = chain(&tokens);
        assert_eq!(whole.len(), 3);
        assert_eq!(chain(&tokens[..2 * PAGE]), whole[..2]);
        let mut other = tokens.clone();
        other[0] = 9999;
        assert!(chain(&other).iter().zip(&whole).all(|(a, b)| a != b));
        other = tokens;
        other[2 * PAGE] = 9999;
        assert_eq!((chain(&other)[..2] == whole[..2], chain(&other)[2] == whole[2]), (true, false));
    }
}
