//! The VFS over a server: whose change attribute it is, what is asked when, and what a slow server blocks.

mod callers;
mod clones;
mod commits;
mod delegations;
mod lost_data;
mod own_changes;

use ivers_mem::Mem;
use ivers_remotefs::RemoteFs;
use ivers_vfs::*;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

/// Above 2^63, so that masking to 63 bits would show.
const BASE: u64 = 0xF000_0000_0000_0000;

struct Both {
    server: Arc<Vfs>,
    fs: Arc<RemoteFs>,
    client: Arc<Vfs>,
}

fn quiet() -> MountOptions {
    MountOptions { background: false, ..MountOptions::default() }
}

fn both(on_round_trip: impl Fn(&str) -> Result<()> + Send + Sync + 'static) -> Both {
    let server = Vfs::mount(Arc::new(Mem::default()), quiet()).unwrap();
    let fs = Arc::new(RemoteFs::new(server.clone(), BASE, Box::new(on_round_trip)).unwrap());
    let client = Vfs::mount(fs.clone(), quiet()).unwrap();
    Both { server, fs, client }
}

/// What the server answers to requests of each kind, instead of doing them.
type Answers = Arc<Mutex<HashMap<&'static str, Error>>>;

fn both_with_answers() -> (Both, Answers) {
    let answers = Answers::default();
    let it = both({
        let answers = answers.clone();
        move |what| answers.lock().get(what).cloned().map_or(Ok(()), Err)
    });
    (it, answers)
}

fn create(vfs: &Vfs, name: &str) -> InodeRef {
    let spec = CreateSpec::file(0o644);
    vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &spec, false).unwrap().0
}

fn write(vfs: &Vfs, file: &InodeRef, data: &[u8]) {
    assert_eq!(vfs.write(&Cred::root(), file, 0, data, WriteFlags::empty()).unwrap(), data.len());
}

