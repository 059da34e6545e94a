//! What this client changes does not empty its own cache.

use super::*;
use std::sync::atomic::AtomicU32;

/// A server and a client, and how often the server was asked for `kind`.
fn counting(kind: &'static str) -> (Both, impl Fn() -> u32) {
    let asked = Arc::new(AtomicU32::new(0));
    let it = both({
        let asked = asked.clone();
        move |what| {
            asked.fetch_add(u32::from(what == kind), Ordering::Relaxed);
            Ok(())
        }
    });
    (it, move || asked.swap(0, Ordering::Relaxed))
}

#[test]
fn cached_names_stay_until_somebody_else_changes_the_directory() {
    let (it, lookups) = counting("lookup");
    let root = it.client.root().unwrap();
    create(&it.client, "x");
    let find = |name: &[u8]| it.client.lookup(&Cred::root(), &root, name).unwrap();
    find(b"x");
    lookups();
    create(&it.client, "y");
    it.client.unlink(&Cred::root(), &root, b"y", false).unwrap();
    create(&it.client, "z");
    it.client.rename(&Cred::root(), &root, b"z", &root, b"y", RenameFlags::empty(), false).unwrap();
    lookups();
    find(b"x");
    find(b"y");
    assert_eq!(lookups(), 0);
    create(&it.server, "theirs");
    find(b"x");
    assert_eq!(lookups(), 1, "their change is seen");
    create(&it.server, "theirs too");
    create(&it.client, "ours");
    lookups();
    find(b"x");
    assert_eq!(lookups(), 1, "their change came before ours");
}

#[test]
fn the_callers_change_info_is_the_servers() {
    let it = both(|_| Ok(()));
    let (user, root) = (Cred::root(), it.client.root().unwrap());
    let now = || it.client.change(&root).unwrap();
    let mut last = now();
    let mut follows = |info: Option<ChangeInfo>| {
        let info = info.unwrap();
        assert_eq!(info.before, last);
        assert!(info.after > info.before);
        assert_eq!(it.client.change(&root), Some(info.after));
        last = info.after;
    };
    let (file, info) = it.client.create(&user, &root, b"a", &CreateSpec::file(0o644), true).unwrap();
    follows(info);
    follows(it.client.link(&user, &file, &root, b"b", true).unwrap());
    let moved = it.client.rename(&user, &root, b"b", &root, b"c", RenameFlags::empty(), true).unwrap();
    assert_eq!(moved.unwrap().0, moved.unwrap().1);
    follows(moved.map(|(old, _)| old));
    follows(it.client.unlink(&user, &root, b"c", true).unwrap());
    let (dir, info) = it.client.create(&user, &root, b"d", &CreateSpec::directory(0o755), true).unwrap();
    follows(info);
    let moved = it.client.rename(&user, &root, b"a", &dir, b"a", RenameFlags::empty(), true).unwrap();
    assert_eq!(Some(moved.unwrap().1.after), it.client.change(&dir));
    follows(moved.map(|(old, _)| old));
}

#[test]
fn clean_pages_stay_when_only_own_writes_moved_the_value() {
    let (it, reads) = counting("read");
    let file = create(&it.client, "f");
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    it.server.write(&Cred::root(), &theirs, 0, &[1; 8192], WriteFlags::empty()).unwrap();
    it.client.get_attr(&Cred::root(), &file).unwrap();
    let second_page = || it.client.read(&Cred::root(), &file, 4096, &mut [0; 10]).unwrap();
    second_page();
    it.fs.grant(file.ino);
    reads();
    write(&it.client, &file, &[2; 4096]);
    it.client.fsync(&file, false).unwrap();
    second_page();
    assert_eq!(reads(), 0, "nobody else can have changed it");
    it.fs.recall(file.ino).unwrap();
    write(&it.client, &file, &[3; 4096]);
    it.client.fsync(&file, false).unwrap();
    second_page();
    assert_eq!(reads(), 1);
}
