//! POSIX behaviour of the VFS.

use ivers_mem::Mem;
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::Arc;

fn mount() -> Arc<Vfs> {
    Vfs::mount(Arc::new(Mem::default()), MountOptions::default()).unwrap()
}

fn file(vfs: &Vfs, name: &str) -> InodeRef {
    let root = vfs.root().unwrap();
    vfs.create(&Cred::root(), &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0
}

fn dir(vfs: &Vfs, parent: &InodeRef, name: &str) -> InodeRef {
    vfs.create(&Cred::root(), parent, name.as_bytes(), &CreateSpec::directory(0o755), false).unwrap().0
}

fn write(vfs: &Vfs, inode: &InodeRef, offset: u64, data: &[u8]) {
    assert_eq!(vfs.write(&Cred::root(), inode, offset, data, WriteFlags::empty()).unwrap(), data.len());
}

fn read_all(vfs: &Vfs, inode: &InodeRef) -> Vec<u8> {
    let mut buf = vec![0xAA; inode.size() as usize + 10];
    let got = vfs.read(&Cred::root(), inode, 0, &mut buf).unwrap();
    buf.truncate(got);
    buf
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, want: NameError) {
    match result {
        Err(Error::Name(got)) if got == want => {}
        other => panic!("expected {want:?}, got {other:?}"),
    }
}

fn names(vfs: &Vfs, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        ControlFlow::Continue(())
    })
    .unwrap();
    names
}

#[test]
fn data_survives_eviction_and_write_back() {
    let vfs = mount();
    let f = file(&vfs, "f");
    write(&vfs, &f, 5000, b"hello");
    write(&vfs, &f, 3, b"x");
    let mut want = vec![0; 5005];
    want[5000..].copy_from_slice(b"hello");
    want[3] = b'x';
    assert_eq!(read_all(&vfs, &f), want);
    vfs.sync().unwrap();
    assert_eq!(vfs.dirty_bytes(), 0);
    assert_eq!(read_all(&vfs, &f), want);
    let cred = Cred::root();
    vfs.write(&cred, &f, 4096, &[7; 4096], WriteFlags::DIRECT).unwrap();
    want.resize(8192, 0);
    want[4096..].fill(7);
    assert_eq!(read_all(&vfs, &f), want);
    let mut direct = vec![0; 8192];
    assert_eq!(vfs.read_direct(&Cred::root(), &f, 0, &mut direct).unwrap(), 8192);
    assert_eq!(direct, want);
    vfs.write(&cred, &f, 0, b"end", WriteFlags::APPEND).unwrap();
    assert_eq!(f.size(), 8195);
    vfs.unmount().unwrap();
    assert!(vfs.read(&Cred::root(), &f, 0, &mut [0]).is_err());
}