fn read(vfs: &Vfs, file: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let len = vfs.read(&Cred::root(), file, 0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn all_64_bits_of_the_servers_change_attribute_are_served() {
    let it = both(|_| Ok(()));
    let ours = create(&it.client, "f");
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let same = || {
        let theirs = it.server.change(&theirs).unwrap().wrapping_add(BASE);
        assert_eq!(it.client.change(&ours), Some(theirs));
        theirs
    };
    let first = same();
    assert!(first > u64::MAX >> 1);
    // A cached write bumps nothing here. It is visible, so the query sends it to the server, which bumps.
    write(&it.client, &ours, b"one");
    assert!(it.client.dirty_bytes() > 0);
    let second = it.client.change(&ours).unwrap();
    assert!(second > first);
    assert_eq!(it.client.dirty_bytes(), 0);
    assert_eq!(same(), second);
    write(&it.client, &ours, b"two");
    let (third, _) = it.client.observe(&ours);
    let third = third.unwrap();
    assert!(third > second);
    let second = third;
    assert_eq!(same(), second, "rests");
    assert_eq!(it.client.stats().bumps, 0);
}

#[test]
fn remote_changes_are_seen_and_delegations_avoid_requests() {
    let it = both(|_| Ok(()));
    let ours = create(&it.client, "f");
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    write(&it.server, &theirs, b"one");
    it.client.open(&Cred::root(), &ours, OpenMode::READ).unwrap();
    assert_eq!(read(&it.client, &ours), b"one");
    write(&it.server, &theirs, b"longer");
    assert_eq!(read(&it.client, &ours), b"one", "cached until it is revalidated");
    assert_eq!(it.client.get_attr(&Cred::root(), &ours).unwrap().size, 6);
    assert_eq!(read(&it.client, &ours), b"longer");

    it.fs.grant(ours.ino);
    let asked = it.fs.round_trips();
    for _ in 0..10 {
        it.client.get_attr(&Cred::root(), &ours).unwrap();
        it.client.change(&ours).unwrap();
        read(&it.client, &ours);
    }
    assert_eq!(it.fs.round_trips(), asked);
    write(&it.server, &theirs, b"newest");
    it.fs.recall(ours.ino).unwrap();
    it.client.get_attr(&Cred::root(), &ours).unwrap();
    assert_eq!(read(&it.client, &ours), b"newest");
}

#[test]
fn cached_names_are_valid_while_their_directory_is_unchanged() {
    let it = both(|_| Ok(()));
    create(&it.client, "f");
    let root = it.client.root().unwrap();
    it.fs.grant(root.ino);
    let found = |name: &[u8]| it.client.lookup(&Cred::trusted(), &root, name);
    let first = found(b"f").unwrap();
    let asked = it.fs.round_trips();
    assert_eq!(found(b"f").unwrap().ino, first.ino);
    assert_eq!(it.fs.round_trips(), asked, "from the cache");
    // Another client replaces it.
    let server_root = it.server.root().unwrap();
    it.server.unlink(&Cred::root(), &server_root, b"f", false).unwrap();
    let second = create(&it.server, "f");
    it.fs.recall(root.ino).unwrap();
    assert_eq!(found(b"f").unwrap().ino, second.ino);
    it.server.unlink(&Cred::root(), &server_root, b"f", false).unwrap();
    assert!(matches!(found(b"f"), Err(Error::Name(NameError::NotFound))));
    // The inode that the lookup returned needed no second question, and its filehandle outlives the name.
    assert!(it.client.get_attr(&Cred::trusted(), &first).is_ok());
}

#[test]
fn the_server_decides_about_permissions_and_its_delays_are_errors_of_their_own() {
    let slow = Arc::new(AtomicBool::new(false));
    let it = both({
        let slow = slow.clone();
        move |_| if slow.load(Ordering::Relaxed) { Err(ServerError::Delay.into()) } else { Ok(()) }
    });
    let ours = create(&it.client, "f");
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let user = Cred::user(7, 7);
    assert!(it.client.access(&user, &ours, 4).is_ok());
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    it.server.set_attr(&Cred::root(), &theirs, &set).unwrap();
    assert!(matches!(it.client.access(&user, &ours, 4), Err(Error::Name(NameError::Access))));

    write(&it.client, &ours, b"kept");
    slow.store(true, Ordering::Relaxed);
    assert!(matches!(it.client.fsync(&ours, false), Err(Error::Server(ServerError::Delay))));
    assert_eq!(it.client.change(&ours), None, "nobody vouches while the server does not answer");
    assert_eq!(it.client.health().read_only, None);
    slow.store(false, Ordering::Relaxed);
    it.client.fsync(&ours, false).unwrap();
    assert_eq!(read(&it.server, &theirs), b"kept", "a delay loses nothing");
}

#[test]
fn a_lookup_that_waits_for_the_server_blocks_no_other_request() {
    let (started, has_started) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (hold, released) = (Arc::new(AtomicBool::new(false)), parking_lot::Mutex::new(released));
    let it = both({
        let hold = hold.clone();
        move |what| {
            if what == "lookup" && hold.swap(false, Ordering::Relaxed) {
                started.send(()).unwrap();
                released.lock().recv().unwrap();
            }
            Ok(())
        }
    });
    create(&it.server, "a");
    let root = it.client.root().unwrap();
    hold.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| it.client.lookup(&Cred::trusted(), &root, b"a").unwrap().ino);
        has_started.recv().unwrap();
        // All of these take the directory's lock, exclusively, or look something up in it.
        create(&it.client, "b");
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        it.client.set_attr(&Cred::root(), &root, &set).unwrap();
        assert!(it.client.lookup(&Cred::trusted(), &root, b"b").is_ok());
        release.send(()).unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn locks_are_taken_on_the_server() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let lock =
        |owner, range, exclusive| LockRequest { owner: LockOwner(owner), range, exclusive, waits: false };
    it.client.lock(&Cred::root(), &file, &lock(1, 0..10, true)).unwrap();
    let refused = it.client.lock(&Cred::root(), &file, &lock(2, 5..6, false));
    assert!(matches!(refused, Err(Error::Name(NameError::Busy))));
    it.client.lock(&Cred::root(), &file, &lock(2, 10..20, false)).unwrap();
    let conflict = it.client.test_lock(&Cred::root(), &file, &lock(2, 5..6, false)).unwrap();
    assert_eq!(conflict, Some(LockConflict { range: 0..10, exclusive: true }));
    it.client.unlock(&Cred::root(), &file, LockOwner(1), 0..6).unwrap();
    let refused = it.client.lock(&Cred::root(), &file, &lock(2, 6..7, false));
    assert!(matches!(refused, Err(Error::Name(NameError::Busy))), "the rest stays locked");
    // Nobody is asked to unlock what is not locked.
    let before = it.fs.round_trips();
    it.client.unlock(&Cred::root(), &file, LockOwner(3), 0..u64::MAX).unwrap();
    assert_eq!(it.fs.round_trips(), before);
    it.client.lock(&Cred::root(), &file, &lock(2, 5..6, false)).unwrap();
    // A local filesystem leaves locks to its front end.
    let local = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let refused = it.server.lock(&Cred::root(), &local, &lock(1, 0..1, true));
    assert!(matches!(refused, Err(Error::Name(NameError::NotSupported))));
}

#[test]
fn no_request_is_sent_under_an_inode_lock() {
    let all: Arc<Mutex<Vec<InodeRef>>> = Arc::default();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let it = both({
        let (all, asked) = (all.clone(), asked.clone());
        move |what| {
            if ["getattr", "access", "lookup", "lookupp", "readdir", "open"].contains(&what) {
                for inode in all.lock().iter() {
                    assert!(inode.lock.try_write().is_some(), "{what} under the lock of {inode:?}");
                }
                asked.lock().push(what.to_owned());
            }
            Ok(())
        }
    });
    let (user, root) = (Cred::root(), it.client.root().unwrap());
    let dir =
        |name: &[u8]| it.client.create(&user, &root, name, &CreateSpec::directory(0o755), true).unwrap().0;
    let (a, b) = (dir(b"a"), dir(b"b"));
    *all.lock() = vec![root.clone(), a.clone(), b.clone()];
    let file = it.client.create(&user, &a, b"f", &CreateSpec::file(0o644), true).unwrap().0;
    all.lock().push(file.clone());
    it.client.open(&user, &file, OpenMode::WRITE).unwrap();
    write(&it.client, &file, b"bytes");
    it.client.link(&user, &file, &b, b"g", true).unwrap();
    let set = SetAttr { size: Some(1), perm: Some(0o600), ..SetAttr::default() };
    it.client.set_attr(&user, &file, &set).unwrap();
    it.client.unlink(&user, &b, b"g", true).unwrap();
    it.client.rename(&user, &a, b"f", &b, b"h", RenameFlags::empty(), true).unwrap();
    it.client.rename(&user, &root, b"a", &b, b"a", RenameFlags::empty(), true).unwrap();
    it.client.rmdir(&user, &b, b"a", true).unwrap();
    it.client.readdir(&Cred::root(), &b, 0, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    it.client.change(&file).unwrap();
    for what in ["getattr", "access", "lookup", "readdir"] {
        assert!(asked.lock().iter().any(|asked| asked == what), "{what} was not asked");
    }
    // The server refuses what the VFS checks elsewhere.
    let exists = it.client.create(&user, &b, b"h", &CreateSpec::file(0o644), false);
    assert!(matches!(exists, Err(Error::Name(NameError::Exists))));
    let inner = it.client.create(&user, &b, b"d", &CreateSpec::directory(0o755), false).unwrap().0;
    let into_itself = it.client.rename(&user, &root, b"b", &inner, b"b", RenameFlags::empty(), false);
    assert!(matches!(into_itself, Err(Error::Name(NameError::Invalid))));
    let stranger = it.client.unlink(&Cred::user(7, 7), &b, b"h", false);
    assert!(matches!(stranger, Err(Error::Name(NameError::Access))));
}

#[test]
fn a_lookup_refreshes_a_cached_inode_unless_its_number_has_another_owner() {
    let it = both(|_| Ok(()));
    let ours = create(&it.client, "f");
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    it.server.set_attr(&Cred::root(), &theirs, &set).unwrap();
    create(&it.server, "other");
    let root = it.client.root().unwrap();
    let found = it.client.lookup(&Cred::trusted(), &root, b"f").unwrap();
    assert_eq!(found.ino, ours.ino);
    assert_eq!(it.client.stat(&ours).perm, 0o600, "the reply to the lookup had it");
    // The number belongs to another file on the server while the old one is in use here.
    it.fs.restore_backup();
    create(&it.server, "third");
    let lookup = it.client.lookup(&Cred::trusted(), &root, b"f");
    assert!(matches!(lookup, Err(Error::Name(NameError::Stale))));
}

#[test]
fn attributes_are_sent_in_one_request() {
    let sent = Arc::new(Mutex::new(0));
    let it = both({
        let sent = sent.clone();
        move |what| {
            *sent.lock() += u32::from(what == "setattr");
            Ok(())
        }
    });
    let ours = create(&it.client, "f");
    let time = Timestamp { sec: 5, nsec: 0 };
    let mtime = Some(TimeSet::At(time));
    let set = SetAttr { perm: Some(0o640), size: Some(10), mtime, ..SetAttr::default() };
    let attr = it.client.set_attr(&Cred::root(), &ours, &set).unwrap();
    assert_eq!((attr.perm, attr.size, attr.mtime), (0o640, 10, time));
    assert_eq!(*sent.lock(), 1);
    let theirs = it.server.stat(&it.server.resolve(&Cred::root(), "/f", true).unwrap());
    assert_eq!((theirs.perm, theirs.size, theirs.mtime), (0o640, 10, time));
    // The server decides, and a refusal leaves the cached bytes as they are.
    write(&it.client, &ours, b"ten bytes!");
    let cut = SetAttr { size: Some(3), ..SetAttr::default() };
    let refused = it.client.set_attr(&Cred::user(7, 7), &ours, &cut);
    assert!(matches!(refused, Err(Error::Name(NameError::Access))));
    assert_eq!(read(&it.client, &ours), b"ten bytes!");
    it.client.set_attr(&Cred::root(), &ours, &cut).unwrap();
    assert_eq!(read(&it.client, &ours), b"ten");
    it.client.fsync(&ours, false).unwrap();
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    assert_eq!(read(&it.server, &theirs), b"ten");
}

#[test]
fn bytes_read_before_an_invalidation_do_not_enter_the_cache_after_it() {
    let hold = Arc::new(AtomicBool::new(false));
    let between: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>> = Arc::default();
    let it = Arc::new(both({
        let (hold, between) = (hold.clone(), between.clone());
        move |what| {
            // The reply is under way when another client writes, and this client is told first.
            if what == "read reply" && hold.swap(false, Ordering::Relaxed) {
                between.get().unwrap()();
            }
            Ok(())
        }
    }));
    let ours = create(&it.client, "f");
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let end = 2 * 4096;
    let fill = |byte| vec![byte; end];
    let written = it.server.write(&Cred::root(), &theirs, 0, &fill(1), WriteFlags::empty()).unwrap();
    assert_eq!(written, end);
    it.client.get_attr(&Cred::root(), &ours).unwrap();
    let weak = Arc::downgrade(&it);
    let (theirs, mine) = (theirs.clone(), ours.clone());
    let interrupt = move || {
        let Some(it) = weak.upgrade() else { return };
        sync::on_another_machine(|| write(&it.server, &theirs, &vec![2; end]));
        it.client.get_attr(&Cred::root(), &mine).unwrap();
    };
    assert!(between.set(Box::new(interrupt)).is_ok());

    hold.store(true, Ordering::Relaxed);
    assert_eq!(read(&it.client, &ours), vec![1; 100], "this answer was given before");
    assert!(!hold.load(Ordering::Relaxed));
    assert_eq!(read(&it.client, &ours), vec![2; 100]);

    // A write to a part of a page keeps the newest rest of it.
    it.server
        .write(
            &Cred::root(),
            &it.server.resolve(&Cred::root(), "/f", true).unwrap(),
            0,
            &fill(3),
            WriteFlags::empty(),
        )
        .unwrap();
    it.client.get_attr(&Cred::root(), &ours).unwrap();
    hold.store(true, Ordering::Relaxed);
    write(&it.client, &ours, b"x");
    assert!(!hold.load(Ordering::Relaxed));
    assert_eq!(read(&it.client, &ours)[..2], *b"x\x02");
}

#[test]
fn a_refused_write_is_reported_once_and_its_pages_are_dropped() {
    let (it, answers) = both_with_answers();
    let (ours, other) = (create(&it.client, "f"), create(&it.client, "g"));
    write(&it.client, &ours, b"too much");
    write(&it.client, &other, b"fits");
    answers.lock().insert("write", NameError::Quota.into());
    assert!(matches!(it.client.fsync(&ours, false), Err(Error::DataRefused(NameError::Quota))));
    answers.lock().clear();
    it.client.fsync(&ours, false).unwrap();
    it.client.get_attr(&Cred::root(), &ours).unwrap();
    assert_eq!(read(&it.client, &ours), b"", "as the server has it");
    it.client.fsync(&other, false).unwrap();
    assert_eq!(it.client.dirty_bytes(), 0);
    assert_eq!(it.client.health().read_only, None);
    it.client.unmount().unwrap();
}

#[test]
fn a_broken_server_does_not_stop_the_mount() {
    let (it, answers) = both_with_answers();
    let file = create(&it.client, "f");
    answers.lock().insert("remove", ServerError::Failed.into());
    let root = it.client.root().unwrap();
    let removed = it.client.unlink(&Cred::root(), &root, b"f", false);
    assert!(matches!(removed, Err(Error::Server(ServerError::Failed))));
    assert_eq!(it.client.health().read_only, None);
    answers.lock().clear();
    it.client.unlink(&Cred::root(), &root, b"f", false).unwrap();
    assert_eq!(it.client.stat(&file).nlink, 0);
}

#[test]
fn unmount_ends_the_session_after_a_failed_write() {
    let left = Arc::new(AtomicBool::new(false));
    let it = both({
        let left = left.clone();
        move |what| match what {
            "write" => Err(ServerError::Timeout.into()),
            "destroy session" => {
                left.store(true, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    });
    let ours = create(&it.client, "f");
    write(&it.client, &ours, b"never arrives");
    assert!(matches!(it.client.unmount(), Err(Error::Server(ServerError::Timeout))));
    assert!(left.load(Ordering::Relaxed));
}

#[test]
fn an_unmount_ends_although_the_server_does_not_answer() {
    let (asked, was_asked) = mpsc::channel();
    let it = both(move |what| {
        if what == "write" {
            asked.send(()).unwrap();
        }
        Ok(())
    });
    let file = create(&it.client, "f");
    write(&it.client, &file, b"never arrives");
    it.fs.hang_server();
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| it.client.unmount());
        was_asked.recv().unwrap();
        it.client.stop_waiting();
        let ended = unmounting.join().unwrap();
        assert!(matches!(ended, Err(Error::Server(ServerError::Timeout))), "{ended:?}");
    });
}
