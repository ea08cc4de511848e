//! The raw bytes of every token, in one flat table.

use std::collections::HashMap;
use tokenizers::DecoderWrapper;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// GPT-2's alphabet: each byte is a printable character.
    ByteLevel,
    /// SentencePiece: text as it is, `▁` for a space, `<0x0A>` for a byte.
    ByteFallback,
}

impl Scheme {
    /// By the tokenizer's decoder; its name where it is another kind.
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, String> {
        match tokenizer.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Ok(Self::ByteLevel),
            Some(DecoderWrapper::Sequence(parts)) => {
                let parts = parts.get_decoders();
                if parts.iter().any(|d| matches!(d, DecoderWrapper::ByteLevel(_))) {
                    Ok(Self::ByteLevel)
                } else if parts.iter().any(|d| matches!(d, DecoderWrapper::ByteFallback(_))) {
                    Ok(Self::ByteFallback)
                } else {
                    Err(format!("{parts:?}"))
                }
            }
            other => Err(other.map_or("none".into(), |d| format!("{d:?}"))),
        }
    }

    fn spell(self, token: &str, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => {
                for c in token.chars() {
                    match byte_of(c) {
                        Some(byte) => out.push(byte),
                        // Outside the alphabet: only in hand-made vocabularies.
                        None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
            }
            Self::ByteFallback => {
                let hex = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|t| t.len() == 2);
                match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
                }
            }
        }
    }
}

/// GPT-2's `bytes_to_unicode`, backwards: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(n as u8),
        n @ 0x100..=0x120 => Some((n - 0x100) as u8),
        n @ 0x121..=0x142 => Some((n - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Bytes by id.
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// End of each token in `bytes`; a token begins where the one before it ends.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenBytes {
    /// `pairs` is the whole vocabulary; ids without a token have no bytes.
    pub fn new(tokenizer: &tokenizers::Tokenizer, pairs: HashMap<String, u32>, scheme: Scheme) -> Self {
        let count = pairs.values().max().map_or(0, |&id| id as usize + 1);
        let mut tokens = vec![None; count];
        for (token, id) in &pairs {
            tokens[*id as usize] = Some(token.as_str());
        }
        let added = tokenizer.get_added_tokens_decoder();
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(count), special: vec![false; count] };
        for (id, token) in tokens.into_iter().enumerate() {
            match (added.get(&(id as u32)), token) {
                (Some(added), _) => {
                    table.special[id] = added.special;
                    // Added tokens are text, not the byte alphabet.
                    table.bytes.extend_from_slice(added.content.as_bytes());
                }
                (None, Some(token)) => scheme.spell(token, &mut table.bytes),
                (None, None) => {}
            }
            table.ends.push(table.bytes.len() as u32);
        }
        table
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Empty for an id that has no token.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let begin = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[begin as usize..end as usize]
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_of_all_bytes() {
        let mut seen = [0; 256];
        for byte in (0..0x180).filter_map(char::from_u32).filter_map(byte_of) {
            seen[usize::from(byte)] += 1;
        }
        assert_eq!(seen, [1; 256]);
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    #[test]
    fn byte_fallback_spells_spaces_and_bytes() {
        let spell = |token| {
            let mut out = Vec::new();
            Scheme::ByteFallback.spell(token, &mut out);
            out
        };
        assert_eq!(spell("▁the"), b" the");
        assert_eq!(spell("<0xE2>"), [0xe2]);
        assert_eq!(spell("<0xZZ>"), b"<0xZZ>");
    }
}
