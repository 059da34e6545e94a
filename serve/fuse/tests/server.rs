//! A mount of a network filesystem: what others change on the server is visible at once, and the server
//! decides.

mod common;

use common::*;
use ivers_fuse::FuseOptions;
use ivers_remotefs::RemoteFs;
use ivers_vfs::*;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

#[test]
fn changes_on_the_server_are_seen_at_once() {
    if !can_mount() {
        return;
    }
    let server = mem_vfs(1 << 20);
    let mount = |fs: Arc<dyn FileSystem>| Vfs::mount(fs, MountOptions::default()).unwrap();
    let remote = RemoteFs::new(server.clone(), 0, Box::new(|_| Ok(()))).unwrap();
    let options = FuseOptions { allow_other: is_root(), ..FuseOptions::default() };
    let here = mount_vfs(mount(Arc::new(remote)), options);
    let path = here.path("f");
    std::fs::write(&path, b"one").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one");

    let theirs = server.resolve(&Cred::root(), "/f", true).unwrap();
    let write = |bytes: &[u8]| server.write(&Cred::root(), &theirs, 0, bytes, WriteFlags::empty()).unwrap();
    write(b"longer");
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    server.set_attr(&Cred::root(), &theirs, &set).unwrap();
    let seen = std::fs::metadata(&path).unwrap();
    assert_eq!((seen.len(), seen.mode() & 0o777), (6, 0o600));
    assert_eq!(std::fs::read(&path).unwrap(), b"longer");
    write(b"as long");
    write(b"newest!");
    assert_eq!(std::fs::read(&path).unwrap(), b"newest!");
    if is_root() {
        assert!(!as_nobody("cat", &[path.to_str().unwrap()]).status.success(), "mode 0600 on the server");
    }
    server.unlink(&Cred::root(), &server.root().unwrap(), b"f", false).unwrap();
    assert!(!path.exists());
}
