//! NFSv4.0: the tests of 4.1 that do not need sessions, callbacks or the change attribute; and what only 4.0
//! has.

use super::*;
use ivers_vfs::{LockOwner, LockRequest, OpenMode};
use std::sync::atomic::Ordering::Relaxed;

use super::faults::Fault;
use super::{faults, locking, recovery, served, writing};

/// Runs a test with clients of NFSv4.0.
fn in_40(test: fn()) {
    VERSION.set(Some(0));
    test();
    VERSION.set(None);
}

/// Declares tests that run tests of 4.1 with NFSv4.0.
macro_rules! in_40 {
    ($($module:ident::$name:ident,)*) => {
        $(#[test]
        fn $name() {
            in_40($module::$name);
        })*
    };
}

in_40! {
    recovery::fsynced_bytes_survive_restarts,
    recovery::replies_to_changes_are_asked_for_again,
    recovery::writers_go_on_after_their_lease_expired,
    recovery::opens_are_reclaimed_after_a_restart,
    recovery::an_unmount_of_a_writer_ends,
    faults::lost_replies_are_asked_for_again,
    faults::late_replies_do_not_repeat_changes,
    faults::threads_share_a_connection_that_breaks_again_and_again,
    faults::changes_over_several_connections_are_executed_once,
    faults::a_silent_client_keeps_its_lease,
    faults::an_unmount_ends_when_the_server_does_not_answer,
    faults::an_impatient_client_gives_up,
    locking::locks_of_two_clients_conflict_and_are_split,
    locking::a_lock_shows_what_was_written_under_it,
    locking::locks_are_reclaimed_after_a_restart,
    locking::a_lost_lock_stops_its_owner,
    writing::a_tree_is_made_on_the_server,
    writing::renames_replace_and_move,
    writing::a_removed_file_stays_while_it_is_open,
    writing::many_threads_write_files_of_their_own,
    writing::writes_have_the_rights_of_their_open,
    served::the_server_decides_who_may_do_what,
}

