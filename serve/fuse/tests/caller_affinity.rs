//! Caller affinity: when a serving thread follows a program, and that nothing of it remains afterwards.

mod common;

use common::*;
use ivers_fuse::FuseOptions;
use rustix::thread::sched_getaffinity;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether this process can move a thread out of `SCHED_IDLE`, and has several processors.
fn possible() -> bool {
    ivers_thread_sched::can_leave_idle() && sched_getaffinity(None).unwrap().count() > 1
}

/// The threads of this process, with their names.
fn threads() -> Vec<(String, PathBuf)> {
    let all = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    all.filter_map(|dir| Some((fs::read_to_string(dir.join("comm")).ok()?.trim().into(), dir))).collect()
}

fn is_kept() -> bool {
    threads().iter().any(|(name, _)| name == "ivers-affinity")
}

/// The allowed processors (a line of `status`) and the class (field 41 of proc_pid_stat(5)) of a serving
/// thread.
fn place_and_class(dir: &Path) -> (String, String) {
    let status = fs::read_to_string(dir.join("status")).unwrap();
    let place = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned();
    let stat = fs::read_to_string(dir.join("stat")).unwrap();
    let (_, from_third) = stat.rsplit_once(')').unwrap();
    (place, from_third.split_whitespace().nth(41 - 3).unwrap().to_owned())
}

fn soon(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether affinity was on at some moment while `work` ran.
fn kept_during(work: impl FnOnce(&AtomicBool) + Send) -> bool {
    let seen = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if is_kept() {
                    seen.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        scope.spawn(|| {
            work(&seen);
            over.store(true, Ordering::Relaxed);
        });
    });
    seen.load(Ordering::Relaxed)
}

// One test: it examines the threads of this process, and another test's mount would add its own.
#[test]
fn affinity_follows_small_requests_and_is_restored() {
    if !can_mount() {
        return;
    }
    let many = |m: &Mounted, seen: Option<&AtomicBool>| {
        let begin = Instant::now();
        for n in 0.. {
            let file = m.path(&format!("f{}", n % 100));
            fs::write(&file, b"small").unwrap();
            fs::remove_file(&file).unwrap();
            let enough = seen.is_none_or(|seen| seen.load(Ordering::Relaxed));
            if n >= 300 && (enough || begin.elapsed() > Duration::from_secs(60)) {
                break;
            }
        }
    };

    let without = mount_with(FuseOptions { caller_affinity: false, ..FuseOptions::default() });
    assert!(!kept_during(|_| many(&without, None)));
    without.session.unmount().unwrap();

    let m = mount_with(FuseOptions { threads: 4, ..FuseOptions::default() });
    let connection = || threads().into_iter().filter(|(name, _)| name.starts_with("fuser-"));
    while connection().count() < 4 {
        std::thread::yield_now();
    }
    let before: Vec<_> = connection().map(|(_, dir)| place_and_class(&dir)).collect();
    // Without the right it never begins, with the right it does sooner or later.
    let wait_for_it = possible();
    assert_eq!(kept_during(|seen| many(&m, wait_for_it.then_some(seen))), possible());

    // It ends when requests stop, and every thread may run where it could before.
    soon(|| !is_kept());
    assert_eq!(connection().map(|(_, dir)| place_and_class(&dir)).collect::<Vec<_>>(), before);

    // Beside a program with large requests it begins and ends repeatedly.
    std::thread::scope(|scope| {
        let file = fs::File::create_new(m.path("large")).unwrap();
        scope.spawn(|| many(&m, None));
        scope.spawn(move || {
            for n in 0..64 {
                file.write_all_at(&[n as u8; 1 << 20], n << 20).unwrap();
            }
            file.sync_all().unwrap();
        });
    });
    let large = fs::read(m.path("large")).unwrap();
    assert!(large.chunks(1 << 20).enumerate().all(|(n, chunk)| chunk == [n as u8; 1 << 20]));
    soon(|| !is_kept());
    assert_eq!(connection().map(|(_, dir)| place_and_class(&dir)).collect::<Vec<_>>(), before);
    m.session.unmount().unwrap();
    soon(|| !threads().iter().any(|(name, _)| name == "ivers-mover"));
}
