//! A mount is two processes: the worker parses in a sandbox, and either may die.

use crate::common::*;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;

const CAP_SYS_NICE: u64 = 1 << 23;

/// Returns the worker of a supervisor.
fn worker(supervisor: i32) -> i32 {
    let children = children(supervisor);
    assert_eq!(children.len(), 1, "one worker");
    children[0]
}

#[test]
fn a_mount_with_a_sandboxed_worker_works() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("rw");
    let worker = worker(supervisor);
    assert_eq!(status(supervisor, "NoNewPrivs"), "0", "it must stay able to call fusermount3");
    if about(&place.dir)["sandbox"] == "landlock, seccomp" {
        assert_eq!(status(worker, "Seccomp"), "2");
        assert_eq!(status(worker, "NoNewPrivs"), "1");
        // CAP_SYS_NICE remains, to restore the affinity of its own threads; the sandbox limits it to that
        // call.
        let kept = u64::from_str_radix(&status(worker, "CapEff"), 16).unwrap();
        assert_eq!(kept & !CAP_SYS_NICE, 0, "{kept:x}");
    } else {
        assert!(std::env::var_os("CI").is_none(), "no whole sandbox: {}", place.log());
        assert!(place.log().contains("supports only part of the sandbox"), "{}", place.log());
    }

    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("d/f"), vec![7; 3 << 20]).unwrap();
    fs::rename(place.path("d/f"), place.path("f")).unwrap();
    assert_eq!(fs::read(place.path("f")).unwrap(), vec![7; 3 << 20]);
    xattr::set(place.path("f"), "user.note", b"x").unwrap();

    // Open for writing and dirty: the query requires a file opened through the mount, which the worker cannot
    // do. A forced bump would make the two answers differ.
    let mut file = File::create(place.path("d/open")).unwrap();
    file.write_all(b"one").unwrap();
    let first = change(&place.path("d/open"));
    assert_eq!(change(&place.path("d/open")), first, "the query was flushed, not forced");
    file.write_all(b"two").unwrap();
    assert!(change(&place.path("d/open")) > first);
    drop(file);

    place.unmount();
    assert!(!runs(supervisor) && !runs(worker));
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
    place.image.check().unwrap();
}

/// Returns the ids of a process's threads whose names begin like this.
fn threads(process: i32, called: &str) -> Vec<i32> {
    let all = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let numbers = all.map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap());
    // A thread may have ended meanwhile.
    let is_called = |thread: &i32| {
        fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"))
            .is_ok_and(|name| name.starts_with(called))
    };
    numbers.filter(is_called).collect()
}

#[test]
fn caller_affinity_works_in_the_sandbox() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("no_caller_affinity");
    assert_eq!(u64::from_str_radix(&status(worker(supervisor), "CapEff"), 16).unwrap(), 0);
    place.unmount();

    let supervisor = place.mount("rw");
    let worker = worker(supervisor);
    wait_until("all threads serve", || threads(worker, "fuser-").len() > 1);
    let places = || -> Vec<String> {
        threads(worker, "fuser-").into_iter().map(|thread| status(thread, "Cpus_allowed")).collect()
    };
    let before = places();
    let mut small_requests = (0..).map(|n| {
        let file = place.path(&format!("f{}", n % 100));
        fs::write(&file, b"small").unwrap();
        fs::remove_file(&file).unwrap();
    });
    if ivers_thread_sched::can_leave_idle() && std::thread::available_parallelism().unwrap().get() > 1 {
        wait_until("a thread follows its caller", || {
            small_requests.by_ref().take(200).any(|()| places() != before)
        });
        wait_until("the thread stops following", || {
            places() == before && threads(worker, "ivers-affinity").is_empty()
        });
    } else {
        small_requests.nth(300);
        assert_eq!(places(), before);
    }
    place.unmount();
}

#[test]
fn nosandbox_disables_the_sandbox() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("nosandbox");
    // The same as the test's own process, which a container may have put under a filter.
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(status(worker(supervisor), "Seccomp_filters"), status(own, "Seccomp_filters"));
    assert!(about(&place.dir)["sandbox"].is_null());
    place.unmount();
}

#[test]
fn sigterm_unmounts_cleanly() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for to_both in [false, true] {
        let supervisor = place.mount("rw");
        let worker = worker(supervisor);
        fs::write(place.path("f"), b"kept").unwrap();
        if to_both {
            // A terminal and systemd signal both processes.
            signal(worker, Signal::TERM);
        }
        signal(supervisor, Signal::TERM);
        wait_until("both processes end", || !runs(supervisor) && !runs(worker));
        assert!(mount_line(&place.dir).is_none());
        place.image.check().unwrap();
    }
    // Clean: nothing was replayed and the epoch is the same.
    place.mount("rw");
    assert_eq!(change(&place.path("f")) >> 40, 1, "the first epoch still");
    place.unmount();
}

#[test]
fn a_mount_with_a_dead_worker_fails_and_can_be_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("rw");
    let mut file = File::create(place.path("f")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    signal(worker(supervisor), Signal::KILL);
    wait_until("the supervisor notices", || !runs(supervisor));
    assert!(place.log().contains("killed by signal 9"), "{}", place.log());
    // Writes must not reach the directory below the dead mount.
    let error = fs::write(place.path("g"), b"lost").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    let again = ivers(["mount".as_ref(), place.image.path().as_os_str(), place.dir.as_os_str()]);
    assert_eq!(again.status.code(), Some(6), "{}", said(&again));
    assert!(said(&again).contains("ivers unmount"), "{}", said(&again));
    place.unmount();
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
    place.mount("rw");
    assert_eq!(fs::read(place.path("f")).unwrap(), b"synced");
    place.unmount();
    place.image.check().unwrap();
}

#[test]
fn the_worker_ends_when_its_supervisor_dies() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let supervisor = place.mount("rw");
    let worker = worker(supervisor);
    signal(supervisor, Signal::KILL);
    wait_until("the worker ends", || !runs(worker));
    place.unmount();
    // The lock ended with the worker.
    place.mount("rw");
    place.unmount();
    place.image.check().unwrap();
}

#[test]
fn a_refused_mount_leaves_no_process_and_no_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let bad = place.image.dir().join("bad");
    fs::write(&bad, vec![0x5a; 1 << 20]).unwrap();
    let output = ivers(["mount".as_ref(), bad.as_os_str(), place.dir.as_os_str()]);
    assert!([Some(4), Some(5)].contains(&output.status.code()), "{}", said(&output));
    assert_eq!(ivers_oracle::said(&output).lines().count(), 1, "{}", said(&output));
    assert!(mount_line(&place.dir).is_none());
    assert_eq!(fs::read(&bad).unwrap(), vec![0x5a; 1 << 20]);

    // A good image on a bad mount point: the image is closed again, clean.
    let file = place.image.dir().join("file");
    fs::write(&file, b"").unwrap();
    let output = ivers(["mount".as_ref(), place.image.path().as_os_str(), file.as_os_str()]);
    assert!(said(&output).contains("not a directory"), "{}", said(&output));
    place.image.check().unwrap();
    place.mount("rw");
    fs::write(place.path("f"), b"").unwrap();
    assert_eq!(change(&place.path("f")) >> 40, 1, "the first epoch still");
    place.unmount();
}
