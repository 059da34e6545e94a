//! NFSv4.0: the tests of 4.1 that do not need sessions, callbacks or the change attribute; and what only 4.0
//! has.

use super::*;
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
                let enough = || cuts.load(std::sync::atomic::Ordering::Relaxed) > 3;
                for nth in (0..).take_while(|nth| *nth < 40 || !enough()) {
                    let file = client.find(&format!("/f{}", (thread + nth) % 6)).unwrap();
                    client.vfs.open(cred, &file, recovery::READ_WRITE).unwrap();
                    let range = thread * 100..thread * 100 + 50;
                    let (owner, waits) = (ivers_vfs::LockOwner(thread), false);
                    let lock = ivers_vfs::LockRequest { owner, range, exclusive: true, waits };
                    client.vfs.lock(cred, &file, &lock).unwrap();
                    client.vfs.unlock(cred, &file, owner, lock.range).unwrap();
                    client.vfs.close(&file, recovery::READ_WRITE);
                    let name = format!("new{thread}-{nth}");
                    client.vfs.create(cred, root, name.as_bytes(), &CreateSpec::file(0o644), true).unwrap();
                    client.vfs.unlink(cred, root, name.as_bytes(), false).unwrap();
                }
            });
        }
        while plan.cuts.load(std::sync::atomic::Ordering::Relaxed) <= 3 {
            if plan.cut_after.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                plan.cut_after.store(400, std::sync::atomic::Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(plan.cuts.load(std::sync::atomic::Ordering::Relaxed) > 3);
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
