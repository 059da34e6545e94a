//! C6 with threads: what a bracketed read saw is current.

use ivers_vfs::{CreateSpec, Cred, Vfs, WriteFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// One writer of growing numbers, several observers; `pages` numbers are written by each write, one to a page, so that a write is
/// longer than a page. Panics if a value vouches for something that it did not see. Returns (writes, observations).
pub fn run_concurrent(vfs: &Arc<Vfs>, observers: usize, pages: usize, time: Duration) -> (u64, u64) {
    let root = vfs.root().expect("the root");
    let cred = Cred::root();
    let file =
        vfs.create(&cred, &root, b"contract-c6", &CreateSpec::file(0o600), false).expect("a new file").0;
    let image = |nth: u64| nth.to_le_bytes().repeat(512 * pages);
    vfs.write(&cred, &file, 0, &image(0), WriteFlags::empty()).expect("the first write");
    let (started, completed, observations) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + time;
            let mut nth = 0;
            while Instant::now() < end {
                nth += 1;
                started.store(nth, SeqCst);
                vfs.write(&cred, &file, 0, &image(nth), WriteFlags::empty()).expect("a write");
                completed.store(nth, SeqCst);
            }
            stop.store(true, SeqCst);
        });
        for _ in 0..observers {
            scope.spawn(|| {
                let (mut last, mut started_at_last) = (0, u64::MAX);
                let mut buf = vec![0; 4096 * pages];
                while !stop.load(SeqCst) {
                    let done_before = completed.load(SeqCst);
                    let value = vfs.change(&file).expect("a cookie");
                    assert!(value >= last, "C2: {value} after {last}");
                    let moved = done_before > started_at_last;
                    assert!(!moved || value > last, "C1: write {done_before} completed and {value} stayed");
                    started_at_last = started.load(SeqCst);
                    vfs.read(&file, 0, &mut buf).expect("a read");
                    let completed_before_second = completed.load(SeqCst);
                    let again = vfs.change(&file).expect("a cookie");
                    let oldest = buf
                        .chunks_exact(8)
                        .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")))
                        .min()
                        .expect("numbers");
                    assert!(oldest >= done_before, "a completed write is not visible");
                    // Equal values vouch for all writes that were complete when the second was taken.
                    let vouches = again == value;
                    assert!(
                        !vouches || oldest >= completed_before_second,
                        "C6: {value} vouches for number {oldest}, but write {completed_before_second} was complete"
                    );
                    last = value;
                    observations.fetch_add(1, SeqCst);
                }
            });
        }
    });
    vfs.unlink(&cred, &root, b"contract-c6", false).expect("the file goes");
    (completed.into_inner(), observations.into_inner())
}