/// A caller that caches the data itself: no page is added for whole units, in either direction.
#[test]
fn what_the_caller_caches_is_not_cached_twice() {
    const LEN: usize = (3 << 20) + 100;
    let budget = Arc::new(ivers_block::Budget::new(64 << 20));
    let options = MountOptions { background: false, budget: Some(budget.clone()), ..MountOptions::default() };
    let vfs = Vfs::mount(Arc::new(Mem::default()), options).unwrap();
    let (cred, f) = (Cred::root(), file(&vfs, "f"));
    let put = |at: u64, bytes: &[u8]| {
        assert_eq!(vfs.write(&cred, &f, at, bytes, WriteFlags::CACHED_BY_CALLER).unwrap(), bytes.len());
    };
    let empty = budget.used();
    let mut want: Vec<u8> = (0..LEN).map(|at| (at / 1000) as u8).collect();
    put(0, &want);
    assert_eq!((budget.used(), vfs.dirty_bytes()), (empty, 0));
    assert_eq!(vfs.stats().written_back_bytes, LEN as u64);

    // Only the last page, which is no whole unit, is cached.
    let mut back = vec![0; LEN];
    assert_eq!(vfs.read_for_cache(&cred, &f, 0, &mut back).unwrap(), LEN);
    assert!(back == want);
    assert_eq!(budget.used(), empty + 4096);

    // Cached pages are used, replaced when they are overwritten, and not written again.
    write(&vfs, &f, 8192 + 10, b"dirty");
    want[8202..8207].copy_from_slice(b"dirty");
    assert_eq!(vfs.read_for_cache(&cred, &f, 0, &mut back).unwrap(), LEN);
    assert!(back == want);
    assert_eq!(vfs.dirty_bytes(), 4096);
    want[4096..16384].fill(7);
    put(4096, &want[4096..16384]);
    assert_eq!((vfs.dirty_bytes(), budget.used()), (0, empty + 4096));
    assert_eq!(vfs.read(&cred, &f, 0, &mut back).unwrap(), LEN);
    assert!(back == want);

    // A part of a unit goes through the cache.
    put(20480, b"part");
    want[20480..20484].copy_from_slice(b"part");
    assert_eq!(vfs.dirty_bytes(), 4096);
    vfs.sync().unwrap();
    assert_eq!(read_all(&vfs, &f), want);
}

#[test]
fn truncate_shows_zeros_when_the_file_grows_again() {
    let vfs = mount();
    let f = file(&vfs, "f");
    for sync_between in [false, true] {
        write(&vfs, &f, 0, &[9; 10000]);
        if sync_between {
            vfs.sync().unwrap();
        }
        let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        vfs.set_attr(&Cred::root(), &f, &set(5000)).unwrap();
        vfs.set_attr(&Cred::root(), &f, &set(9000)).unwrap();
        let data = read_all(&vfs, &f);
        assert_eq!(data.len(), 9000);
        assert!(data[..5000].iter().all(|byte| *byte == 9) && data[5000..].iter().all(|byte| *byte == 0));
        vfs.sync().unwrap();
        assert_eq!(read_all(&vfs, &f), data);
    }
}

#[test]
fn names_are_added_and_removed() {
    let vfs = mount();
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let d = dir(&vfs, &root, "d");
    assert_eq!(vfs.stat(&root).nlink, 3);
    let f = file(&vfs, "f");
    refused(vfs.lookup(&cred, &d, b"f"), NameError::NotFound);
    vfs.link(&cred, &f, &d, b"f", false).unwrap();
    assert_eq!(vfs.lookup(&cred, &d, b"f").unwrap().ino, f.ino);
    assert_eq!(vfs.stat(&f).nlink, 2);
    refused(vfs.rmdir(&cred, &root, b"d", false), NameError::NotEmpty);
    refused(vfs.unlink(&cred, &root, b"d", false), NameError::IsDirectory);
    refused(vfs.rmdir(&cred, &root, b"f", false), NameError::NotDirectory);
    refused(vfs.link(&cred, &d, &root, b"loop", false), NameError::NotPermitted);
    refused(vfs.create(&cred, &root, &[b'n'; 256], &CreateSpec::file(0o644), false), NameError::NameTooLong);
    vfs.unlink(&cred, &d, b"f", false).unwrap();
    vfs.rmdir(&cred, &root, b"d", false).unwrap();
    assert_eq!(vfs.stat(&root).nlink, 2);
    refused(vfs.create(&cred, &d, b"late", &CreateSpec::file(0o644), false), NameError::NotFound);
    assert_eq!(names(&vfs, &root), [".", "..", "f"]);
    let ino = f.ino;
    vfs.unlink(&cred, &root, b"f", false).unwrap();
    write(&vfs, &f, 0, b"open and unlinked");
    assert_eq!(read_all(&vfs, &f), b"open and unlinked");
    refused(vfs.link(&cred, &f, &root, b"back", false), NameError::NotFound);
    drop(f);
    refused(vfs.get(ino), NameError::Stale);
    let unnamed = vfs.create_unnamed(&cred, &root, &CreateSpec::file(0o600)).unwrap();
    vfs.link(&cred, &unnamed, &root, b"named", false).unwrap();
    drop(unnamed);
    assert!(vfs.lookup(&cred, &root, b"named").is_ok());
}

