//! Calls that an NFS server needs: removing and renaming only expected inodes, atomic creation, and change
//! info.

use ivers_mem::Mem;
use ivers_vfs::acl::ACCESS;
use ivers_vfs::*;
use std::sync::Arc;

fn mount() -> (Arc<Vfs>, InodeRef) {
    let options = MountOptions { background: false, ..MountOptions::default() };
    let vfs = Vfs::mount(Arc::new(Mem::default()), options).unwrap();
    let root = vfs.root().unwrap();
    (vfs, root)
}

fn make(vfs: &Arc<Vfs>, dir: &InodeRef, name: &str, spec: &CreateSpec) -> InodeRef {
    vfs.create(&Cred::root(), dir, name.as_bytes(), spec, false).unwrap().0
}

#[track_caller]
fn refused(result: Result<impl Sized>, why: NameError) {
    match result {
        Err(Error::Name(name)) => assert_eq!(name, why),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was done"),
    }
}

#[test]
fn only_the_expected_inode_is_removed() {
    let (vfs, root) = mount();
    let cred = Cred::root();
    let (one, two) = (
        make(&vfs, &root, "one", &CreateSpec::file(0o600)),
        make(&vfs, &root, "two", &CreateSpec::file(0o600)),
    );
    let dir = make(&vfs, &root, "dir", &CreateSpec::directory(0o700));
    let before = vfs.change(&root);
    refused(vfs.remove(&cred, &root, b"one", &two, true), NameError::Changed);
    refused(vfs.remove(&cred, &root, b"none", &two, true), NameError::Changed);
    refused(vfs.remove(&cred, &root, b".", &root, true), NameError::Invalid);
    let other = make(&vfs, &dir, "one", &CreateSpec::file(0o600));
    refused(vfs.remove(&cred, &root, b"dir", &dir, true), NameError::NotEmpty);
    assert_eq!(vfs.change(&root), before, "nothing was done");
    vfs.remove(&cred, &dir, b"one", &other, false).unwrap();
    // `remove` also removes directories.
    let info = vfs.remove(&cred, &root, b"dir", &dir, true).unwrap().unwrap();
    assert_eq!((Some(info.before), Some(info.after)), (before, vfs.change(&root)));
    vfs.remove(&cred, &root, b"one", &one, true).unwrap();
    refused(vfs.remove(&cred, &root, b"one", &one, true), NameError::Changed);
}

#[test]
fn only_expected_inodes_are_renamed_and_replaced() {
    let (vfs, root) = mount();
    let cred = Cred::root();
    let file = |name| make(&vfs, &root, name, &CreateSpec::file(0o600));
    let (a, b, c) = (file("a"), file("b"), file("c"));
    let rename = |moved: &InodeRef, replaced: Option<&InodeRef>| {
        vfs.rename_expected(&cred, (&root, b"a"), (&root, b"b"), Expected { moved, replaced }, true)
    };
    let before = vfs.change(&root);
    refused(rename(&a, None), NameError::Changed);
    refused(rename(&a, Some(&c)), NameError::Changed);
    refused(rename(&c, Some(&b)), NameError::Changed);
    assert_eq!(vfs.change(&root), before, "nothing was done");
    let (info, _) = rename(&a, Some(&b)).unwrap().unwrap();
    assert_eq!((Some(info.before), Some(info.after)), (before, vfs.change(&root)));
    assert_eq!((vfs.stat(&a).nlink, vfs.stat(&b).nlink), (1, 0));
    refused(rename(&a, None), NameError::Changed);
}

#[test]
fn a_name_is_revalidated_with_the_change_attribute_of_its_directory() {
    let (vfs, root) = mount();
    let cred = Cred::root();
    let file = make(&vfs, &root, "f", &CreateSpec::file(0o600));
    let info = vfs.revalidate_name(&cred, &root, b"f", &file).unwrap().unwrap();
    assert_eq!((info.before, Some(info.after)), (info.after, vfs.change(&root)));
    vfs.unlink(&cred, &root, b"f", false).unwrap();
    assert_ne!(vfs.change(&root), Some(info.after), "the directory was queried");
    refused(vfs.revalidate_name(&cred, &root, b"f", &file), NameError::Changed);
    refused(vfs.revalidate_name(&cred, &file, b"f", &file), NameError::NotDirectory);
}

