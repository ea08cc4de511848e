//! A small tokenizer for the tests: bytes, and the words it was told as one token each, with the space before them.

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use serde_json::{Map, json};
use std::path::PathBuf;

/// ChatML, with a system message of its own, as SmolLM2 has it.
pub(super) const CHATML: &str = "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n\
    {% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>\
    assistant\n{% endif %}";

pub(super) fn chatml() -> ChatTemplate {
    ChatTemplate::compile(CHATML.into(), Map::new()).unwrap()
}

/// Of bytes, and of words.
pub(super) fn tokenizer(words: &str) -> Tokenizer {
    let spelt = |text: &str| text.bytes().map(spelling).collect::<Vec<char>>();
    let mut vocab = Map::new();
    for byte in 0..=255u8 {
        vocab.insert(spelling(byte).to_string(), json!(byte));
    }
    let mut merges = Vec::new();
    for word in words.split_whitespace() {
        let chars = spelt(&format!(" {word}"));
        for end in 1..chars.len() {
            let (front, whole) = (chars[..end].iter().collect::<String>(), chars[..=end].iter().collect::<String>());
            if !vocab.contains_key(&whole) {
                vocab.insert(whole, json!(vocab.len()));
                merges.push(json!([front, chars[end].to_string()]));
            }
        }
    }
    let added = |id: usize, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let marks = [added(vocab.len(), "<|im_start|>"), added(vocab.len() + 1, "<|im_end|>")];
    let size = vocab.len() + 2;
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": marks, "normalizer": null, "pre_tokenizer": level,
        "post_processor": null, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    Tokenizer::open(dir.path(), size).unwrap()
}

/// Words of the noise and the filler, so that these cost a token each.
pub(super) fn small() -> Tokenizer {
    tokenizer(
        "here we go there and back again so a then The the grass is green sky blue sun yellow Here There One of special magic numbers for words uuids",
    )
}

/// The character byte-level vocabularies write a byte as.
fn spelling(byte: u8) -> char {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let code = u32::from(byte);
    if printable(code) {
        return char::from(byte);
    }
    let before = (0..code).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

/// The imported SmolLM2-135M-Instruct, where it is.
pub(super) fn smollm2() -> Option<(Tokenizer, ChatTemplate)> {
    let models = std::env::var_os("SKIPD_TEST_MODELS").map(PathBuf::from);
    let cache =
        std::env::var_os("SKIPD_CACHE").map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache")), PathBuf::from);
    let dir = models.unwrap_or_else(|| cache.join("models")).join("smollm2");
    let tokenizer = Tokenizer::open(&dir, 49_152).ok()?;
    Some((tokenizer, ChatTemplate::open(&dir).unwrap().unwrap()))
}

/// Text that people could have written: sentences of common words, never the same twice, in paragraphs.
pub(super) fn prose(bytes: usize, mut state: u64) -> String {
    const SUBJECTS: [&str; 8] =
        ["The keeper", "A ship", "The old bridge", "Nobody", "The council", "Her brother", "The winter", "A letter"];
    const VERBS: [&str; 8] = ["reached", "remembered", "carried", "left", "followed", "repaired", "watched", "forgot"];
    const OBJECTS: [&str; 8] = [
        "the harbour",
        "a long road",
        "the northern valley",
        "an empty house",
        "the river",
        "its own promise",
        "the market",
        "the last train",
    ];
    const TAILS: [&str; 8] =
        ["before dawn", "without a word", "in the rain", "after the war", "for many years", "at noon", "by mistake", "once more"];
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut out = String::new();
    while out.len() < bytes {
        for _ in 0..5 {
            out.push_str(&format!(
                "{} {} {} {}, day {}. ",
                SUBJECTS[next() % 8],
                VERBS[next() % 8],
                OBJECTS[next() % 8],
                TAILS[next() % 8],
                next() % 10_000
            ));
        }
        out.push_str("\n\n");
    }
    out
}