#[test]
fn renames_move_replace_and_exchange_names() {
    let vfs = mount();
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let none = RenameFlags::empty();
    let (a, b) = (dir(&vfs, &root, "a"), dir(&vfs, &root, "b"));
    let inner = dir(&vfs, &a, "inner");
    refused(vfs.rename(&cred, &root, b"a", &inner, b"x", none, false), NameError::Invalid);
    refused(vfs.rename(&cred, &root, b"a", &a, b"x", none, false), NameError::Invalid);
    refused(vfs.rename(&cred, &a, b"inner", &root, b"a", none, false), NameError::NotEmpty);
    refused(vfs.rename(&cred, &root, b"b", &a, b"inner", RenameFlags::NOREPLACE, false), NameError::Exists);
    let info = vfs.rename(&cred, &a, b"inner", &b, b"moved", none, true).unwrap().unwrap();
    assert!(info.0.after > info.0.before && info.1.after > info.1.before);
    assert_eq!((vfs.stat(&a).nlink, vfs.stat(&b).nlink), (2, 3));
    assert_eq!(vfs.lookup(&cred, &inner, b"..").unwrap().ino, b.ino);
    let f = file(&vfs, "f");
    vfs.rename(&cred, &root, b"f", &b, b"moved", RenameFlags::EXCHANGE, false).unwrap();
    assert_eq!(vfs.lookup(&cred, &b, b"moved").unwrap().ino, f.ino);
    assert_eq!(vfs.lookup(&cred, &root, b"f").unwrap().ino, inner.ino);
    assert_eq!(vfs.lookup(&cred, &inner, b"..").unwrap().ino, root.ino);
    assert_eq!((vfs.stat(&root).nlink, vfs.stat(&b).nlink), (5, 2));
    let g = file(&vfs, "g");
    vfs.rename(&cred, &root, b"g", &b, b"moved", none, false).unwrap();
    assert_eq!(vfs.stat(&f).nlink, 0);
    assert_eq!(vfs.lookup(&cred, &b, b"moved").unwrap().ino, g.ino);
    refused(vfs.rename(&cred, &b, b"moved", &root, b"a", none, false), NameError::IsDirectory);
    refused(vfs.rename(&cred, &root, b"a", &b, b"moved", none, false), NameError::NotDirectory);
    vfs.link(&cred, &g, &root, b"twin", false).unwrap();
    vfs.rename(&cred, &root, b"twin", &b, b"moved", none, false).unwrap();
    assert!(vfs.lookup(&cred, &root, b"twin").is_ok(), "two names of one file: nothing happens");
}

#[test]
fn paths_follow_symbolic_links_and_detect_loops() {
    let vfs = mount();
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let d = dir(&vfs, &root, "d");
    let link = |at: &InodeRef, name: &str, to: &str| {
        vfs.create(&cred, at, name.as_bytes(), &CreateSpec::symlink(to), false).unwrap().0
    };
    let f = file(&vfs, "f");
    link(&d, "up", "../f");
    link(&root, "abs", "/d/up");
    link(&root, "loop", "loop");
    assert_eq!(vfs.resolve(&cred, "/abs", true).unwrap().ino, f.ino);
    assert_eq!(vfs.resolve(&cred, "d/../d/up", true).unwrap().ino, f.ino);
    assert_eq!(vfs.resolve(&cred, "abs", false).unwrap().kind, FileType::Symlink);
    refused(vfs.resolve(&cred, "loop", true), NameError::Loop);
    refused(vfs.resolve(&cred, "f/x", true), NameError::NotDirectory);
    refused(vfs.resolve(&cred, "f/", true), NameError::NotDirectory);
    assert_eq!(vfs.stat(&vfs.resolve(&cred, "abs", false).unwrap()).size, 5);
}

