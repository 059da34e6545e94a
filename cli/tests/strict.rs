//! What a query waits for: a change attribute never vouches for a state that the kernel does not show yet
//! (C6).
//!
//! The thread that changes something is kept from running after the server's answer: it has the idle class on
//! a processor that a busy thread occupies. With `-o no_strict_queries` the observer is misled repeatedly, so
//! the test can fail.

mod common;

use common::*;
use ivers_oracle::SetOnDrop;
use ivers_thread_sched::{Class, set_own_class};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, StatxFlags, statx};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The processor of the observer, and that of the thread that changes something.
const OWN: usize = 0;
const OTHER: usize = 1;

/// Duration of each kind of change.
const TIME: Duration = Duration::from_secs(4);

/// A change that is repeated, the file whose change attribute is queried, and the state that shows the
/// change.
struct Kind {
    name: &'static str,
    change: fn(&Path, u32),
    of: &'static str,
    state: fn(&Path) -> u64,
}

/// chmod of a removed directory that is still open.
const REMOVED: Kind = Kind {
    name: "chmod, removed",
    change: |dir, n| fs::set_permissions(dir, fs::Permissions::from_mode(0o700 + n % 8 * 8)).unwrap(),
    of: "",
    state: |dir| fs::metadata(dir).unwrap().mode().into(),
};

const KINDS: [Kind; 7] = [
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
    Kind {
        name: "exchange",
        change: |dir, _| {
            let (one, other) = (dir.join("x"), dir.join("y"));
            rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
        },
        of: "",
        state: |dir| fs::metadata(dir.join("x")).unwrap().ino(),
    },
];

fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).unwrap();
}

/// Runs `work` while a busy thread occupies the other processor.
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

/// Moves this thread to the other processor, in the idle class.
fn starve() {
    stay_on(OTHER);
    set_own_class(Class::Idle).unwrap();
}

