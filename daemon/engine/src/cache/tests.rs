//! Pages: none is lost, had twice or given away under a holder, whatever is reserved, kept, shared and forgotten.

use super::*;
use crate::handle::ClientId;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

fn key(client: u32, content: u32) -> PageKey {
    PageKey { scope: Scope::Client(ClientId(client)), under: None, content: Digest::of(&content.to_le_bytes()) }
}

#[test]
fn a_reservation_that_does_not_fit_takes_nothing() {
    let pages = PageAllocator::new(3);
    let held = pages.reserve(2).unwrap();
    assert!(pages.reserve(2).is_none());
    assert_eq!((pages.free(), pages.used()), (1, 2));
    drop(held);
    assert_eq!(pages.free(), 3);
}

#[test]
fn pages_given_back_last_are_taken_first_and_in_their_order() {
    let pages = PageAllocator::new(8);
    let first = pages.reserve(3).unwrap();
    let _second = pages.reserve(2).unwrap();
    let order = first.pages().to_vec();
    drop(first);
    assert_eq!(pages.reserve(3).unwrap().pages(), order);
}

#[test]
fn kept_pages_count_as_free_and_are_given_up_the_end_of_the_prompt_left_longest_ago_first() {
    let pages = PageAllocator::new(6);
    for client in [1, 2] {
        let lease = pages.reserve(2).unwrap();
        lease.pages().iter().enumerate().for_each(|(i, &page)| pages.keep(page, key(client, i as u32)));
    }
    assert_eq!((pages.free(), pages.cached()), (6, 4));
    let there = |client, i| pages.kept(&key(client, i)).is_some();
    let _three = pages.reserve(3).unwrap();
    assert_eq!([there(1, 0), there(1, 1), there(2, 0), there(2, 1)], [true, false, true, true]);
    let again = pages.hold(&[pages.kept(&key(1, 0)).unwrap()]);
    assert!(pages.reserve(3).is_none(), "one is held again");
    let _two = pages.reserve(2).unwrap();
    assert_eq!([there(1, 0), there(2, 0)], [true, false]);
    drop(again);
}

#[test]
fn a_clients_page_becomes_everybodys_and_never_the_other_way() {
    let pages = PageAllocator::new(2);
    let lease = pages.reserve(1).unwrap();
    let own = key(1, 0);
    let shared = PageKey { scope: Scope::Shared, ..own };
    for (key, found) in [(own, [true, false]), (shared, [false, true]), (own, [false, true])] {
        pages.keep(lease.pages()[0], key);
        assert_eq!([pages.kept(&own).is_some(), pages.kept(&shared).is_some()], found);
    }
    pages.forget(|_, key| key.scope == Scope::Shared);
    assert_eq!((pages.kept(&shared), pages.used()), (None, 1));
    drop(lease);
    assert_eq!((pages.free(), pages.cached()), (2, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(usize),
    /// Pages of a lease that is there, once more.
    Hold(usize),
    /// A kept page in place of one of a lease.
    Swap(usize, u32),
    Keep(usize, u32),
    Forget(u32),
    Drop(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..6).prop_map(Op::Reserve),
        1 => any::<prop::sample::Index>().prop_map(|i| Op::Hold(i.index(16))),
        1 => (0usize..16, 0u32..6).prop_map(|(i, k)| Op::Swap(i, k)),
        3 => (0usize..16, 0u32..6).prop_map(|(i, k)| Op::Keep(i, k)),
        1 => (0u32..6).prop_map(Op::Forget),
        3 => (0usize..16).prop_map(Op::Drop),
    ]
}

proptest! {
    #[test]
    fn no_page_is_lost_or_taken_from_its_holders(ops in proptest::collection::vec(op(), 0..96)) {
        let pages = PageAllocator::new(16);
        // Leases, and whether theirs are shared from the start.
        let mut held: Vec<PageLease> = Vec::new();
        for op in ops {
            let some = |i: usize, held: &[PageLease]| (!held.is_empty()).then(|| i % held.len());
            match op {
                Op::Reserve(n) => {
                    let before: HashSet<u32> = held.iter().flat_map(|l| l.pages().to_vec()).collect();
                    let lease = pages.reserve(n);
                    prop_assert_eq!(lease.is_some(), n <= 16 - before.len(), "kept pages keep nobody out");
                    prop_assert!(lease.iter().flat_map(|l| l.pages()).all(|page| !before.contains(page)), "a held page was given away");
                    held.extend(lease);
                }
                Op::Hold(i) => if let Some(i) = some(i, &held) {
                    let again = pages.hold(held[i].pages());
                    held.push(again);
                },
                Op::Swap(i, k) => if let (Some(i), Some(page)) = (some(i, &held), pages.kept(&key(0, k)))
                    && !held[i].pages().is_empty() && !held[i].pages().contains(&page) {
                    held[i].swap(0, page);
                },
                Op::Keep(i, k) => if let Some(&page) = some(i, &held).and_then(|i| held[i].pages().first()) {
                    pages.keep(page, key(0, k));
                },
                Op::Forget(k) => pages.forget(|_, of| *of == key(0, k)),
                Op::Drop(i) => if let Some(i) = some(i, &held) {
                    held.swap_remove(i);
                },
            }
            let mut holders: HashMap<u32, usize> = HashMap::new();
            held.iter().flat_map(|l| l.pages()).for_each(|&page| *holders.entry(page).or_default() += 1);
            prop_assert_eq!(pages.used(), holders.len());
            prop_assert!(pages.cached() <= 6 && pages.cached() <= pages.free());
        }
        drop(held);
        prop_assert_eq!(pages.used(), 0);
        pages.forget(|_, _| true);
        prop_assert_eq!(pages.cached(), 0);
        let all = pages.reserve(16).unwrap();
        prop_assert_eq!(all.pages().iter().collect::<HashSet<_>>().len(), 16);
    }
}
