//! Text in which a character is many bytes and a sign many characters: cut anywhere, it is shown whole, and a stop string is found at its first
//! whole occurrence and nowhere else.

use super::tests::{Bytes, stream_of};

/// Families joined by ZWJ, flags, skin tones, variation selectors, ideographs, combining marks, syllables of several parts, right to left.
const TEXTS: [&str; 9] =
    ["a 👨‍👩‍👧‍👦 b", "🇩🇪🇫🇷🇯🇵", "👍👍🏻👍🏿", "❤️❤ ☎️", "日本語の文章。", "e\u{301}é a\u{308}\u{323}", "각 가\u{11a8}", "नमस्ते", "שָׁלוֹם, العربية"];

/// Every way to cut `text` into tokens of `size` bytes, by where the first one ends.
fn cuts(text: &str, size: usize) -> Vec<Vec<Vec<u8>>> {
    let cut = |first: usize| {
        let (head, tail) = text.as_bytes().split_at(first.min(text.len()));
        let head = (!head.is_empty()).then(|| head.to_vec());
        head.into_iter().chain(tail.chunks(size).map(<[u8]>::to_vec)).collect()
    };
    (0..size).map(cut).collect()
}

/// The pieces that come of tokens, the last by the end.
fn pieces(tokens: Vec<Vec<u8>>, stops: &[String]) -> (Vec<String>, bool) {
    let count = tokens.len() as u32;
    let mut stream = stream_of(Bytes { tokens, special: usize::MAX }, stops);
    let mut pieces: Vec<String> = (0..count).map(|token| stream.push(token).text).collect();
    pieces.push(stream.finish().text);
    (pieces, stream.stopped())
}

#[test]
fn signs_of_many_bytes_are_shown_whole_however_they_are_cut() {
    for text in TEXTS {
        for tokens in (1..=7).flat_map(|size| cuts(text, size)) {
            let (pieces, stopped) = pieces(tokens.clone(), &[]);
            assert_eq!(pieces.concat(), text, "{tokens:?}");
            assert!(!stopped && pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        }
    }
}

#[test]
fn a_stop_string_of_many_bytes_ends_the_text_at_its_first_whole_occurrence() {
    let mut found = 0;
    for text in TEXTS {
        let scalars: Vec<char> = text.chars().collect();
        let parts = (0..scalars.len()).flat_map(|i| (i + 1..=scalars.len().min(i + 4)).map(move |j| (i, j)));
        for stop in parts.map(|(i, j)| scalars[i..j].iter().collect::<String>()) {
            let at = text.find(&stop).unwrap();
            for tokens in (1..=3).flat_map(|size| cuts(text, size)) {
                let (pieces, stopped) = pieces(tokens.clone(), std::slice::from_ref(&stop));
                assert_eq!((pieces.concat().as_str(), stopped), (&text[..at], true), "{stop:?} in {tokens:?}");
                found += 1;
            }
        }
    }
    assert!(found > 1000);
}

#[test]
fn what_only_begins_like_a_stop_string_is_shown() {
    for (text, stop) in [
        ("🇩🇪🇩🇪", "🇩🇬"),  // three bytes of the second letter are the same
        ("👨‍👩‍👧 👨‍👩‍👧", "👨‍👩‍👦"), // all but the last byte
        ("👍🏻", "👍🏿"),
        ("e\u{301}", "é"), // the same to a reader, other characters
        ("日本", "日木"),
        ("ééé", "éèè"),
    ] {
        for tokens in (1..=4).flat_map(|size| cuts(text, size)) {
            let (pieces, stopped) = pieces(tokens, &[stop.to_owned()]);
            assert_eq!((pieces.concat().as_str(), stopped), (text, false), "{stop:?}");
        }
    }
}