/// [`N17`] Threads open, close, lock and create in one mount while connections break: the server never gets a
/// sequence ID that it does not expect.
#[test]
fn sequence_ids_stay_in_order() {
    VERSION.set(Some(0));
    let served = Served::new(ext4());
    let (address, plan) = faults::proxy(served.address());
    let client = mount(address, &recovery::patient()).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    (0..6).for_each(|nth| drop(client.put(&format!("f{nth}"), b"contents").unwrap()));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (client, cred, root) = (&client, &cred, &root);
            let cuts = &plan.cuts;
            scope.spawn(move || {
                let enough = || cuts.load(Relaxed) > 3;
                for nth in (0..).take_while(|nth| *nth < 40 || !enough()) {
                    let file = client.find(&format!("/f{}", (thread + nth) % 6)).unwrap();
                    client.vfs.open(cred, &file, recovery::READ_WRITE).unwrap();
                    let range = thread * 100..thread * 100 + 50;
                    let (owner, waits) = (LockOwner(thread), false);
                    let lock = LockRequest { owner, range, exclusive: true, waits };
                    client.vfs.lock(cred, &file, &lock).unwrap();
                    client.vfs.unlock(cred, &file, owner, lock.range).unwrap();
                    client.vfs.close(&file, recovery::READ_WRITE);
                    let name = format!("new{thread}-{nth}");
                    client.vfs.create(cred, root, name.as_bytes(), &CreateSpec::file(0o644), true).unwrap();
                    client.vfs.unlink(cred, root, name.as_bytes(), false).unwrap();
                }
            });
        }
        while plan.cuts.load(Relaxed) <= 3 {
            if plan.cut_after.load(Relaxed) == 0 {
                plan.cut_after.store(400, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(plan.cuts.load(Relaxed) > 3);
    assert_eq!(client.count("server_sessions"), 1, "no sequence ID was lost");
    client.vfs.unmount().unwrap();
}

/// A file that another client renamed is opened under its new name.
#[test]
fn a_moved_file_is_opened_by_its_new_name() {
    VERSION.set(Some(0));
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    let other = mount(served.address(), &options()).unwrap();
    let (cred, root) = (Cred::root(), other.vfs.root().unwrap());
    other.put("a", b"first").unwrap();
    other.put("b", b"second").unwrap();
    let file = client.find("/a").unwrap();
    let none = ivers_vfs::RenameFlags::empty();
    other.vfs.rename(&cred, &root, b"a", &root, b"c", none, false).unwrap();
    other.vfs.rename(&cred, &root, b"b", &root, b"a", none, false).unwrap();
    let stale = client.vfs.open(&cred, &file, recovery::READ_WRITE);
    let is_stale = matches!(stale, Err(ivers_vfs::Error::Name(ivers_vfs::NameError::Stale)));
    assert!(is_stale, "the name is that of another file: {stale:?}");
    assert_eq!(client.contents("/c").unwrap(), b"first");
    client.vfs.open(&cred, &file, recovery::READ_WRITE).unwrap();
    client.vfs.write(&cred, &file, 0, b"FIRST", WriteFlags::empty()).unwrap();
    client.vfs.close(&file, recovery::READ_WRITE);
    assert_eq!(other.contents("/c").unwrap(), b"FIRST");
    assert_eq!(other.contents("/a").unwrap(), b"second");
    drop(file);
    for client in [client, other] {
        client.vfs.unmount().unwrap();
    }
}

/// [`N14`], [`N17`] The server restarts, and the connection breaks again and again while opens and locks are
/// reclaimed.
#[test]
fn a_reclaim_whose_connection_breaks_keeps_locks() {
    const ROUNDS: usize = 8;
    VERSION.set(Some(0));
    // The grace period must not end before the reclaim.
    let mut crashing = recovery::Crashing::with_lease(60);
    let (address, plan) = faults::proxy(crashing.address);
    let client = mount(address, &recovery::patient()).unwrap();
    let cred = Cred::root();
    let owners = |nth: u64| [LockOwner(nth), LockOwner(100 + nth)];
    let files: Vec<_> = (0..4_u64)
        .map(|nth| {
            let file = client.put(&format!("f{nth}"), b"contents").unwrap();
            client.vfs.open(&cred, &file, recovery::READ_WRITE).unwrap();
            client.vfs.fsync(&file, false).unwrap();
            for (which, owner) in owners(nth).into_iter().enumerate() {
                for begin in [0, 100] {
                    let begin = begin + which as u64 * 1000;
                    let (range, waits) = (begin..begin + 10, false);
                    let lock = LockRequest { owner, range, exclusive: true, waits };
                    client.vfs.lock(&cred, &file, &lock).unwrap();
                }
            }
            file
        })
        .collect();
    for round in 0..ROUNDS {
        let before = plan.cuts.load(Relaxed);
        // The reclaim sends 4 OPENs and 16 LOCKs. If a reply is lost, the client sends the request again.
        let (name, mut cuts) = match round % 2 {
            0 => ("LOCK", vec![1 + round as u64, 4 + round as u64, 9 + round as u64]),
            _ => ("OPEN", vec![1, 2, 4]),
        };
        crashing.restart_with(&plan, move |counts| {
            let is_cut = cuts.first().is_some_and(|cut| counts(name) >= *cut);
            is_cut.then(|| cuts.remove(0)).map(|_| Fault::Cut)
        });
        let counts = crashing.operations();
        // The server refuses the stateid of the first request. The range is not locked.
        for (nth, file) in files.iter().enumerate() {
            client.vfs.unlock(&cred, file, owners(nth as u64)[0], 5000..5010).unwrap();
            let mut bytes = [0; 8];
            client.vfs.read(&cred, file, 0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"contents", "round {round}");
        }
        *plan.fault.lock().unwrap() = None;
        assert_eq!(plan.cuts.load(Relaxed), before + 3, "round {round}");
        // A cut reclaim continues: it does not begin again with another client ID.
        let named = counts("SETCLIENTID");
        assert_eq!(named, 1, "round {round}: {named} client IDs were requested");
    }
    let sessions = client.count("server_sessions");
    assert_eq!(sessions, 1 + ROUNDS as u64, "one client ID for each run of the server");
    for (nth, file) in files.iter().enumerate() {
        for owner in owners(nth as u64) {
            client.vfs.unlock(&cred, file, owner, 0..u64::MAX).unwrap();
        }
        client.vfs.close(file, recovery::READ_WRITE);
    }
    assert_eq!(client.count("server_sessions"), sessions);
    drop(files);
    client.vfs.unmount().unwrap();
}

/// Opens and closes a file.
fn open_once(client: &Mounted, file: &InodeRef) -> Result<()> {
    client.vfs.open(&Cred::root(), file, OpenMode::READ)?;
    client.vfs.close(file, OpenMode::READ);
    Ok(())
}

/// A file is opened by any of its names that is left after others were removed and renamed.
#[test]
fn a_file_with_several_names_is_opened_by_those_that_are_left() {
    VERSION.set(Some(0));
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    let other = mount(served.address(), &options()).unwrap();
    let (cred, root, there) = (Cred::root(), client.vfs.root().unwrap(), other.vfs.root().unwrap());
    let file = client.put("a", b"contents").unwrap();
    client.vfs.fsync(&file, false).unwrap();
    for name in ["b", "c", "d", "e"] {
        client.vfs.link(&cred, &file, &root, name.as_bytes(), false).unwrap();
    }
    open_once(&client, &file).unwrap();
    let none = ivers_vfs::RenameFlags::empty();
    // The newest name is removed, and renamed, here.
    client.vfs.unlink(&cred, &root, b"e", false).unwrap();
    open_once(&client, &file).unwrap();
    client.vfs.rename(&cred, &root, b"d", &root, b"D", none, false).unwrap();
    client.vfs.unlink(&cred, &root, b"D", false).unwrap();
    open_once(&client, &file).unwrap();
    // Another client removes the newest name, and gives the next one to another file.
    other.vfs.unlink(&cred, &there, b"c", false).unwrap();
    other.put("x", b"another").unwrap();
    other.vfs.rename(&cred, &there, b"x", &there, b"b", none, false).unwrap();
    let opens = client.count("server_open");
    open_once(&client, &file).unwrap();
    assert_eq!(client.count("server_open") - opens, 3);
    open_once(&client, &file).unwrap();
    assert_eq!(client.count("server_open") - opens, 4, "only the last name is left");
    other.vfs.rename(&cred, &there, b"a", &there, b"z", none, false).unwrap();
    let stale = open_once(&client, &file);
    assert!(matches!(stale, Err(ivers_vfs::Error::Name(ivers_vfs::NameError::Stale))), "{stale:?}");
    assert_eq!(client.contents("/z").unwrap(), b"contents");
    open_once(&client, &file).unwrap();
    drop((file, root, there));
    for client in [client, other] {
        client.vfs.unmount().unwrap();
    }
}

/// Programs end after the server refused them a lock. The server keeps only a few of their lock-owners.
#[test]
fn owners_of_refused_locks_are_released() {
    const OWNERS: u64 = 300;
    VERSION.set(Some(0));
    let served = Served::new(mem());
    let clients = [(); 2].map(|()| mount(served.address(), &options()).unwrap());
    clients[0].put("f", b"contents").unwrap();
    let cred = Cred::root();
    let files = clients.each_ref().map(|client| {
        let file = client.find("/f").unwrap();
        client.vfs.open(&cred, &file, recovery::READ_WRITE).unwrap();
        file
    });
    let lock = |nth: usize, owner: u64, range: std::ops::Range<u64>| {
        let lock = LockRequest { owner: LockOwner(owner), range, exclusive: true, waits: false };
        clients[nth].vfs.lock(&cred, &files[nth], &lock)
    };
    lock(0, 1, 0..10).unwrap();
    lock(1, 1, 20..30).unwrap();
    for owner in 0..OWNERS {
        assert!(lock(1, owner, 0..10).is_err());
    }
    // The owner of a lock is not released.
    let released = OWNERS - 1 - 64;
    assert_eq!(clients[1].count("server_release_lockowner"), released);
    assert!(lock(0, 1, 20..30).is_err(), "the lock is held");
    clients[0].vfs.unlock(&cred, &files[0], LockOwner(1), 0..10).unwrap();
    // Owners that were released, and others, get locks.
    for owner in [2, 3, 1, OWNERS - 1, OWNERS - 2] {
        lock(1, owner, 0..10).unwrap();
        clients[1].vfs.unlock(&cred, &files[1], LockOwner(owner), 0..10).unwrap();
    }
    assert_eq!(clients[1].count("server_sessions"), 1, "no sequence ID was lost");
    assert_eq!(clients[1].count("server_release_lockowner"), released + 4, "owner 1 has another lock");
    assert_eq!(clients[1].count("server_free_stateid"), 0, "NFSv4.0 has no FREE_STATEID");
    for (client, file) in clients.iter().zip(files) {
        client.vfs.close(&file, recovery::READ_WRITE);
        drop(file);
        client.vfs.unmount().unwrap();
    }
}