#[test]
fn creation_sets_all_attributes_atomically_and_checks_ownership() {
    let (vfs, root) = mount();
    vfs.set_attr(&Cred::root(), &root, &SetAttr { perm: Some(0o777), ..SetAttr::default() }).unwrap();
    let ann = Cred { groups: vec![50], ..Cred::user(1000, 1000) };
    let create = |spec: &CreateSpec| vfs.create(&ann, &root, b"f", spec, false);
    let spec = CreateSpec::file(0o640);
    refused(create(&CreateSpec { uid: Some(7), ..spec.clone() }), NameError::NotPermitted);
    refused(create(&CreateSpec { gid: Some(7), ..spec.clone() }), NameError::NotPermitted);
    refused(create(&CreateSpec { size: u64::MAX, ..spec.clone() }), NameError::TooLarge);
    refused(create(&CreateSpec { size: 1, ..CreateSpec::directory(0o700) }), NameError::Invalid);
    refused(vfs.lookup(&ann, &root, b"f"), NameError::NotFound);
    let time = |sec| Some(TimeSet::At(Timestamp { sec, nsec: 0 }));
    let whole =
        CreateSpec { uid: Some(1000), gid: Some(50), atime: time(3), mtime: time(4), size: 9000, ..spec };
    let mut told = None;
    let mut claim = |inode: &InodeRef| told = Some(inode.attr());
    let (file, info) = vfs.create_with(&ann, &root, b"f", &whole, true, &mut claim).unwrap();
    let info = info.unwrap();
    assert!(info.before < info.after && Some(info.after) == vfs.change(&root));
    let attr = vfs.stat(&file);
    assert_eq!(told.as_ref(), Some(&attr), "the claim sees all attributes");
    assert_eq!((attr.perm, attr.uid, attr.gid, attr.size), (0o640, 1000, 50, 9000));
    assert_eq!((attr.atime.sec, attr.mtime.sec), (3, 4));
    let mut bytes = [1; 9001];
    assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut bytes).unwrap(), 9000);
    assert!(bytes[..9000].iter().all(|byte| *byte == 0));
    // A set-gid directory determines the group unless the caller gives one.
    let hands_down = SetAttr { gid: Some(60), perm: Some(0o2777), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &root, &hands_down).unwrap();
    let given = |gid| CreateSpec { gid, ..CreateSpec::file(0o600) };
    for (name, spec, gid) in [("x", given(None), 60), ("y", given(Some(60)), 60), ("z", given(Some(50)), 50)]
    {
        let (file, _) = vfs.create(&ann, &root, name.as_bytes(), &spec, false).unwrap();
        assert_eq!(vfs.stat(&file).gid, gid);
    }
}

#[test]
fn setting_an_attribute_returns_change_info() {
    let (vfs, root) = mount();
    let cred = Cred::root();
    let file = make(&vfs, &root, "f", &CreateSpec::file(0o600));
    let mut last = vfs.change(&file).unwrap();
    for given in [Some((&b"one"[..], XattrMode::Create)), Some((b"two", XattrMode::Replace)), None] {
        let info = vfs.change_xattr(&cred, &file, "user.a", given, true).unwrap().unwrap();
        assert!(info.before == last && info.after > last && Some(info.after) == vfs.change(&file));
        last = info.after;
    }
    refused(vfs.change_xattr(&cred, &file, "user.a", None, true), NameError::NoAttribute);
    assert_eq!(vfs.change(&file), Some(last));
    assert_eq!(vfs.change_xattr(&cred, &file, "user.a", Some((b"", XattrMode::Any)), false).unwrap(), None);
}

#[test]
fn rights_agree_with_access() {
    let (vfs, root) = mount();
    let file = make(&vfs, &root, "f", &CreateSpec::file(0o600));
    let owner = SetAttr { uid: Some(1), gid: Some(2), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &file, &owner).unwrap();
    // Each of two groups grants one permission, and none both.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1u16, 6u16, u32::MAX),
        (4, 0, u32::MAX),
        (8, 4, 10),
        (8, 2, 11),
        (16, 6, u32::MAX),
        (32, 1, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let both = Cred { groups: vec![10, 11], ..Cred::user(9, 9) };
    let callers = [Cred::root(), Cred::trusted(), Cred::user(1, 9), Cred::user(9, 2), both.clone()];
    let agree = || {
        for cred in &callers {
            let rights = vfs.rights(cred, &file).unwrap();
            for mask in 0..8 {
                assert_eq!(rights.allow(mask), vfs.access(cred, &file, mask).is_ok(), "{cred:?} {mask}");
            }
        }
    };
    for perm in [0o000, 0o640, 0o751, 0o007] {
        vfs.set_attr(&Cred::root(), &file, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
        agree();
    }
    vfs.set_xattr(&Cred::root(), &file, ACCESS, &acl, XattrMode::Any).unwrap();
    agree();
    let rights = vfs.rights(&both, &file).unwrap();
    assert_eq!([4, 2, 6].map(|mask| rights.allow(mask)), [true, true, false]);
    let fixed = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &file, &fixed).unwrap();
    agree();
}

#[test]
fn an_open_file_may_be_truncated_without_write_permission() {
    let (vfs, root) = mount();
    let file = make(&vfs, &root, "f", &CreateSpec::file(0o4755));
    let ann = Cred::user(1000, 1000);
    let cut = SetAttr { size: Some(5), opened: true, ..SetAttr::default() };
    refused(vfs.set_attr(&ann, &file, &SetAttr { opened: false, ..cut.clone() }), NameError::Access);
    refused(vfs.set_attr(&ann, &file, &SetAttr { perm: Some(0), ..cut.clone() }), NameError::NotPermitted);
    assert_eq!(vfs.stat(&file).size, 0, "the whole request was refused");
    vfs.set_attr(&ann, &file, &cut).unwrap();
    let attr = vfs.stat(&file);
    assert_eq!((attr.size, attr.perm), (5, 0o755), "set-id bits are removed as by a write");
    let fixed = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &file, &fixed).unwrap();
    refused(vfs.set_attr(&ann, &file, &cut), NameError::NotPermitted);
}
