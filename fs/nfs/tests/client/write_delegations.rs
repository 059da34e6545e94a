//! The tests of faults and recovery once more, with write delegations and deferred closes. Then writers: each
//! of their changes must happen exactly once.

use super::recovery::{Crashing, READ_WRITE, patient};
use super::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Instant;

use ivers_vfs::RenameFlags;

/// Declares tests that run others with write delegations.
macro_rules! with_write_delegations {
    ($($module:ident::$name:ident,)*) => {
        $(#[test]
        fn $name() {
            WRITE_DELEGATIONS.set(true);
            $module::$name();
            WRITE_DELEGATIONS.set(false);
        })*
    };
}

with_write_delegations! {
    faults::changes_over_several_connections_are_executed_once,
    faults::late_replies_do_not_repeat_changes,
    faults::lost_replies_are_asked_for_again,
    locking::a_lock_shows_what_was_written_under_it,
    locking::locks_are_reclaimed_after_a_restart,
    recovery::an_unmount_of_a_writer_ends,
    recovery::fsynced_bytes_survive_restarts,
    recovery::opens_are_reclaimed_after_a_restart,
    recovery::replies_to_changes_are_asked_for_again,
    recovery::writers_go_on_after_their_lease_expired,
    writing::a_removed_file_stays_while_it_is_open,
    writing::a_tree_is_made_on_the_server,
    writing::many_threads_write_files_of_their_own,
    writing::renames_replace_and_move,
}

const WRITERS: usize = 4;
const RECORD: usize = 9000;
const CRASHES: u32 = 3;
/// How many records a writer keeps.
const KEPT: u32 = 10;

fn record(writer: usize, round: u32) -> Vec<u8> {
    (0..RECORD).map(|at| (at as u32 ^ round.wrapping_mul(31) ^ (writer as u32 * 77)) as u8).collect()
}

/// Whether a writer syncs the record of this round. Others are left to the close.
fn is_synced(round: u32) -> bool {
    round % 2 == 1
}

/// Each call must succeed, and have its effect exactly once.
fn one_round(client: &Mounted, dir: &InodeRef, writer: usize, round: u32) {
    let (vfs, cred) = (&client.vfs, Cred::root());
    let name = format!("record{round}");
    let none = RenameFlags::empty();
    let new = client.make(dir, "new", &CreateSpec::file(0o644)).unwrap();
    vfs.open(&cred, &new, READ_WRITE).unwrap();
    assert_eq!(vfs.write(&cred, &new, 0, &record(writer, round), WriteFlags::empty()).unwrap(), RECORD);
    if is_synced(round) {
        vfs.fsync(&new, false).unwrap();
    }
    vfs.close(&new, READ_WRITE);
    vfs.rename(&cred, dir, b"new", dir, name.as_bytes(), none, false).unwrap();
    let log = match vfs.lookup(&cred, dir, b"log") {
        Ok(log) => log,
        Err(_) => client.make(dir, "log", &CreateSpec::file(0o644)).unwrap(),
    };
    vfs.open(&cred, &log, READ_WRITE).unwrap();
    let line = format!("{round:08}\n");
    vfs.write(&cred, &log, 0, line.as_bytes(), WriteFlags::APPEND).unwrap();
    vfs.fsync(&log, false).unwrap();
    vfs.close(&log, READ_WRITE);
    let sub = client.make(dir, "sub", &CreateSpec::directory(0o755)).unwrap();
    vfs.link(&cred, &new, dir, b"link", false).unwrap();
    vfs.rename(&cred, dir, b"link", &sub, b"link", none, false).unwrap();
    vfs.unlink(&cred, &sub, b"link", false).unwrap();
    vfs.rmdir(&cred, dir, b"sub", false).unwrap();
    if let Some(old) = round.checked_sub(KEPT) {
        vfs.unlink(&cred, dir, format!("record{old}").as_bytes(), false).unwrap();
    }
}

