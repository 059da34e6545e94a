//! `-o strict_queries`: a number never vouches for what the kernel does not show yet (C6).
//!
//! Who changes something is kept from running behind the server's answer: it may run only while another thread of its processor does not want
//! to, which always wants to. Without the option its observer is misled time and again, so the test can fail.

mod common;

use common::*;
use ivers_sched::{Class, set_own_class};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long each kind of change is made.
const TIME: Duration = Duration::from_secs(4);

/// What is changed again and again, whose number is looked at, and what shows the change.
struct Kind {
    name: &'static str,
    change: fn(&Path, u32),
    of: &'static str,
    state: fn(&Path) -> u64,
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "truncate",
        change: |dir, n| File::options().write(true).open(dir.join("f")).unwrap().set_len(n.into()).unwrap(),
        of: "f",
        state: |dir| fs::metadata(dir.join("f")).unwrap().size(),
    },
    Kind {
        name: "chmod",
        change: |dir, n| {
            fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o600 + n % 8 * 8)).unwrap()
        },
        of: "f",
        state: |dir| fs::metadata(dir.join("f")).unwrap().mode().into(),
    },
    Kind {
        name: "link and unlink",
        change: |dir, n| {
            if n % 2 == 0 {
                fs::hard_link(dir.join("f"), dir.join("l")).unwrap();
            } else {
                fs::remove_file(dir.join("l")).unwrap();
            }
        },
        of: "f",
        state: |dir| fs::metadata(dir.join("f")).unwrap().nlink(),
    },
    Kind {
        name: "mkdir and rmdir",
        change: |dir, n| {
            if n % 2 == 0 {
                fs::create_dir(dir.join("d")).unwrap();
            } else {
                fs::remove_dir(dir.join("d")).unwrap();
            }
        },
        of: "",
        state: |dir| dir.join("d").exists().into(),
    },
    Kind {
        name: "rename",
        change: |dir, n| {
            let (from, to) = if n % 2 == 0 { ("a", "b") } else { ("b", "a") };
            fs::rename(dir.join(from), dir.join(to)).unwrap();
        },
        of: "",
        state: |dir| u64::from(dir.join("a").exists()) | u64::from(dir.join("b").exists()) << 1,
    },
];

fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).unwrap();
}

/// Ends the other threads, also if a check fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often one number stood for two states, and how many numbers there were.
fn misled(dir: &Path, kind: &Kind) -> (usize, usize) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&end);
        scope.spawn(|| {
            stay_on(1);
            while !end.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        scope.spawn(|| {
            stay_on(1);
            set_own_class(Class::Idle).unwrap();
            // It ends where it began.
            for n in (0..).take_while(|n| n % 2 == 1 || !end.load(Ordering::Relaxed)) {
                (kind.change)(dir, n);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let observer = scope.spawn(|| {
            stay_on(0);
            let of = dir.join(kind.of);
            let (mut seen, mut wrong) = (HashMap::new(), 0);
            let begin = Instant::now();
            while begin.elapsed() < TIME {
                let number = change(&of);
                let state = (kind.state)(dir);
                if change(&of) == number {
                    wrong += usize::from(seen.insert(number, state).is_some_and(|before| before != state));
                }
            }
            (wrong, seen.len())
        });
        observer.join().unwrap()
    })
}

#[test]
#[ignore = "keeps both processors busy for 80 seconds: cargo xtask soak contract"]
fn no_number_is_ahead_of_what_the_kernel_shows() {
    if !can_mount() || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        ivers_oracle::skipped("two processors and FUSE are needed");
        return;
    }
    let mut without = 0;
    for options in ["", "no_writeback_cache", "strict_queries", "strict_queries,no_writeback_cache"] {
        let place = Place::new();
        place.mount(options);
        fs::write(place.path("f"), "x").unwrap();
        fs::write(place.path("a"), "x").unwrap();
        for kind in &KINDS {
            let (wrong, numbers) = misled(&place.dir, kind);
            println!("-o {options:<40} {:<16} {numbers:>5} numbers, {wrong} stood for two states", kind.name);
            if options.contains("strict") {
                assert_eq!(wrong, 0, "{options}, {}", kind.name);
            } else {
                without += wrong;
            }
        }
        place.unmount();
    }
    assert!(without > 0, "nothing is found where something is to be found");
}