#[test]
fn permissions_and_acls_are_checked_and_inherited() {
    let vfs = mount();
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let f = file(&vfs, "f");
    let (alice, bob) = (Cred::user(1000, 1000), Cred::user(1001, 1001));
    refused(vfs.create(&alice, &root, b"x", &CreateSpec::file(0o644), false), NameError::Access);
    vfs.set_attr(
        &cred,
        &f,
        &SetAttr { uid: Some(1000), gid: Some(1000), perm: Some(0o640), ..SetAttr::default() },
    )
    .unwrap();
    vfs.access(&alice, &f, 6).unwrap();
    refused(vfs.access(&bob, &f, 4), NameError::Access);
    // user::rw-, user:1001:r--, group::r--, mask::r--, other::---
    let acl: Vec<u8> = [
        &2u32.to_le_bytes()[..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 0xE9, 3, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    refused(
        vfs.set_xattr(&bob, &f, "system.posix_acl_access", &acl, XattrMode::Any),
        NameError::NotPermitted,
    );
    vfs.set_xattr(&alice, &f, "system.posix_acl_access", &acl, XattrMode::Any).unwrap();
    vfs.access(&bob, &f, 4).unwrap();
    refused(vfs.access(&bob, &f, 2), NameError::Access);
    vfs.set_attr(&alice, &f, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    refused(vfs.access(&bob, &f, 4), NameError::Access);
    refused(
        vfs.set_attr(&bob, &f, &SetAttr { perm: Some(0o777), ..SetAttr::default() }),
        NameError::NotPermitted,
    );
    refused(
        vfs.set_attr(&alice, &f, &SetAttr { uid: Some(1001), ..SetAttr::default() }),
        NameError::NotPermitted,
    );
    let d = dir(&vfs, &root, "d");
    vfs.set_xattr(&cred, &d, "system.posix_acl_default", &acl, XattrMode::Any).unwrap();
    let child = vfs
        .create(&cred, &d, b"c", &CreateSpec { umask: 0o077, ..CreateSpec::file(0o666) }, false)
        .unwrap()
        .0;
    assert_eq!(vfs.stat(&child).perm, 0o640);
    vfs.access(&bob, &child, 4).unwrap();
    let tmp = dir(&vfs, &root, "tmp");
    vfs.set_attr(&cred, &tmp, &SetAttr { perm: Some(0o1777), ..SetAttr::default() }).unwrap();
    vfs.create(&alice, &tmp, b"mine", &CreateSpec::file(0o666), false).unwrap();
    refused(vfs.unlink(&bob, &tmp, b"mine", false), NameError::NotPermitted);
    vfs.unlink(&alice, &tmp, b"mine", false).unwrap();
}

#[test]
fn project_ids_are_inherited_and_not_mixed() {
    let vfs = mount();
    let root = vfs.root().unwrap();
    let (inside, outside) = (dir(&vfs, &root, "inside"), file(&vfs, "outside"));
    let set = SetAttr { flags: Some(InodeFlags::PROJINHERIT), project: Some(7), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &inside, &set).unwrap();
    let cred = Cred::root();
    let child = vfs.create(&cred, &inside, b"child", &CreateSpec::file(0o644), false).unwrap().0;
    assert_eq!(vfs.stat(&child).project, 7);
    refused(vfs.link(&cred, &outside, &inside, b"link", false), NameError::CrossDevice);
    let none = RenameFlags::empty();
    refused(vfs.rename(&cred, &root, b"outside", &inside, b"in", none, false), NameError::CrossDevice);
    refused(
        vfs.rename(&cred, &inside, b"child", &root, b"outside", RenameFlags::EXCHANGE, false),
        NameError::CrossDevice,
    );
    // A rename out of the tree, or within it, is allowed.
    vfs.rename(&cred, &inside, b"child", &inside, b"same", none, false).unwrap();
    vfs.rename(&cred, &inside, b"same", &root, b"out", none, false).unwrap();
}

#[test]
fn times_that_the_caller_sets_are_kept() {
    let vfs = mount();
    let f = file(&vfs, "f");
    let at = Timestamp { sec: 1_000_000_000, nsec: 5 };
    let set = SetAttr { mtime: Some(TimeSet::At(at)), ctime: Some(at), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &f, &set).unwrap();
    let before = vfs.change(&f);
    assert_eq!(vfs.write(&Cred::root(), &f, 0, b"x", WriteFlags::TIMES_SET_BY_CALLER).unwrap(), 1);
    assert_eq!((vfs.stat(&f).mtime, vfs.stat(&f).ctime), (at, at));
    assert_ne!(vfs.change(&f), before, "a change nevertheless");
    let (before, by_caller) = (vfs.change(&f), WriteFlags::TIMES_SET_BY_CALLER);
    vfs.fallocate_as(&Cred::root(), &f, FallocateMode::empty(), 0, 9000, by_caller).unwrap();
    assert_eq!((vfs.stat(&f).mtime, vfs.stat(&f).ctime, vfs.stat(&f).size), (at, at, 9000));
    assert_ne!(vfs.change(&f), before, "a change nevertheless");
    // The given ctime equals the stored one, and is used nevertheless.
    let set = SetAttr { perm: Some(0o600), ctime: Some(at), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &f, &set).unwrap();
    assert_eq!((vfs.stat(&f).perm, vfs.stat(&f).ctime), (0o600, at));
    vfs.fallocate(&Cred::root(), &f, FallocateMode::empty(), 0, 9001).unwrap();
    assert!(vfs.stat(&f).mtime > at);
    let set = SetAttr { mtime: Some(TimeSet::At(at)), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &f, &set).unwrap();
    write(&vfs, &f, 0, b"y");
    assert!(vfs.stat(&f).mtime > at);
}

/// Which bits of mode 06777 remain after a change, by caller. The capability is always removed. A kernel
/// that checks permissions (`checked`) says for each write whether to remove set-id bits; for other changes
/// the user decides.
#[test]
fn changes_of_data_remove_privileges() {
    let vfs = mount();
    let (root, from, f) = (Cred::root(), file(&vfs, "from"), file(&vfs, "f"));
    write(&vfs, &from, 0, b"contents");
    let set_id = SetAttr { perm: Some(0o6777), ..SetAttr::default() };
    let resize = SetAttr { size: Some(4), ..SetAttr::default() };
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    let checked = |uid| Cred { uid, access_checked: true, ..Cred::root() };
    let told = WriteFlags::KILL_SET_ID;
    type Change<'a> = &'a dyn Fn(&Cred);
    let write_as = |cred: &Cred, flags| assert_eq!(vfs.write(cred, &f, 0, b"x", flags).unwrap(), 1);
    let plain: Change = &|cred| write_as(cred, WriteFlags::empty());
    let direct: Change = &|cred| write_as(cred, WriteFlags::DIRECT);
    let killing: Change = &|cred| write_as(cred, told);
    let copy: Change = &|cred| assert_eq!(vfs.copy_range(cred, &from, 0, &f, 0, 8).unwrap(), 8);
    let hole: Change = &|cred| vfs.fallocate(cred, &f, punch, 0, 4).unwrap();
    let size: Change =
        &|cred| assert_eq!(vfs.set_attr(cred, &f, &resize).unwrap().size, resize.size.unwrap());
    let user = Cred::user(1000, 1000);
    for (what, change, cred, left) in [
        ("write", plain, &root, 0o6777),
        ("write", plain, &user, 0o777),
        ("write", plain, &checked(1000), 0o6777),
        ("direct write", direct, &root, 0o6777),
        ("write with KILL_SET_ID", killing, &checked(0), 0o777),
        ("copy", copy, &root, 0o6777),
        ("copy", copy, &checked(1000), 0o777),
        ("hole", hole, &root, 0o6777),
        ("hole", hole, &checked(1000), 0o777),
        ("size", size, &root, 0o6777),
        ("size", size, &user, 0o777),
        ("size", size, &checked(1000), 0o777),
        ("the same size", size, &user, 0o777),
    ] {
        vfs.set_attr(&root, &f, &set_id).unwrap();
        vfs.set_xattr(&root, &f, "security.capability", b"caps", XattrMode::Any).unwrap();
        change(cred);
        assert_eq!(vfs.stat(&f).perm, left, "{what} by {cred:?}");
        let capability = vfs.get_xattr(&root, &f, "security.capability");
        assert!(matches!(capability, Err(Error::Name(NameError::NoAttribute))), "{what} by {cred:?}");
    }
}

#[test]
fn chown_removes_privileges_of_all_but_directories() {
    let vfs = mount();
    let root = Cred::root();
    let dir = vfs.create(&root, &vfs.root().unwrap(), b"d", &CreateSpec::directory(0o755), false).unwrap().0;
    for (inode, left) in [(&file(&vfs, "f"), 0o755), (&dir, 0o6755)] {
        let owner = SetAttr { uid: Some(0), ..SetAttr::default() };
        vfs.set_attr(&root, inode, &SetAttr { perm: Some(0o6755), ..SetAttr::default() }).unwrap();
        vfs.set_xattr(&root, inode, "security.capability", b"caps", XattrMode::Any).unwrap();
        // The same owner: Linux removes them nevertheless.
        vfs.set_attr(&root, inode, &owner).unwrap();
        assert_eq!(vfs.stat(inode).perm, left);
        let capability = vfs.get_xattr(&root, inode, "security.capability");
        assert_eq!(capability.is_ok(), left == 0o6755);
    }
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let vfs = mount();
    let f = file(&vfs, "f");
    let (cred, user) = (Cred::root(), Cred::user(5, 5));
    vfs.set_xattr(&cred, &f, "user.a", b"1", XattrMode::Create).unwrap();
    refused(vfs.set_xattr(&cred, &f, "user.a", b"2", XattrMode::Create), NameError::Exists);
    refused(vfs.set_xattr(&cred, &f, "user.b", b"2", XattrMode::Replace), NameError::NoAttribute);
    refused(vfs.set_xattr(&user, &f, "user.a", b"2", XattrMode::Any), NameError::Access);
    refused(vfs.set_xattr(&cred, &f, "trusted.ivers.epoch", b"2", XattrMode::Any), NameError::NotPermitted);
    refused(vfs.set_xattr(&cred, &f, "other.a", b"2", XattrMode::Any), NameError::NotSupported);
    vfs.set_xattr(&cred, &f, "trusted.t", b"t", XattrMode::Any).unwrap();
    assert_eq!(vfs.list_xattr(&user, &f).unwrap(), [b"user.a".to_vec()]);
    assert_eq!(vfs.list_xattr(&cred, &f).unwrap().len(), 2);
    assert_eq!(vfs.get_xattr(&user, &f, "user.a").unwrap(), b"1");
    vfs.remove_xattr(&cred, &f, "user.a").unwrap();
    refused(vfs.remove_xattr(&cred, &f, "user.a"), NameError::NoAttribute);
}

#[test]
fn holes_are_found_punched_and_shifted() {
    let vfs = mount();
    let f = file(&vfs, "f");
    let cred = Cred::root();
    write(&vfs, &f, 3 * 4096, &[1; 4096]);
    write(&vfs, &f, 9 * 4096, &[2; 100]);
    for _ in 0..2 {
        assert_eq!(vfs.seek_data(&f, 0).unwrap(), 3 * 4096);
        assert_eq!(vfs.seek_hole(&f, 3 * 4096 + 5).unwrap(), 4 * 4096);
        assert_eq!(vfs.seek_hole(&f, 9 * 4096).unwrap(), 9 * 4096 + 100);
        refused(vfs.seek_data(&f, 10 * 4096), NameError::NoSuchOffset);
        vfs.sync().unwrap();
    }
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    vfs.fallocate(&cred, &f, punch, 3 * 4096, 4096).unwrap();
    assert_eq!(vfs.seek_data(&f, 0).unwrap(), 9 * 4096);
    vfs.fallocate(&cred, &f, FallocateMode::COLLAPSE_RANGE, 0, 4 * 4096).unwrap();
    assert_eq!(f.size(), 5 * 4096 + 100);
    vfs.fallocate(&cred, &f, FallocateMode::INSERT_RANGE, 4096, 4096).unwrap();
    assert_eq!(read_all(&vfs, &f)[6 * 4096..], [2; 100]);
    vfs.fallocate(&cred, &f, FallocateMode::ZERO_RANGE, 6 * 4096 + 50, 100).unwrap();
    assert_eq!(f.size(), 6 * 4096 + 150);
    assert_eq!(read_all(&vfs, &f)[6 * 4096 + 49..6 * 4096 + 51], [2, 0]);
    let g = file(&vfs, "g");
    assert_eq!(vfs.copy_range(&cred, &f, 6 * 4096, &g, 10, 1 << 20).unwrap(), 150);
    assert_eq!(read_all(&vfs, &g)[10..60], [2; 50]);
    refused(vfs.fallocate(&cred, &f, FallocateMode::PUNCH_HOLE, 0, 5), NameError::NotSupported);
}

#[test]
fn a_full_filesystem_refuses_writes_and_recovers() {
    let vfs = Vfs::mount(Arc::new(Mem::new(16 * 4096)), MountOptions::default()).unwrap();
    let f = file(&vfs, "f");
    let cred = Cred::root();
    write(&vfs, &f, 0, &[1; 16 * 4096]);
    refused(vfs.write(&cred, &f, 16 * 4096, b"x", WriteFlags::empty()), NameError::NoSpace);
    vfs.set_attr(&cred, &f, &SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    write(&vfs, &f, 8 * 4096, b"x");
    vfs.sync().unwrap();
    assert_eq!(vfs.stat_fs().unwrap().blocks_free, 14);
    vfs.unlink(&cred, &vfs.root().unwrap(), b"f", false).unwrap();
    drop(f);
    assert_eq!(vfs.stat_fs().unwrap().blocks_free, 16);
}

#[test]
fn readdir_continues_while_names_change() {
    let vfs = mount();
    let root = vfs.root().unwrap();
    for nth in 0..2000 {
        file(&vfs, &format!("stay{nth}"));
    }
    let mut seen = std::collections::HashMap::new();
    let mut round = 0;
    vfs.readdir(&Cred::root(), &root, 0, &mut |entry| {
        *seen.entry(entry.name.to_vec()).or_insert(0) += 1;
        round += 1;
        let name = format!("come{round}");
        file(&vfs, &name);
        vfs.unlink(&Cred::root(), &root, name.as_bytes(), false).unwrap();
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!((0..2000).all(|nth| seen.get(format!("stay{nth}").as_bytes()) == Some(&1)));
}

#[test]
fn an_allocation_larger_than_the_filesystem_fails_immediately() {
    let vfs = Vfs::mount(Arc::new(Mem::new(1 << 20)), MountOptions::default()).unwrap();
    let f = file(&vfs, "f");
    let huge = vfs.fallocate(&Cred::root(), &f, FallocateMode::empty(), 0, 1 << 62);
    refused(huge, NameError::NoSpace);
    vfs.fallocate(&Cred::root(), &f, FallocateMode::empty(), 0, 1 << 20).unwrap();
}