/// [`N10`], [`N11`], [`D12`] Writers create exclusively, rename, append, link and remove over several
/// connections. Meanwhile replies come late, connections are cut in the middle of replies, and the server
/// crashes. What an fsync acknowledged is there after each crash, and in the end everything is there once.
#[test]
fn each_change_happens_once_under_faults() {
    let mut crashing = Crashing::new();
    let (address, plan) = faults::proxy(crashing.address);
    let options = NfsOptions {
        write_delegations: true,
        connections: 4,
        attribute_timeout: Duration::from_secs(3),
        ..patient()
    };
    let client = mount(address, &options).unwrap();
    let root = client.vfs.root().unwrap();
    let directory = CreateSpec::directory(0o755);
    let dirs: Vec<_> =
        (0..WRITERS).map(|nth| client.make(&root, &format!("w{nth}"), &directory).unwrap()).collect();
    let done = [const { AtomicU32::new(0) }; WRITERS];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (nth, dir) in dirs.iter().enumerate() {
            let (client, done, over) = (&client, &done[nth], &over);
            scope.spawn(move || {
                for round in 0.. {
                    if over.load(SeqCst) {
                        return;
                    }
                    one_round(client, dir, nth, round);
                    done.store(round + 1, SeqCst);
                }
            });
        }
        for crash in 0..CRASHES {
            for fault in 0..10 {
                plan.delay_ms.store(3 + fault * 2, SeqCst);
                plan.late.store(5, SeqCst);
                // In the middle of replies, and between them.
                plan.cut_after.store(150 + fault * 311 + crash as usize * 57, SeqCst);
                std::thread::sleep(Duration::from_millis(60));
            }
            let before: Vec<_> = done.iter().map(|done| done.load(SeqCst)).collect();
            crashing.crash();
            crashing.start();
            for (nth, rounds) in before.iter().enumerate() {
                // Two more rounds may have removed older ones.
                let first = rounds.saturating_sub(KEPT - 4);
                for round in (first..*rounds).filter(|round| is_synced(*round)) {
                    let there = crashing.contents(&format!("/w{nth}/record{round}")).unwrap();
                    assert_eq!(there, record(nth, round), "writer {nth}, record {round}, crash {crash}");
                }
            }
            // Every writer makes progress.
            let started = Instant::now();
            while done.iter().zip(&before).any(|(done, before)| done.load(SeqCst) < before + 3) {
                assert!(started.elapsed() < Duration::from_secs(120), "a writer waits after crash {crash}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        over.store(true, SeqCst);
    });
    assert!(plan.cuts.load(SeqCst) > 10, "{} cuts", plan.cuts.load(SeqCst));
    assert!(client.count("server_deferred_closes") > 10, "{:?}", client.vfs.counters());
    drop((dirs, root));
    client.vfs.unmount().unwrap();
    let other = mount(crashing.address, &patient()).unwrap();
    for (nth, done) in done.iter().enumerate() {
        let rounds = done.load(SeqCst);
        for round in rounds.saturating_sub(KEPT)..rounds {
            let there = other.contents(&format!("/w{nth}/record{round}")).unwrap();
            assert!(there == record(nth, round), "writer {nth}, record {round} of {rounds}");
        }
        let log = String::from_utf8(other.contents(&format!("/w{nth}/log")).unwrap()).unwrap();
        let lines: String = (0..rounds).map(|round| format!("{round:08}\n")).collect();
        assert_eq!(log, lines, "writer {nth}");
        let names = other.names(&format!("/w{nth}")).unwrap();
        assert_eq!(names.len(), 2 + 1 + rounds.min(KEPT) as usize, "{names:?}");
    }
    other.vfs.unmount().unwrap();
}

/// The server needs the file of a delegation to take it back. A client that could not return it would stay
/// on record after its unmount, and a server that restarts would wait for it.
#[test]
fn delegations_of_removed_files_are_returned() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &NfsOptions { write_delegations: true, ..options() }).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    for name in ["removed", "replaced", "stays"] {
        let file = client.make(&root, name, &CreateSpec::file(0o644)).unwrap();
        client.vfs.open(&cred, &file, READ_WRITE).unwrap();
        client.vfs.write(&cred, &file, 0, b"contents", WriteFlags::empty()).unwrap();
        client.vfs.close(&file, READ_WRITE);
    }
    client.vfs.unlink(&cred, &root, b"removed", false).unwrap();
    client.vfs.rename(&cred, &root, b"stays", &root, b"replaced", RenameFlags::empty(), false).unwrap();
    assert!(client.count("server_delegations") >= 3);
    client.vfs.unmount().unwrap();
    drop((root, client));
    let counts = served.server.stats_handle().stats().unwrap().counts;
    assert_eq!((counts.delegations_write, counts.delegations_read, counts.clients), (0, 0, 0));
}
