//! Work on the processor's idle cores beside serving: several things at once, in their order, at the least priority.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

/// More threads than this gain nothing: the longest of a batch is waited for.
const MOST: usize = 16;
/// How far below every other process its threads stand: the kernel's most.
const NICE: i32 = 19;

/// Threads that may work: one core is left to whoever asks for an answer.
pub fn threads() -> usize {
    available_parallelism().map_or(1, NonZero::get).saturating_sub(1).clamp(1, MOST)
}

/// `each` of every item, in the order of the items, whatever thread did it.
pub fn map<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    on(threads(), items, each)
}

fn on<T: Sync, R: Send>(threads: usize, items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.iter().map(each).collect();
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let work = || loop {
        let i = next.fetch_add(1, Ordering::Relaxed);
        let Some(item) = items.get(i) else { return };
        let result = each(item);
        done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
    };
    scope(|scope| {
        for _ in 1..threads {
            let beside = || {
                // Of this thread alone; where it is refused, it works as any other.
                let _ = rustix::process::nice(NICE);
                work();
            };
            // Where there is no thread, this one does its work.
            if Builder::new().name("job beside".into()).spawn_scoped(scope, beside).is_err() {
                break;
            }
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_items_however_many_threads_there_are() {
        let items: Vec<u64> = (0..100).collect();
        // The first take longest.
        let each = |&i: &u64| {
            std::thread::sleep(std::time::Duration::from_micros(100 - i));
            i * i
        };
        let expected: Vec<u64> = items.iter().map(|i| i * i).collect();
        for threads in [1, 2, 7, 200] {
            assert_eq!(on(threads, &items, each), expected, "{threads}");
        }
        assert!(on(4, &[], each).is_empty());
    }

    #[test]
    fn a_core_is_left_to_requests() {
        let cores = available_parallelism().unwrap().get();
        assert!(threads() < cores.max(2));
    }
}
