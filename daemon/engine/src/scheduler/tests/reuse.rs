//! Prompts that begin as an earlier one did: what is taken, by whom, and what never is.

use super::*;
use crate::prefix::{NewPrefix, PrefixError, PrefixInfo};

fn reusing(client: u32, prompt: &[u32]) -> Request {
    Request { prompt: prompt.to_vec(), reuse: true, ..request(client, 1, 3) }
}

fn text(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 31 + 100) % VOCABULARY).collect()
}

impl Rig {
    /// Runs a request alone; gives the prompt tokens it took.
    fn taken(&mut self, request: Request) -> u32 {
        let id = self.submit(request.clone());
        self.run();
        assert_eq!(self.tokens(id), expected(&request));
        self.finished(id)[0].usage.reused_tokens
    }

    fn pin(&mut self, name: &str, tokens: &[u32]) -> Result<PrefixInfo, PrefixError> {
        self.model.pinned.push(tokens.to_vec());
        self.scheduler.pin(NewPrefix { name: name.into(), tokens: tokens.to_vec(), owner: ClientId(0) })
    }
}

#[test]
fn whole_pages_are_taken_but_the_last_token_is_computed() {
    let mut rig = Rig::new(64, 8);
    let text = text(1000);
    let taken: Vec<u32> = [300, 300, 1000, 256, 257, 127, 129, 896].iter().map(|&length| rig.taken(reusing(1, &text[..length]))).collect();
    assert_eq!(taken, [0, 256, 256, 128, 256, 0, 128, 768]);
    assert_eq!((rig.scheduler.pages().used(), rig.scheduler.pages().cached()), (0, 7));
    assert_eq!(rig.scheduler.reuse(), ReuseCounts { asked: 3265, reused: 1792 });
}

#[test]
fn another_client_takes_nothing_and_neither_does_who_does_not_want_to() {
    let mut rig = Rig::new(64, 8);
    let text = text(500);
    assert_eq!(rig.taken(reusing(1, &text)), 0);
    assert_eq!(rig.taken(reusing(2, &text)), 0, "another client's");
    assert_eq!(rig.taken(Request { reuse: false, ..reusing(1, &text) }), 0);
    assert_eq!(rig.taken(reusing(1, &text)), 384);
    let other: Vec<u32> = text.iter().map(|t| (t + 1) % VOCABULARY).collect();
    assert_eq!(rig.taken(Request { reuse: false, ..reusing(3, &other) }), 0);
    assert_eq!(rig.taken(reusing(3, &other)), 0, "a prompt without reuse leaves nothing");
}

#[test]
fn pages_belong_to_the_row_of_the_table_they_were_computed_with() {
    let mut rig = Rig::new(64, 8);
    let rows = |s: f32| {
        let table = ScaleTable::new(vec![(16, s).into(), (600, 5.0).into()], None).unwrap();
        Arc::new(NamedTable { table, tier: None, origin: "set-table".into(), hash: s.to_string() })
    };
    let text = text(900);
    let set = |rig: &mut Rig, table| rig.scheduler.set_tables(TableSet { prefill: table, decode: None });
    assert_eq!(rig.taken(reusing(1, &text[..500])), 0);
    set(&mut rig, Some(rows(2.0)));
    assert_eq!(rig.taken(reusing(1, &text[..500])), 0, "dense before");
    assert_eq!(rig.taken(reusing(1, &text[..550])), 384, "another length of the same row");
    assert_eq!(rig.taken(reusing(1, &text[..700])), 0, "the next row");
    set(&mut rig, Some(rows(3.0)));
    assert_eq!(rig.taken(reusing(1, &text[..500])), 0, "another table");
    set(&mut rig, Some(rows(2.0)));
    assert_eq!(rig.taken(reusing(1, &text[..500])), 384, "the first one again");
    set(&mut rig, None);
    assert_eq!(rig.taken(reusing(1, &text[..500])), 384, "dense again");
    // Exactly dense is dense, whatever the table.
    set(&mut rig, Some(table(0.0)));
    assert_eq!(rig.taken(reusing(1, &text[..500])), 384);
}

#[test]
fn many_at_once_with_one_beginning_compute_it_once() {
    for depth in [1, 2] {
        let mut rig = Rig::with_depth(64, 8, depth);
        let text = text(1000);
        let requests: Vec<Request> = (0..6).map(|i| reusing(1, &[&text[..], &[i; 20]].concat())).collect();
        let ids: Vec<RequestId> = requests.iter().map(|r| rig.submit(r.clone())).collect();
        let mut computed = 0;
        while !rig.scheduler.is_idle() || !rig.under_way.is_empty() {
            computed += rig.step().tokens(Phase::Prefill);
        }
        for (id, request) in ids.iter().zip(&requests) {
            assert_eq!(rig.tokens(*id), expected(request));
        }
        assert!(computed < 3 * 1020, "{computed} of {} tokens computed", 6 * 1020);
    }
}

