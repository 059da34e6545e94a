//! Every request to the server has a caller.

use super::*;

fn user() -> Cred {
    Cred::user(7, 7)
}

#[test]
fn reads_go_to_the_server_with_their_caller() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let root = it.client.root().unwrap();
    let spec = CreateSpec { kind: FileType::Symlink, ..CreateSpec::symlink("f") };
    let link = it.client.create(&Cred::root(), &root, b"link", &spec, false).unwrap().0;
    let spec = CreateSpec::directory(0o755);
    let dir = it.client.create(&Cred::root(), &root, b"dir", &spec, false).unwrap().0;
    let attribute = || it.client.set_xattr(&Cred::root(), &file, "user.a", b"1", XattrMode::Any);
    attribute().unwrap();
    write(&it.client, &file, b"bytes");
    it.client.fsync(&file, false).unwrap();
    it.fs.invalidate(file.ino);

    it.client.read(&user(), &file, 0, &mut [0; 5]).unwrap();
    it.client.read_link(&user(), &link).unwrap();
    it.client.readdir(&user(), &dir, 0, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    it.client.lookup(&user(), &dir, b"..").unwrap();
    it.client.get_xattr(&user(), &file, "user.a").unwrap();
    it.client.list_xattr(&user(), &file).unwrap();
    for what in ["read", "readlink", "readdir", "lookupp", "getxattr", "listxattrs"] {
        assert_eq!(it.fs.last_caller(what), Some(user()), "{what}");
    }
    let user = user();
    it.client
        .lock(&user, &file, &LockRequest { owner: LockOwner(1), range: 0..1, exclusive: false, waits: false })
        .unwrap();
    it.client.unlock(&user, &file, LockOwner(1), 0..1).unwrap();
    let set = SetAttr { perm: Some(0o606), ..SetAttr::default() };
    it.client.set_attr(&Cred::root(), &file, &set).unwrap();
    it.client.fallocate(&user, &file, FallocateMode::empty(), 0, 8192).unwrap();
    for what in ["lock", "unlock", "allocate"] {
        assert_eq!(it.fs.last_caller(what), Some(user.clone()), "{what}");
    }
}

#[test]
fn the_server_refuses_bytes_to_a_caller_without_permission() {
    let it = both(|_| Ok(()));
    let ours = create(&it.client, "f");
    write(&it.client, &ours, b"secret");
    it.client.fsync(&ours, false).unwrap();
    it.fs.invalidate(ours.ino);
    let theirs = it.server.resolve(&Cred::root(), "/f", true).unwrap();
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    it.server.set_attr(&Cred::root(), &theirs, &set).unwrap();
    let refused = it.client.read(&user(), &ours, 0, &mut [0; 6]);
    assert!(matches!(refused, Err(Error::Name(NameError::Access))));
    assert_eq!(read(&it.client, &ours), b"secret");
}

#[test]
fn nobody_asks_for_a_query_and_write_back_is_done_for_the_opener() {
    let it = both(|_| Ok(()));
    let file = create(&it.client, "f");
    let set = SetAttr { perm: Some(0o666), ..SetAttr::default() };
    it.client.set_attr(&Cred::root(), &file, &set).unwrap();
    it.client.change(&file).unwrap();
    assert_eq!(it.fs.last_caller("getattr"), Some(Cred::system()));
    assert_ne!(Cred::system(), Cred::trusted(), "a server must not take it for user 0");
    it.client.open(&user(), &file, OpenMode::WRITE).unwrap();
    it.client.write(&user(), &file, 0, b"by a user", WriteFlags::empty()).unwrap();
    it.client.sync().unwrap();
    assert_eq!(it.fs.last_caller("write"), Some(user()));
    it.client.close(&file, OpenMode::WRITE);
}