/// Returns how often one value stood for two states, and the number of values.
fn misled(dir: &Path, kind: &Kind) -> (usize, usize) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        scope.spawn(|| {
            starve();
            // Ends in the state that it began with.
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

/// Returns whether the tests can run: each requires FUSE and two processors.
fn can_run() -> bool {
    let can = can_mount() && std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !can {
        ivers_oracle::skipped("two processors and FUSE are needed");
    }
    can
}

#[test]
#[ignore = "keeps both processors busy for two minutes: cargo xtask soak contract"]
fn no_value_covers_a_change_that_the_kernel_does_not_show() {
    if !can_run() {
        return;
    }
    let mut without = 0;
    for options in ["no_strict_queries", "no_strict_queries,no_writeback_cache", "", "no_writeback_cache"] {
        let place = Place::new();
        place.mount(options);
        fs::write(place.path("f"), "x").unwrap();
        for name in ["a", "x", "y"] {
            fs::write(place.path(name), "x").unwrap();
        }
        fs::create_dir(place.path("removed")).unwrap();
        let handle = File::open(place.path("removed")).unwrap();
        fs::remove_dir(place.path("removed")).unwrap();
        let removed = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        let kinds = KINDS.iter().map(|kind| (kind, &place.dir)).chain([(&REMOVED, &removed)]);
        for (kind, dir) in kinds {
            let (wrong, numbers) = with_one_processor(|| misled(dir, kind));
            println!("-o {options:<40} {:<16} {numbers:>5} numbers, {wrong} stood for two states", kind.name);
            if options.contains("no_strict") {
                without += wrong;
            } else {
                assert_eq!(wrong, 0, "{options}, {}", kind.name);
            }
        }
        drop(handle);
        place.unmount();
    }
    assert!(without > 0, "nothing is found where something must be found");
}

/// Returns how often one value stood for two modes of a named pipe, with several observers. No thread of the
/// server can wait for a pipe. Each change is made by a thread that ends with it.
fn misled_by_a_pipe(pipe: &Path) -> u32 {
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
    let misled = |&(number, mode): &(u64, u32)| *modes.entry(number).or_insert(mode) != mode;
    seen.into_iter().flatten().filter(misled).count() as u32
}

/// Asserts that `find` finds errors where queries do not wait, which shows that it can, and none where they
/// wait.
fn found_only_without_waiting(find: impl Fn(&Place) -> u32) {
    let found = ["no_strict_queries", ""].map(|options| {
        let place = Place::new();
        place.mount(options);
        let found = find(&place);
        println!("-o {options:<20} {found} times");
        place.unmount();
        found
    });
    assert!(found[0] > 0, "nothing is found where something must be found");
    assert_eq!(found[1], 0);
}

#[test]
#[ignore = "keeps both processors busy for 16 seconds: cargo xtask soak contract"]
fn several_observers_of_a_pipe_get_right_values() {
    if !can_run() {
        return;
    }
    found_only_without_waiting(|place| {
        let pipe = place.path("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        misled_by_a_pipe(&pipe)
    });
}

/// A query that runs beside a change, and the state that must result.
struct Round {
    begin: fn(&File, &Path),
    /// The action that is kept from running after the server's answer.
    starved: fn(&File, &Path),
    /// The action that runs beside it.
    beside: fn(&File, &Path),
    is_right: fn(&fs::Metadata) -> bool,
}

fn ask(handle: &File, _: &Path) {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    statx(handle, "", how, StatxFlags::BASIC_STATS).unwrap();
}

/// Removes one of two names of a file.
const UNLINK: Round = Round {
    begin: |_, file| fs::hard_link(file, file.with_extension("l")).unwrap(),
    starved: |_, file| fs::remove_file(file.with_extension("l")).unwrap(),
    beside: ask,
    is_right: |attr| attr.nlink() == 1,
};

/// Sets an ACL, whose mask appears as the group's permissions.
const SET_ACL: Round = Round {
    begin: |_, file| fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap(),
    starved: ask,
    beside: |_, file| xattr::set(file, "system.posix_acl_access", &acl_with_mask(7)).unwrap(),
    is_right: |attr| attr.mode() & 0o777 == 0o670,
};

/// Returns an ACL: the owner reads and writes; one user and the group have all permissions that the mask
/// leaves. In the form of acl(5) on Linux: a version, then entries of tag, permissions and id.
fn acl_with_mask(mask: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [(1, 6, NOBODY), (2, 7, 1000), (4, 7, NOBODY), (0x10, mask, NOBODY), (0x20, 0, NOBODY)];
    let entries = entries.into_iter().flat_map(|(tag, perm, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// Returns in how many rounds the file had the wrong state in the end, when nothing changes it.
fn wrong_in_the_end(place: &Place, round: &Round, rounds: u32) -> u32 {
    let file = place.path("f");
    fs::write(&file, "x").unwrap();
    let handle = File::open(&file).unwrap();
    (0..rounds)
        .filter(|nth| {
            std::thread::scope(|scope| {
                (round.begin)(&handle, &file);
                scope.spawn(|| {
                    starve();
                    (round.starved)(&handle, &file);
                });
                // A different delay each time.
                std::thread::sleep(Duration::from_micros(u64::from(nth % 50) * 200));
                (round.beside)(&handle, &file);
            });
            let is_wrong = !(round.is_right)(&fs::metadata(&file).unwrap());
            // Refreshes the link count: the kernel refuses link(2) on an inode whose cached count is 0.
            ask(&handle, &file);
            is_wrong
        })
        .count() as u32
}

#[test]
#[ignore = "keeps both processors busy for half a minute: cargo xtask soak contract"]
fn a_link_count_queried_during_unlink_is_right() {
    if !can_run() {
        return;
    }
    found_only_without_waiting(|place| with_one_processor(|| wrong_in_the_end(place, &UNLINK, 1000)));
}

#[test]
#[ignore = "keeps both processors busy for a quarter of a minute: cargo xtask soak contract"]
fn a_mode_queried_while_an_acl_changes_it_is_right() {
    if !can_run() {
        return;
    }
    let place = Place::new();
    place.mount("");
    assert_eq!(with_one_processor(|| wrong_in_the_end(&place, &SET_ACL, 1000)), 0);
    place.unmount();
}