#[test]
fn pages_that_others_use_are_not_reserved_twice() {
    let mut rig = Rig::new(8, 8);
    let text = text(600);
    let first = rig.submit(Request { max_tokens: 30, ..reusing(1, &text) });
    while rig.tokens(first).is_empty() {
        rig.step();
    }
    // Five pages each, four of them the same ones.
    let second = rig.submit(Request { max_tokens: 30, ..reusing(1, &text) });
    rig.step();
    assert_eq!((rig.scheduler.running(), rig.scheduler.pages().used()), (2, 6));
    rig.run();
    assert_eq!(rig.tokens(second), rig.tokens(first));
}

#[test]
fn kept_pages_keep_nobody_out() {
    let mut rig = Rig::new(8, 8);
    for client in 1..4 {
        rig.taken(reusing(client, &text(300)));
    }
    assert_eq!((rig.scheduler.pages().cached(), rig.scheduler.pages().free()), (6, 8));
    let whole = rig.submit(request(9, 1000, 24));
    rig.step();
    assert_eq!((rig.scheduler.running(), rig.scheduler.pages().cached()), (1, 0));
    rig.run();
    assert_eq!(rig.tokens(whole).len(), 24);
}

#[test]
fn what_was_used_last_stays_longest() {
    let mut rig = Rig::new(8, 8);
    for client in [1, 2, 3, 1] {
        rig.taken(reusing(client, &text(300)));
    }
    rig.taken(request(9, 600, 40));
    let taken: Vec<u32> = [1, 2].map(|client| rig.taken(reusing(client, &text(300)))).to_vec();
    assert_eq!(taken, [256, 0]);
}

#[test]
fn a_prompt_cancelled_half_way_leaves_what_is_complete() {
    for depth in [1, 2] {
        let mut rig = Rig::with_depth(64, 8, depth);
        let text = text(1000);
        let gone = rig.submit(reusing(1, &text));
        while rig.scheduler.pages().registered() < 2 {
            rig.step();
        }
        let complete = rig.scheduler.pages().registered();
        // One more step is under way, or planned and given up.
        let plan = rig.scheduler.plan(rig.now, rig.under_way.back(), &mut rig.events);
        let _ = plan;
        rig.scheduler.cancel(gone, FinishReason::Cancelled, rig.now, &mut rig.events);
        while !rig.under_way.is_empty() {
            rig.finish();
        }
        assert!((2..7).contains(&complete), "{complete}");
        assert_eq!((rig.scheduler.pages().used(), rig.scheduler.pages().cached()), (0, complete));
        assert_eq!(rig.taken(reusing(1, &text)) as usize, complete * PAGE);
    }
}

#[test]
fn pages_of_logits_that_are_no_numbers_are_not_trusted() {
    let mut rig = Rig::new(64, 8);
    let id = rig.submit(reusing(1, &text(300)));
    while rig.finished(id).is_empty() {
        let mut plan = rig.scheduler.plan(rig.now, None, &mut rig.events);
        let mut report = rig.model.step(&rig.scheduler.steps(&plan));
        rig.scheduler.begin(&plan);
        report.sampled.iter_mut().flatten().for_each(|s| s.token = u32::MAX);
        rig.scheduler.complete(&mut plan, &mut report, Duration::from_millis(1), rig.now, &mut rig.events);
    }
    assert_eq!(rig.finished(id)[0].reason, FinishReason::Error);
    assert_eq!(rig.scheduler.pages().cached(), 0);
    assert_eq!(rig.taken(reusing(1, &text(300))), 0);
}

#[test]
fn a_pinned_prefix_is_everybodys_until_it_is_dropped() {
    let mut rig = Rig::with_pins(16, 8, 8, 1);
    let text = text(700);
    assert_eq!(rig.pin("p", &text[..400]).unwrap().tokens, 384);
    assert_eq!(rig.taken(reusing(1, &text[..384])), 0, "whoever computes it first");
    let p = |rig: &Rig| rig.scheduler.prefixes().remove(0);
    assert_eq!((p(&rig).held, p(&rig).hits, rig.scheduler.pages().used()), (3, 0, 3));
    assert_eq!([rig.taken(reusing(1, &text)), rig.taken(reusing(2, &text))], [384, 384]);
    assert_eq!(p(&rig).hits, 2);
    // It stays whatever else comes.
    for client in 5..9 {
        rig.taken(Request { max_tokens: 1, ..request(client, 1000, 1) });
    }
    assert_eq!(rig.taken(reusing(3, &text)), 384);
    // What lies behind it is a client's own.
    assert_eq!(rig.taken(reusing(3, &text)), 640);
    assert_eq!(rig.taken(reusing(4, &text)), 384);
    assert_eq!(rig.scheduler.unpin("p").unwrap().hits, 5);
    assert_eq!((rig.scheduler.pages().used(), rig.scheduler.unpin("p")), (0, None));
    assert_eq!([rig.taken(reusing(5, &text)), rig.taken(reusing(5, &text))], [0, 640]);
}

