use super::*;
use proptest::prelude::*;

/// Token i is the i-th byte string; those from `special` on are control tokens.
pub(super) struct Bytes {
    pub tokens: Vec<Vec<u8>>,
    pub special: usize,
}

impl TokenText for Bytes {
    fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.tokens.get(id as usize).map_or(Cow::Borrowed(&[]), |t| Cow::Borrowed(t))
    }

    fn is_special(&self, id: u32) -> bool {
        id as usize >= self.special
    }
}

fn stream(tokens: &[&[u8]], special: usize, stops: &[&str]) -> TextStream {
    let tokens = tokens.iter().map(|t| t.to_vec()).collect();
    let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
    stream_of(Bytes { tokens, special }, &stops)
}

pub(super) fn stream_of(tokens: Bytes, stops: &[String]) -> TextStream {
    TextStream::new(Arc::new(tokens), stops, true)
}

fn piece(text: &str, tokens: &[usize]) -> Piece {
    Piece { text: text.into(), tokens: tokens.to_vec(), stop: None }
}

#[test]
fn a_character_split_over_tokens_is_shown_whole_and_names_both() {
    let mut s = stream(&[b"a\xf0\x9f", b"\xa4", b"\x96!"], 9, &[]);
    assert_eq!(s.push(0), piece("a", &[]));
    assert_eq!(s.push(1), piece("", &[]));
    assert_eq!(s.push(2), piece("🤖!", &[0, 1, 2]));
}

#[test]
fn an_unfinished_character_is_flushed_as_replacement() {
    let mut s = stream(&[b"ok\xe2\x82"], 9, &[]);
    assert_eq!(s.push(0), piece("ok", &[]));
    assert_eq!(s.finish(), piece("\u{fffd}", &[0]));
}

#[test]
fn bytes_that_can_never_become_a_character_do_not_wait() {
    let mut s = stream(&[b"\xff", b"\xe2\x82", b"x"], 9, &[]);
    assert_eq!(s.push(0), piece("\u{fffd}", &[0]));
    assert_eq!(s.push(1), piece("", &[]));
    assert_eq!(s.push(2), piece("\u{fffd}x", &[1, 2]));
}

#[test]
fn a_stop_string_over_several_tokens_is_never_shown() {
    let mut s = stream(&[b"end", b"\n", b"User", b":", b" more"], 9, &["\nUser:"]);
    assert_eq!(s.push(0), piece("end", &[0]));
    assert_eq!(s.push(1), piece("", &[]));
    assert_eq!(s.push(2), piece("", &[]));
    assert_eq!(s.push(3), Piece { text: String::new(), tokens: vec![], stop: Some(0) });
    assert!(s.push(4).is_empty() && s.finish().is_empty());
    assert_eq!(s.pushed(), 4);
}

#[test]
fn text_that_only_seemed_to_begin_a_stop_string_follows() {
    let mut s = stream(&[b"a", b"##", b"b", b"#"], 9, &["###"]);
    assert_eq!(s.push(0), piece("a", &[0]));
    assert_eq!(s.push(1), piece("", &[]));
    assert_eq!(s.push(2), piece("##b", &[1, 2]));
    assert_eq!(s.push(3), piece("", &[]));
    assert_eq!(s.finish(), piece("#", &[3]));
}

#[test]
fn a_token_partly_before_the_stop_string_is_named() {
    let mut s = stream(&[b"one. Two"], 9, &["Two", ". "]);
    assert_eq!(s.push(0), Piece { text: "one".into(), tokens: vec![0], stop: Some(1) });
}

#[test]
fn special_tokens_are_left_out_unless_wanted() {
    let mut s = stream(&[b"a", b"<eos>"], 1, &[]);
    assert_eq!(s.push(0), piece("a", &[0]));
    assert!(s.push(1).is_empty());
    let shown = Arc::new(Bytes { tokens: vec![b"<eos>".to_vec()], special: 0 });
    let mut s = TextStream::new(shown, &[], false);
    assert_eq!(s.push(0), piece("<eos>", &[0]));
}

proptest! {
    /// However the bytes are cut into tokens, the pieces are the text up to the first stop string, and each token is named at most once, in order.
    #[test]
    fn pieces_are_the_text_up_to_the_first_stop(
        text in "[ab#\u{e9}\u{1f916}]{0,24}",
        cuts in proptest::collection::vec(0usize..80, 0..8),
        stops in proptest::collection::vec("[ab#\u{e9}]{1,3}", 0..3),
    ) {
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let tokens: Vec<Vec<u8>> = cuts.windows(2).map(|w| bytes[w[0]..w[1]].to_vec()).collect();
        let count = tokens.len();
        let mut s = TextStream::new(Arc::new(Bytes { tokens, special: usize::MAX }), &stops, true);
        let mut shown = String::new();
        let mut named = Vec::new();
        let mut take = |p: Piece| {
            shown += &p.text;
            named.extend(p.tokens);
        };
        for token in 0..count {
            take(s.push(token as u32));
        }
        take(s.finish());
        let first = stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at + stop.len(), at))).min();
        let end = first.map(|(_, at)| at);
        prop_assert_eq!(&shown, &text[..end.unwrap_or(text.len())]);
        prop_assert_eq!(s.stopped(), end.is_some());
        prop_assert!(named.is_sorted_by(|a, b| a < b));
        if end.is_none() {
            prop_assert_eq!(named.len(), count);
        }
    }
}
