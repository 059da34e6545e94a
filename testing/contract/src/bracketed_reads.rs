//! C6 with threads: a read between two queries with equal values is current.

use crate::promise::{Promise, Tallies};
use crate::subject::SharedFile;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// The number of rounds of the observers that makes a run meaningful.
const ENOUGH: u64 = 30;

/// The largest number begun and the largest number completed.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    completed: AtomicU64,
}

impl Progress {
    fn step(&self, nth: u64, change: impl FnOnce() -> crate::subject::Result<()>) {
        self.begun.store(nth, SeqCst);
        change().expect("the change succeeds");
        self.completed.store(nth, SeqCst);
    }
}

/// Encodes a number as the word that fills files: the number and its complement. The kernel copies pages
/// bytewise while they are written, so a word can mix two numbers: 0x15ff and 0x1600 give 0x1500.
fn word(nth: u64) -> [u8; 8] {
    let low = u32::try_from(nth).expect("a run is shorter than that");
    (u64::from(low) | u64::from(!low) << 32).to_le_bytes()
}

/// Decodes a word; `None` if a write was in progress.
fn number(word: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
    let (low, high) = (word as u32, (word >> 32) as u32);
    (high == !low).then_some(u64::from(low))
}

/// Runs a writer of growing numbers (`pages` of 4 KiB per write, so that a write is longer than a page), a
/// second one that keeps growing numbers in the metadata, and several observers that query, read both and
/// query again, for at least `time`. Counts the results under C1 data and metadata, C2 and C6; panics only if
/// a completed write is not visible. Without metadata support the second writer does nothing.
pub fn observe(file: &dyn SharedFile, observers: usize, pages: usize, time: Duration) -> Tallies {
    let image = |nth: u64| word(nth).repeat(512 * pages);
    file.write(&image(0)).expect("the first write");
    let has_notes = file.set_note(0).is_ok();
    let (data, notes) = (Progress::default(), Progress::default());
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let all = Mutex::new(Tallies::default());
    let end = Instant::now() + time;
    thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 1.. {
                data.step(nth, || file.write(&image(nth)));
                // A busy machine gets more time, so that the run is meaningful.
                let late = end + time * 20;
                let now = Instant::now();
                if now > late || (now > end && rounds.load(SeqCst) >= ENOUGH) {
                    break;
                }
            }
            stop.store(true, SeqCst);
        });
        if has_notes {
            scope.spawn(|| {
                for nth in 1.. {
                    notes.step(nth, || file.set_note(nth));
                    if stop.load(SeqCst) {
                        break;
                    }
                    thread::sleep(Duration::from_micros(nth % 50));
                }
            });
        }
        for _ in 0..observers {
            scope.spawn(|| {
                let found = observer(file, has_notes, pages, &data, &notes, (&stop, &rounds));
                all.lock().expect("no observer panicked").add(&found);
            });
        }
    });
    all.into_inner().expect("no observer panicked")
}

fn observer(
    file: &dyn SharedFile,
    has_notes: bool,
    pages: usize,
    data: &Progress,
    notes: &Progress,
    (stop, rounds): (&AtomicBool, &AtomicU64),
) -> Tallies {
    let mut tallies = Tallies::default();
    let query = || file.query().ok().flatten().expect("a value");
    let mut last: Option<(u64, u64, u64)> = None;
    let mut buf = vec![0; 4096 * pages];
    while !stop.load(SeqCst) {
        let completed = (data.completed.load(SeqCst), notes.completed.load(SeqCst));
        let value = query();
        if let Some((old, data_begun, notes_begun)) = last {
            tallies.count(Promise::Monotonic, value >= old, || format!("{value} after {old}"));
            // A change that began after the last query and completed before this one.
            for (promise, moved) in
                [(Promise::Data, completed.0 > data_begun), (Promise::Metadata, completed.1 > notes_begun)]
            {
                if moved {
                    tallies.count(promise, value != old, || {
                        format!("{completed:?} complete, but the value stayed {value}")
                    });
                }
            }
        }
        let begun = (data.begun.load(SeqCst), notes.begun.load(SeqCst));
        let got = file.read(&mut buf).expect("a read");
        assert_eq!(got, buf.len(), "the file does not shrink");
        let note = if has_notes { file.note().expect("the note") } else { 0 };
        let complete_then = (data.completed.load(SeqCst), notes.completed.load(SeqCst));
        let again = query();
        let oldest = buf.chunks_exact(8).filter_map(number).min().expect("one word is never torn");
        assert!(
            oldest >= completed.0 && note >= completed.1,
            "a completed change is not visible: {oldest} and {note} of {completed:?}"
        );
        // Equal values stand for all changes that were complete at the second query.
        if again == value {
            let current = oldest >= complete_then.0 && (!has_notes || note >= complete_then.1);
            let what = || format!("{value} stands for {oldest} and {note}; complete were {complete_then:?}");
            tallies.count(Promise::Current, current, what);
        }
        last = Some((value, begun.0, begun.1));
        rounds.fetch_add(1, SeqCst);
    }
    tallies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_reads_of_a_word_are_rejected() {
        let (old, new) = (word(0x15ff), word(0x1600));
        for (cut, from_start) in (1..8).flat_map(|cut| [(cut, true), (cut, false)]) {
            let (head, tail) = if from_start { (new, old) } else { (old, new) };
            let torn = [&head[..cut], &tail[cut..]].concat();
            assert!(matches!(number(&torn), None | Some(0x15ff | 0x1600)), "{torn:x?}");
        }
        assert_eq!((number(&old), number(&new)), (Some(0x15ff), Some(0x1600)));
    }
}
