//! What a query waits for: a number never vouches for what the kernel does not show yet (C6).
//!
//! Who changes something is kept from running behind the server's answer: it may run only while another thread of its processor does not want
//! to, which always wants to. With `-o no_strict_queries` its observer is misled time and again, so the test can fail.

mod common;

use common::*;
use ivers_oracle::SetOnDrop;
use ivers_sched::{Class, set_own_class};
use rustix::fs::{AtFlags, FileType, Mode, StatxFlags, statx};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The processor of who looks, and that of who changes something.
const OWN: usize = 0;
const OTHER: usize = 1;

/// How long each kind of change is made.
const TIME: Duration = Duration::from_secs(4);

/// What is changed again and again, whose number is looked at, and what shows the change.
struct Kind {
    name: &'static str,
    change: fn(&Path, u32),
    of: &'static str,
    state: fn(&Path) -> u64,
}

const KINDS: [Kind; 6] = [
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
        name: "touch -m",
        change: |dir, n| {
            let time = SystemTime::now() - Duration::from_millis(10_000 + u64::from(n % 10_000));
            let times = fs::FileTimes::new().set_modified(time);
            File::open(dir.join("f")).unwrap().set_times(times).unwrap();
        },
        of: "f",
        state: |dir| fs::metadata(dir.join("f")).unwrap().mtime_nsec() as u64,
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

/// While somebody else always wants the other processor.
fn with_one_processor<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        scope.spawn(|| {
            stay_on(OTHER);
            while !end.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let work = scope.spawn(|| {
            stay_on(OWN);
            work()
        });
        work.join().unwrap()
    })
}

/// On the other processor, when nobody else wants it.
fn starve() {
    stay_on(OTHER);
    set_own_class(Class::Idle).unwrap();
}

/// How often one number stood for two states, and how many numbers there were.
fn misled(dir: &Path, kind: &Kind) -> (usize, usize) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        scope.spawn(|| {
            starve();
            // It ends where it began.
            for n in (0..).take_while(|n| n % 2 == 1 || !end.load(Ordering::Relaxed)) {
                (kind.change)(dir, n);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
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
    })
}

/// The tests want a processor for themselves each, and another one.
fn can_starve() -> bool {
    let can = can_mount() && std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !can {
        ivers_oracle::skipped("two processors and FUSE are needed");
    }
    can
}

#[test]
#[ignore = "keeps both processors busy for 100 seconds: cargo xtask soak contract"]
fn no_number_is_ahead_of_what_the_kernel_shows() {
    if !can_starve() {
        return;
    }
    let mut without = 0;
    for options in ["no_strict_queries", "no_strict_queries,no_writeback_cache", "", "no_writeback_cache"] {
        let place = Place::new();
        place.mount(options);
        fs::write(place.path("f"), "x").unwrap();
        fs::write(place.path("a"), "x").unwrap();
        for kind in &KINDS {
            let (wrong, numbers) = with_one_processor(|| misled(&place.dir, kind));
            println!("-o {options:<40} {:<16} {numbers:>5} numbers, {wrong} stood for two states", kind.name);
            if options.contains("no_strict") {
                without += wrong;
            } else {
                assert_eq!(wrong, 0, "{options}, {}", kind.name);
            }
        }
        place.unmount();
    }
    assert!(without > 0, "nothing is found where something is to be found");
}

/// How often one number stood for two modes of a named pipe, which no thread of the server can wait for, with several observers. Each change
/// is made by a thread that ends with it.
fn misled_by_a_pipe(pipe: &Path) -> usize {
    let end = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        let observe = || {
            let mut seen = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let number = change(pipe);
                let mode = fs::metadata(pipe).unwrap().mode();
                if change(pipe) == number {
                    seen.push((number, mode));
                }
            }
            seen
        };
        let observers = [(); 3].map(|()| scope.spawn(observe));
        let begin = Instant::now();
        for n in (0..).take_while(|_| begin.elapsed() < 2 * TIME) {
            let mode = fs::Permissions::from_mode(0o600 + n % 64);
            scope.spawn(move || fs::set_permissions(pipe, mode).unwrap()).join().unwrap();
            std::thread::sleep(Duration::from_micros(500) * (n % 5));
        }
        end.store(true, Ordering::Relaxed);
        observers.map(|observer| observer.join().unwrap())
    });
    let mut modes = HashMap::new();
    seen.into_iter().flatten().filter(|&(number, mode)| *modes.entry(number).or_insert(mode) != mode).count()
}

#[test]
#[ignore = "keeps both processors busy for 16 seconds: cargo xtask soak contract"]
fn several_who_look_at_a_pipe_are_not_misled() {
    if !can_starve() {
        return;
    }
    let wrong = ["no_strict_queries", ""].map(|options| {
        let place = Place::new();
        place.mount(options);
        let pipe = place.path("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let wrong = misled_by_a_pipe(&pipe);
        println!("-o {options:<20} {wrong} times");
        place.unmount();
        wrong
    });
    assert!(wrong[0] > 0, "nothing is found where something is to be found");
    assert_eq!(wrong[1], 0);
}

/// How often in so many rounds a file that keeps one of two names had another count in the end, though nobody changes anything any more.
fn wrong_counts(place: &Place, rounds: u32) -> u32 {
    let (file, name) = (place.path("f"), place.path("l"));
    fs::write(&file, "x").unwrap();
    let handle = File::open(&file).unwrap();
    let ask =
        || statx(&handle, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::NLINK).unwrap();
    (0..rounds)
        .filter(|round| {
            std::thread::scope(|scope| {
                fs::hard_link(&file, &name).unwrap();
                scope.spawn(|| {
                    starve();
                    fs::remove_file(&name).unwrap();
                });
                // Asked for once, at another moment each time.
                std::thread::sleep(Duration::from_micros(u64::from(round % 50) * 200));
                ask();
            });
            let is_wrong = fs::metadata(&file).unwrap().nlink() != 1;
            // What has no link left for the kernel gets none.
            ask();
            is_wrong
        })
        .count() as u32
}

#[test]
#[ignore = "keeps both processors busy for half a minute: cargo xtask soak contract"]
fn a_link_count_that_is_asked_for_meanwhile_is_right() {
    if !can_starve() {
        return;
    }
    let wrong = ["no_strict_queries", ""].map(|options| {
        let place = Place::new();
        place.mount(options);
        let wrong = with_one_processor(|| wrong_counts(&place, 1000));
        println!("-o {options:<20} {wrong} of 1000");
        place.unmount();
        wrong
    });
    assert!(wrong[0] > 0, "nothing is found where something is to be found");
    assert_eq!(wrong[1], 0);
}
