use super::*;
use crate::detokenize::TextStream;
use serde_json::json;
use std::sync::Arc;

fn json() -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder().path().join("tokenizer.json")).unwrap()).unwrap()
}

fn refused(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut value = json();
    change(&mut value);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), value.to_string()).unwrap();
    match Tokenizer::open(dir.path(), 300) {
        Ok(_) => panic!("opened"),
        Err(error) => {
            assert!(matches!(error, TokenizerError::Excess { .. } | TokenizerError::UnsupportedModel { .. }), "{error}");
            error.to_string()
        }
    }
}

#[test]
fn every_part_has_a_limit_and_the_refusal_names_it() {
    let many = |n: usize| (0..n).map(|i| (format!("t{i}"), json!(i % 300))).collect::<serde_json::Map<_, _>>();
    let added = json()["added_tokens"][0].clone();
    let with = |content: String| {
        let mut token = added.clone();
        token["content"] = json!(content);
        token
    };
    let replace = |from: &str, to: String| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let deep = (0..40).fold(json!({"type": "NFC"}), |inner, _| json!({"type": "Sequence", "normalizers": [inner]}));
    let cases: Vec<(&str, &str, serde_json::Value)> = vec![
        ("/model/vocab", "model.vocab", many(301).into()),
        ("/model/vocab", "model.vocab", json!({"x".repeat(5000): 0})),
        ("/model/vocab", "model.vocab", json!({"x": [0, 1, 2]})),
        ("/model/merges", "model.merges", json!(vec![["a", "b"]; 2401])),
        ("/model/merges", "model.merges", json!([vec!["a"; 100]])),
        // Found by fuzzing: joined in a buffer as long as the longest token.
        ("/model/merges", "model.merges", json!([["x".repeat(300), "y".repeat(300)]])),
        ("/model/merges", "model.merges", json!([format!("{0} {0}", "x".repeat(300))])),
        ("/model/continuing_subword_prefix", "model.continuing_subword_prefix", json!("##")),
        ("/model/unk_token", "model.unk_token", json!(vec!["a"; 2000])),
        ("/added_tokens", "added_tokens", json!(vec![added.clone(); 301])),
        ("/added_tokens", "added_tokens", json!([with("y".repeat(5000))])),
        ("/added_tokens", "added_tokens", json!((0..290).map(|i| with(format!("{i}{}", "y".repeat(4000)))).collect::<Vec<_>>())),
        ("/normalizer", "normalizer", deep),
        ("/normalizer", "normalizer", replace(" ", "x".repeat(65))),
        ("/normalizer", "normalizer", json!({"type": "Sequence", "normalizers": vec![replace("x", "x".repeat(10)); 3]})),
        ("/normalizer", "normalizer", json!({"type": "Prepend", "prepend": "x".repeat(100)})),
        ("/normalizer", "normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "A".repeat(2 << 20)})),
        ("/pre_tokenizer", "pre_tokenizer", split("(a{100}){100}")),
        ("/pre_tokenizer", "pre_tokenizer", split(&"a|".repeat(3000))),
        ("/pre_tokenizer", "pre_tokenizer", json!({"type": "Sequence", "pretokenizers": vec![split(r"\p{N}{1,3}"); 100]})),
        (
            "/post_processor",
            "post_processor",
            json!({"type": "TemplateProcessing", "single": vec![json!({"SpecialToken": {"id": "a"}}); 1000]}),
        ),
        ("/model/type", "Unigram", json!("Unigram")),
    ];
    for (place, named, value) in cases {
        let error = refused(|json| {
            let (parent, key) = place.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[key] = value;
        });
        assert!(error.contains("tokenizer.json") && error.contains(&format!("`{named}`")), "{place}: {error}");
    }
}

#[test]
fn what_published_tokenizers_ask_for_is_within_the_limits() {
    let mut value = json();
    value["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    value["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated", "invert": false,
        "pattern": {"Regex": r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]});
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), value.to_string()).unwrap();
    assert!(Tokenizer::open(dir.path(), 300).is_ok());
}

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

/// A SentencePiece vocabulary: the 256 bytes as tokens, a space, and few characters of its own.
fn fallback_folder() -> tempfile::TempDir {
    let mut vocab = serde_json::Map::new();
    vocab.insert("<unk>".into(), json!(0));
    for byte in 0..=255u32 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(byte + 1));
    }
    for (id, piece) in ["▁", "a", "日"].into_iter().enumerate() {
        vocab.insert(piece.into(), json!(id + 257));
    }
    let decoders = json!([{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]);
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true}});
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

#[test]
fn characters_that_are_byte_tokens_come_back_whole_and_stop_at_a_stop_string() {
    let tokenizer = Arc::new(Tokenizer::open(fallback_folder().path(), 300).unwrap());
    let text = "a 👨‍👩‍👧‍👦 日本 🇩🇪🇫🇷 e\u{301}";
    let ids = tokenizer.encode(text, true).unwrap();
    assert!(ids.len() > 50, "most are bytes: {ids:?}");
    for (stop, shown) in [(vec![], text), (vec!["🇫🇷".to_owned()], "a 👨‍👩‍👧‍👦 日本 🇩🇪"), (vec!["本 ".to_owned()], "a 👨‍👩‍👧‍👦 日")]
    {
        let mut stream = TextStream::new(tokenizer.clone(), &stop, true);
        let mut said: Vec<String> = ids.iter().map(|&id| stream.push(id).text).collect();
        said.push(stream.finish().text);
        assert_eq!((said.concat().as_str(), stream.stopped()), (shown, !stop.is_empty()));
    }
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
