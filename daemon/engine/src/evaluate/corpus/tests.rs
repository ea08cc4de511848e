use super::*;
use crate::evaluate::calibration::calibration_prompts;
use crate::evaluate::{Framing, PromptError, testing};
use crate::regular::NEVER;
use std::collections::HashSet;

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn refusal(bytes: &[u8]) -> Refusal {
    let dir = folder(&[("x.txt", bytes)]);
    match Corpus::load(&[dir.path().join("x.txt")], &Limits::default(), NEVER) {
        Err(CorpusError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Bytes that a generator made.
fn random(count: usize, of: &[u8]) -> Vec<u8> {
    let mut rng = crate::evaluate::seed::Rng::named(1, "random");
    (0..count).map(|_| *rng.pick(of)).collect()
}

#[test]
fn what_is_no_text_is_refused_with_the_numbers() {
    assert!(matches!(refusal(b"  \n"), Refusal::Empty));
    assert!(matches!(refusal(b"text\0more"), Refusal::Binary { .. }));
    assert!(matches!(refusal(&[b"abc def\n".repeat(20), b"\x01\x02\x03\x04".to_vec()].concat()), Refusal::Binary { .. }));
    assert_eq!(refusal(b"th\xe9 au lait"), Refusal::NotUtf8 { at: 2 });
    let base64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let lines: Vec<u8> = random(60_000, base64).chunks(76).flat_map(|line| [line, b"\n"].concat()).collect();
    assert!(matches!(refusal(&lines), Refusal::NoWords { every } if (70.0..80.0).contains(&every)));
    let words: Vec<u8> = random(60_000, base64).chunks(6).flat_map(|word| [word, b" "].concat()).collect();
    let said = refusal(&words).to_string();
    assert!(said.starts_with("looks random: 0 % of its 8-byte windows occur twice in 32768 bytes"), "{said}");
}

#[test]
fn scripts_without_spaces_are_text() {
    let text = "小舟在清晨离开了港口，没有人记得它的名字。河边的老人每天都在等一封信。".repeat(60);
    assert!(inspect::text(text.into_bytes(), false).is_ok());
}

#[test]
fn too_little_text_is_refused_and_repeating_it_does_not_help() {
    let once = testing::prose(20_000, 1);
    let dir = folder(&[("a.txt", once.repeat(10).as_bytes()), ("b.txt", once.as_bytes())]);
    let error = Corpus::load(&[dir.path().to_owned()], &Limits::default(), NEVER).unwrap_err();
    assert!(matches!(error, CorpusError::TooShort { found, files: 1, needed: 65_536 } if (19_000..21_000).contains(&found)), "{error}");
    assert!(matches!(Corpus::load(&[dir.path().join("none")], &Limits::default(), NEVER), Err(CorpusError::Io { .. })));
    assert!(matches!(Corpus::load(&["/dev/null".into()], &Limits::default(), NEVER), Err(CorpusError::Special { .. })));
}

fn three_kinds() -> (tempfile::TempDir, Corpus) {
    let prose: Vec<String> = (0..6).map(|i| testing::prose(60_000, i)).collect();
    let source: String = testing::prose(200_000, 77).lines().map(|line| format!("let x = \"{line}\";\n\n")).collect();
    // Of a folder, tables are left out.
    let table: String = (0..9000).map(|i| format!("{i:04X} ; [.0000.{:04X}.0002] # SIGN\n", i / 3)).collect();
    let dir = folder(&[
        ("a.txt", prose[0].as_bytes()),
        ("b", prose[1].as_bytes()),
        ("c.txt", prose[2].as_bytes()),
        ("d.md", prose[3].as_bytes()),
        ("e.md", prose[4].as_bytes()),
        ("f.rs", source.as_bytes()),
        ("g.bin", b"\0\0"),
        ("i.txt", table.as_bytes()),
        ("h.txt", b"\xff\xff"),
    ]);
    let corpus = Corpus::load(&[dir.path().to_owned()], &Limits::default(), NEVER).unwrap();
    (dir, corpus)
}

#[test]
fn a_folder_gives_its_kinds_in_halves_and_leaves_the_rest() {
    let (dir, corpus) = three_kinds();
    assert_eq!(corpus.kinds().collect::<Vec<_>>(), Kind::ALL);
    assert_eq!((corpus.files(), corpus.skipped()), (6, 3));
    for kind in Kind::ALL {
        let [calibration, check] = [Half::Calibration, Half::Check].map(|half| corpus.bytes(kind, half));
        assert!(calibration.min(check) * 3 > calibration.max(check), "{kind}: {calibration} and {check}");
    }
    let again = Corpus::load(&[dir.path().to_owned()], &Limits::default(), NEVER).unwrap();
    assert_eq!(again.digest(), corpus.digest());
    std::fs::write(dir.path().join("a.txt"), testing::prose(60_000, 99)).unwrap();
    assert_ne!(Corpus::load(&[dir.path().to_owned()], &Limits::default(), NEVER).unwrap().digest(), corpus.digest());
}

#[test]
fn reading_is_bounded() {
    let (dir, _) = three_kinds();
    let limits = Limits { file_bytes: 10_000, kind_bytes: 25_000, entries: 6, least_bytes: 1000 };
    let corpus = Corpus::load(&[dir.path().to_owned()], &limits, NEVER).unwrap();
    for kind in Kind::ALL {
        assert!(corpus.bytes(kind, Half::Calibration) + corpus.bytes(kind, Half::Check) <= 25_010, "{kind}");
    }
}

#[test]
fn files_that_are_named_share_a_kind_s_limit_as_those_of_a_folder_do() {
    let dir = folder(&[("a.txt", testing::prose(30_000, 1).as_bytes()), ("b.txt", testing::prose(30_000, 2).as_bytes())]);
    let limits = Limits { kind_bytes: 40_000, least_bytes: 1000, ..Limits::default() };
    let paths = ["a.txt", "b.txt", "a.txt"].map(|name| dir.path().join(name));
    let corpus = Corpus::load(&paths, &limits, NEVER).unwrap();
    let bytes = [Half::Calibration, Half::Check].map(|half| corpus.bytes(Kind::Prose, half)).iter().sum::<usize>();
    assert!((35_000..=40_010).contains(&bytes), "{bytes}");
    // The limit is the kind's that a file turns out to be of.
    let script = |i| format!("#!/bin/sh\n{}", testing::prose(30_000, i));
    let dir = folder(&[("a", script(3).as_bytes()), ("b", script(4).as_bytes())]);
    let corpus = Corpus::load(&[dir.path().to_owned()], &limits, NEVER).unwrap();
    let bytes = [Half::Calibration, Half::Check].map(|half| corpus.bytes(Kind::Source, half)).iter().sum::<usize>();
    assert!((35_000..=40_010).contains(&bytes), "{bytes}");
}

#[test]
fn pipes_and_the_kernels_files_are_not_waited_for() {
    let dir = folder(&[("a.txt", testing::prose(200_000, 1).as_bytes())]);
    let pipe = dir.path().join("pipe.txt");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    for path in [pipe.clone(), "/proc/self/status".into(), "/dev/zero".into()] {
        let error = Corpus::load(std::slice::from_ref(&path), &Limits::default(), NEVER).unwrap_err();
        assert!(matches!(error, CorpusError::Special { .. }), "{}: {error}", path.display());
    }
    assert_eq!(Corpus::load(&[dir.path().to_owned()], &Limits::default(), NEVER).unwrap().files(), 1);
}

#[test]
fn reading_ends_when_it_is_told_to() {
    let (dir, _) = three_kinds();
    let files = std::sync::atomic::AtomicUsize::new(0);
    let cancelled = || files.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 3;
    let error = Corpus::load(&[dir.path().to_owned()], &Limits::default(), &cancelled).unwrap_err();
    assert!(matches!(error, CorpusError::Cancelled), "{error}");
    assert_eq!(files.into_inner(), 4, "no file is read behind the one at which it was told");
}

/// Sentences of the texts here carry numbers and are never the same twice.
fn sentences(tokens: &[u32], framing: &Framing<'_>) -> HashSet<String> {
    let text = framing.tokenizer().decode(tokens, true);
    let whole = |sentence: &&str| sentence.contains(", day ") && sentence.len() > 40 && !sentence.contains("special magic");
    text.split(". ").filter(whole).map(|s| s.trim().to_owned()).collect()
}

#[test]
fn calibration_and_check_prompts_have_exact_lengths_and_share_no_passage() {
    let (_dir, corpus) = three_kinds();
    let tokenizer = testing::tokenizer("The keeper ship old bridge council winter letter day the and a");
    let framing = Framing::plain(&tokenizer);
    let lengths = [900, 1500, 2048, 900, 1500, 2048, 900];
    let prompts = |half, seed| calibration_prompts(&corpus, half, &framing, &lengths, seed).unwrap();
    let one = prompts(Half::Calibration, 1);
    assert_eq!(one, prompts(Half::Calibration, 1));
    assert_ne!(one, prompts(Half::Calibration, 2));
    assert_eq!(one.iter().map(|p| p.tokens.len()).collect::<Vec<_>>(), lengths);
    assert_eq!(one.iter().map(|p| p.kind).collect::<HashSet<_>>().len(), 3);
    let planted = one.iter().filter(|p| p.source.starts_with("niah_")).count();
    assert!(planted > 0 && planted < one.len(), "{:?}", one.iter().map(|p| &p.source).collect::<Vec<_>>());
    let all = |prompts: &[crate::evaluate::calibration::CalibrationPrompt]| {
        prompts.iter().flat_map(|p| sentences(&p.tokens, &framing)).collect::<HashSet<_>>()
    };
    let calibration = all(&one);
    assert!(calibration.len() > 50);
    for seed in [1, 2, 3] {
        assert!(calibration.is_disjoint(&all(&prompts(Half::Check, seed))), "seed {seed}");
    }
    // Of one call, no two prompts share a sentence either.
    let each: usize = one.iter().map(|p| sentences(&p.tokens, &framing).len()).sum();
    assert_eq!(each, calibration.len());
}

#[test]
fn a_prompt_longer_than_half_the_text_is_refused() {
    let (_dir, corpus) = three_kinds();
    let tokenizer = testing::small();
    let error = calibration_prompts(&corpus, Half::Check, &Framing::plain(&tokenizer), &[400_000], 1).unwrap_err();
    assert!(matches!(error, PromptError::Corpus(CorpusError::Exhausted { .. })), "{error}");
}
