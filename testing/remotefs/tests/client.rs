//! The VFS over a server: whose change attribute it is, what is asked when, and what a slow server blocks.

use ivers_mem::Mem;
use ivers_remotefs::RemoteFs;
use ivers_vfs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// Above 2^63, so that masking to 63 bits would show.
const BASE: u64 = 0xF000_0000_0000_0000;

struct Both {
    server: Arc<Vfs>,
    fs: Arc<RemoteFs>,
    client: Arc<Vfs>,
}

fn both(on_round_trip: impl Fn(&str) -> Result<()> + Send + Sync + 'static) -> Both {
    let options = || MountOptions { background: false, ..MountOptions::default() };
    let server = Vfs::mount(Arc::new(Mem::default()), options()).unwrap();
    let fs = Arc::new(RemoteFs::new(server.clone(), BASE, Box::new(on_round_trip)).unwrap());
    let client = Vfs::mount(fs.clone(), options()).unwrap();
    Both { server, fs, client }
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
    let len = vfs.read(file, 0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn the_change_attribute_is_the_servers_in_all_its_bits() {
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
    // A cached write bumps nothing here; the server does when it arrives.
    write(&it.client, &ours, b"one");
    assert_eq!(same(), first);
    it.client.fsync(&ours, false).unwrap();
    let second = same();
    assert!(second > first);
    assert_eq!(same(), second, "rests");
    assert_eq!(it.client.stats().bumps, 0);
    ours.raise_server_change();
    it.fs.grant(ours.ino);
    assert_eq!(it.client.change(&ours), Some(second + 1), "once under a write delegation");
}

#[test]
fn changes_behind_the_cache_are_seen_and_grants_save_the_question() {
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
    it.fs.recall(ours.ino);
    it.client.get_attr(&Cred::root(), &ours).unwrap();
    assert_eq!(read(&it.client, &ours), b"newest");
}

#[test]
fn names_are_trusted_while_their_directory_has_not_changed() {
    let it = both(|_| Ok(()));
    create(&it.client, "f");
    let root = it.client.root().unwrap();
    it.fs.grant(root.ino);
    let found = |name: &[u8]| it.client.lookup(&Cred::trusted(), &root, name);
    let first = found(b"f").unwrap();
    let asked = it.fs.round_trips();
    assert_eq!(found(b"f").unwrap().ino, first.ino);
    assert_eq!(it.fs.round_trips(), asked, "from the cache");
    // Somebody else replaces it.
    let server_root = it.server.root().unwrap();
    it.server.unlink(&Cred::root(), &server_root, b"f", false).unwrap();
    let second = create(&it.server, "f");
    it.fs.recall(root.ino);
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
fn a_lookup_that_waits_for_the_server_blocks_nobody() {
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
fn locks_are_the_servers() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let lock = |owner, range, exclusive| LockRequest { owner: LockOwner(owner), range, exclusive };
    it.client.lock(&file, &lock(1, 0..10, true)).unwrap();
    let refused = it.client.lock(&file, &lock(2, 5..6, false));
    assert!(matches!(refused, Err(Error::Name(NameError::Busy))));
    it.client.lock(&file, &lock(2, 10..20, false)).unwrap();
    it.client.unlock(&file, LockOwner(1), 0..10).unwrap();
    it.client.lock(&file, &lock(2, 5..6, false)).unwrap();
    // A local filesystem leaves locks to its front end.
    let local = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let refused = it.server.lock(&local, &lock(1, 0..1, true));
    assert!(matches!(refused, Err(Error::Name(NameError::NotSupported))));
}