#[test]
fn a_pinned_prefix_follows_the_tables_and_counts_once() {
    let mut rig = Rig::with_pins(32, 4, 8, 1);
    let text = text(500);
    rig.pin("p", &text[..384]).unwrap();
    for s in [None, Some(table(2.0)), Some(table(3.0))] {
        rig.scheduler.set_tables(TableSet { prefill: s, decode: None });
        assert_eq!([rig.taken(reusing(1, &text)), rig.taken(reusing(2, &text))], [0, 384]);
        assert_eq!((rig.scheduler.pinned(), rig.scheduler.pages().used()), (3, 3), "of the table in force");
    }
}

#[test]
fn pinned_prefixes_are_bounded_and_named_once() {
    let mut rig = Rig::with_pins(32, 4, 8, 1);
    let text = text(900);
    assert_eq!(rig.pin("short", &text[..127]), Err(PrefixError::TooShort { tokens: 127 }));
    rig.pin("a", &text[..256]).unwrap();
    assert_eq!(rig.pin("a", &text[..128]), Err(PrefixError::NameTaken("a".into())));
    assert_eq!(rig.pin("b", &text[..300]), Err(PrefixError::AlreadyPinned("a".into())));
    assert_eq!(rig.pin("b", &text[..384]), Err(PrefixError::NoRoom { needed: 3, pinned: 2, limit: 4 }));
    rig.pin("b", &text[128..384]).unwrap();
    assert_eq!(rig.scheduler.prefixes().len(), 2);
    // The largest request that there may be still fits.
    let largest = rig.submit(request(1, 28 * PAGE - 10, 10));
    let more = rig.submit(request(1, 28 * PAGE - 10, 11));
    rig.taken(reusing(1, &text[..257]));
    rig.taken(reusing(1, &text[128..385]));
    rig.run();
    assert_eq!((rig.tokens(largest).len(), rig.scheduler.pinned()), (10, 4));
    assert_eq!(rig.finished(more)[0].detail.as_deref(), Some("29 pages needed, 28 there"));
}

#[test]
fn prefixes_that_begin_alike_share_pages_and_dropping_one_leaves_the_other() {
    let mut rig = Rig::with_pins(32, 8, 8, 1);
    let text = text(700);
    rig.pin("long", &text[..512]).unwrap();
    rig.pin("short", &text[..256]).unwrap();
    assert_eq!([rig.taken(reusing(1, &text)), rig.taken(reusing(2, &text))], [0, 512]);
    assert_eq!(rig.scheduler.pinned(), 4);
    rig.scheduler.unpin("long").unwrap();
    assert_eq!((rig.scheduler.pinned(), rig.taken(reusing(3, &text))), (2, 256));
}

#[test]
fn a_hit_is_the_longest_prefix_s_that_a_prompt_has() {
    let mut rig = Rig::with_pins(64, 16, 8, 1);
    let text = text(900);
    let mut other = text.clone();
    other.reverse();
    let fork: Vec<u32> = text[..256].iter().chain(&other[..128]).copied().collect();
    // Whatever the order they were pinned in.
    for (name, tokens) in [("long", &text[..512]), ("middle", &text[..256]), ("fork", &fork), ("short", &text[..128])] {
        rig.pin(name, tokens).unwrap();
        rig.taken(reusing(1, &[tokens, &[1]].concat()));
    }
    let hits = |rig: &Rig| rig.scheduler.prefixes().into_iter().map(|prefix| prefix.hits).collect::<Vec<_>>();
    let before = hits(&rig);
    for (taken, prompt) in
        [(512, &text[..600]), (256, &text[..300]), (256, &[&text[..256], &other[200..300]].concat()), (128, &text[..200])]
    {
        assert_eq!(rig.taken(reusing(2, prompt)), taken);
    }
    let new: Vec<u64> = hits(&rig).iter().zip(&before).map(|(now, before)| now - before).collect();
    assert_eq!(new, [1, 2, 0, 1], "long, middle, fork, short");
}
