use super::*;
use serde_json::json;

/// A byte-level tokenizer of 256 bytes, `ab`, the two bytes of `é` as one token, and a special and a plain added token.
fn folder() -> tempfile::TempDir {
    let mut vocab = serde_json::Map::new();
    let spell = |byte: u8| (0..0x180).filter_map(char::from_u32).find(|&c| token_bytes_of(c) == Some(byte)).unwrap();
    for byte in 0..=255u8 {
        vocab.insert(spell(byte).to_string(), json!(byte));
    }
    vocab.insert("ab".into(), json!(256));
    vocab.insert("Ã©".into(), json!(257));
    vocab.insert("<|end|>".into(), json!(258));
    vocab.insert("<tool>".into(), json!(260));
    let added = |id: u32, content: &str, special: bool| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special});
    let tokenizer = json!({"version": "1.0", "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null, "added_tokens": [added(258, "<|end|>", true), added(260, "<tool>", false)],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["Ã", "©"]]}});
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

fn token_bytes_of(c: char) -> Option<u8> {
    super::token_bytes::byte_of(c)
}

#[test]
fn text_comes_back_from_its_tokens_byte_for_byte() {
    let tokenizer = Tokenizer::open(folder().path(), 300).unwrap();
    let text = "abé \u{1F600}\0\n<|end|>x<tool>";
    let ids = tokenizer.encode(text, true).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).into_owned()).collect();
    assert_eq!(bytes, text.as_bytes());
    assert_eq!(tokenizer.decode(&ids, false), text);
    assert_eq!(tokenizer.decode(&ids, true), text.replace("<|end|>", ""), "only special tokens are left out");
}

#[test]
fn prompts_are_not_truncated_even_where_the_file_asks_for_it() {
    let tokenizer = Tokenizer::open(folder().path(), 300).unwrap();
    assert_eq!(tokenizer.encode("0123456789", true).unwrap().len(), 10);
}

#[test]
fn ids_without_a_token_have_no_bytes_and_are_not_special() {
    let tokenizer = Tokenizer::open(folder().path(), 300).unwrap();
    for id in [259, 261, u32::MAX] {
        assert!(tokenizer.token_bytes(id).is_empty());
        assert!(!tokenizer.is_special(id));
    }
    assert_eq!(tokenizer.vocab_size(), 261);
    assert_eq!(tokenizer.token_id("<|end|>"), Some(258));
}

#[test]
fn a_vocabulary_larger_than_the_embedding_is_refused() {
    let error = Tokenizer::open(folder().path(), 260).err().unwrap();
    assert!(matches!(error, TokenizerError::Vocabulary { id: 260, vocab: 260, .. }), "{error}");
}

#[test]
fn missing_broken_and_foreign_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::open(dir.path(), 300).err().unwrap(), TokenizerError::Io { .. }));
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, "{\"version\": \"1.0\", ").unwrap();
    assert!(matches!(Tokenizer::open(dir.path(), 300).err().unwrap(), TokenizerError::Malformed { .. }));
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(folder().path().join("tokenizer.json")).unwrap()).unwrap();
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    std::fs::write(&path, json.to_string()).unwrap();
    assert!(matches!(Tokenizer::open(dir.path(), 300).err().unwrap(), TokenizerError::UnsupportedDecoder { .. }));
}
