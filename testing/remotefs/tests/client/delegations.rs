//! Cached writes under a write delegation, recalls, and locks.

use super::*;
use std::sync::Weak;

fn theirs(it: &Both) -> InodeRef {
    it.server.resolve(&Cred::root(), "/f", true).unwrap()
}

fn server_change(it: &Both) -> u64 {
    it.server.change(&theirs(it)).unwrap().wrapping_add(BASE)
}

#[test]
fn a_cached_write_raises_the_change_attribute_once_and_is_not_sent() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let first = it.client.change(&file).unwrap();
    it.fs.delegate(file.ino);
    let asked = it.fs.round_trips();
    write(&it.client, &file, b"one");
    write(&it.client, &file, b"two");
    assert_eq!(it.client.change(&file), Some(first + 1), "two writes, nobody asked between them");
    assert_eq!(it.client.change(&file), Some(first + 1), "rests");
    write(&it.client, &file, b"six");
    let (value, attr) = it.client.observe(&file);
    assert_eq!((value, attr.size), (Some(first + 2), 3));
    assert_eq!(it.fs.round_trips(), asked);
    assert!(it.client.dirty_bytes() > 0);
    assert_eq!(read(&it.server, &theirs(&it)), b"");
}

#[test]
fn no_value_that_was_served_stands_for_other_bytes_after_a_recall() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let mut served = vec![it.client.change(&file).unwrap()];
    it.fs.delegate(file.ino);
    for byte in 0..5 {
        write(&it.client, &file, &[byte]);
        let value = it.client.change(&file).unwrap();
        assert!(value > *served.last().unwrap());
        served.push(value);
    }
    it.fs.recall(file.ino).unwrap();
    assert_eq!(read(&it.server, &theirs(&it)), [4]);
    assert_eq!(it.client.change(&file), Some(server_change(&it)));
    assert!(server_change(&it) >= *served.last().unwrap(), "the same bytes");
    write(&it.server, &theirs(&it), &[9]);
    assert!(!served.contains(&server_change(&it)));
    assert_eq!(it.client.change(&file), Some(server_change(&it)));
}

#[test]
fn many_queries_between_many_writes_send_some_of_them() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let mut last = it.client.change(&file).unwrap();
    it.fs.delegate(file.ino);
    let asked = it.fs.round_trips();
    for byte in 0..100 {
        write(&it.client, &file, &[byte]);
        let value = it.client.change(&file).unwrap();
        assert!(value > last, "write {byte}");
        last = value;
    }
    assert!(it.fs.round_trips() > asked, "the served values do not run far ahead of the server's");
    assert!(last - server_change(&it) <= 16);
    it.client.fsync(&file, false).unwrap();
    it.fs.recall(file.ino).unwrap();
    assert!(server_change(&it) >= last);
}

/// A change by a request moves the server's value, which may still be below the raised one.
#[test]
fn a_request_that_changes_a_file_moves_a_raised_value() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let mut last = it.client.change(&file).unwrap();
    it.fs.delegate(file.ino);
    for size in 1..5 {
        write(&it.client, &file, b"cached");
        let raised = it.client.change(&file).unwrap();
        assert!(raised > last);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        it.client.set_attr(&Cred::root(), &file, &set).unwrap();
        last = it.client.change(&file).unwrap();
        assert!(last > raised, "{size}: the file is shorter");
        assert_eq!(it.client.change(&file), Some(last), "rests");
    }
}

#[test]
fn unmount_leaves_no_served_value_above_the_servers() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    it.fs.delegate(file.ino);
    for byte in 0..3 {
        write(&it.client, &file, &[byte]);
        it.client.change(&file).unwrap();
    }
    let last = it.client.change(&file).unwrap();
    drop(file);
    it.client.unmount().unwrap();
    assert!(server_change(&it) >= last);
}

#[test]
fn a_recall_that_meets_a_writer_raises_nothing() {
    let armed = Arc::new(AtomicBool::new(false));
    let recall: Arc<OnceLock<(Weak<RemoteFs>, Ino)>> = Arc::default();
    let it = both({
        let (armed, recall) = (armed.clone(), recall.clone());
        move |what| {
            // The driver has answered that the file is delegated, and the VFS has not counted it.
            if what == "changed" && armed.swap(false, Ordering::Relaxed) {
                let (fs, ino) = recall.get().unwrap();
                fs.upgrade().unwrap().recall(*ino).unwrap();
            }
            Ok(())
        }
    });
    let file = create(&it.client, "f");
    recall.set((Arc::downgrade(&it.fs), file.ino)).unwrap();
    it.fs.delegate(file.ino);
    armed.store(true, Ordering::Relaxed);
    write(&it.client, &file, b"late");
    assert!(!armed.load(Ordering::Relaxed));
    it.fs.grant(file.ino);
    assert_eq!(it.client.change(&file), Some(server_change(&it)));
}

#[test]
fn a_lock_shows_the_newest_bytes_and_an_unlock_sends_those_written_under_it() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    write(&it.server, &theirs(&it), b"old");
    it.client.get_attr(&Cred::root(), &file).unwrap();
    assert_eq!(read(&it.client, &file), b"old");
    write(&it.server, &theirs(&it), b"new");
    let user = Cred::root();
    let lock = LockRequest { owner: LockOwner(1), range: 0..3, exclusive: true, waits: false };
    it.client.lock(&user, &file, &lock).unwrap();
    assert_eq!(read(&it.client, &file), b"new");
    write(&it.client, &file, b"own");
    it.client.unlock(&user, &file, LockOwner(1), 0..3).unwrap();
    assert_eq!(read(&it.server, &theirs(&it)), b"own");
}

#[test]
fn an_unlock_that_cannot_send_bytes_reports_it_and_unlocks() {
    let (it, answers) = both_with_answers();
    let file = create(&it.client, "f");
    let lock = |owner| LockRequest { owner: LockOwner(owner), range: 0..3, exclusive: true, waits: false };
    it.client.lock(&Cred::root(), &file, &lock(1)).unwrap();
    write(&it.client, &file, b"own");
    answers.lock().insert("write", ServerError::Delay.into());
    let unlocked = it.client.unlock(&Cred::root(), &file, LockOwner(1), 0..3);
    assert!(matches!(unlocked, Err(Error::Server(ServerError::Delay))));
    it.client.lock(&Cred::root(), &file, &lock(2)).unwrap();
    assert!(it.client.dirty_bytes() > 0, "the bytes are written later");
}
