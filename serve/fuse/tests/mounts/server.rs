//! A mount of a network filesystem: what others change on the server is visible at once, and the server
//! decides.

use crate::common::*;
use ivers_fuse::FuseOptions;
use ivers_remotefs::RemoteFs;
use ivers_vfs::*;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    // A file that stays open.
    let open = std::fs::File::open(&path).unwrap();
    let mut bytes = [0; 7];
    for contents in [b"newest!", b"changed", b"another"] {
        write(contents);
        std::os::unix::fs::FileExt::read_exact_at(&open, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, contents);
    }
    drop(open);
    if is_root() {
        assert!(!as_nobody("cat", &[path.to_str().unwrap()]).status.success(), "mode 0600 on the server");
    }
    server.unlink(&Cred::root(), &server.root().unwrap(), b"f", false).unwrap();
    assert!(!path.exists());
}

/// A mount of a remote filesystem, and what its driver answers.
fn remote_mount() -> (Arc<Vfs>, Mounted) {
    let remote = RemoteFs::new(mem_vfs(1 << 20), 0, Box::new(|_| Ok(()))).unwrap();
    let vfs = Vfs::mount(Arc::new(remote), MountOptions::default()).unwrap();
    let options = FuseOptions { allow_other: is_root(), ..FuseOptions::default() };
    (vfs.clone(), mount_vfs(vfs, options))
}

/// Writes the file `f` through the mount, and returns its inode in the VFS.
fn written_file(vfs: &Arc<Vfs>, here: &Mounted) -> InodeRef {
    std::fs::write(here.path("f"), b"contents").unwrap();
    vfs.resolve(&Cred::root(), "/f", true).unwrap()
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "waited for too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn whole(owner: u64, exclusive: bool) -> LockRequest {
    LockRequest { owner: LockOwner(owner), range: 0..u64::MAX, exclusive, waits: false }
}

#[test]
fn locks_are_those_of_the_server() {
    use rustix::fs::{FlockOperation, fcntl_lock, flock};
    if !can_mount() {
        return;
    }
    let (vfs, here) = remote_mount();
    let (cred, path, inode) = (Cred::root(), here.path("f"), written_file(&vfs, &here));
    let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let (file, other) = (open(), open());
    // Someone elsewhere has the lock.
    vfs.lock(&cred, &inode, &whole(7, true)).unwrap();
    let again = Err(rustix::io::Errno::AGAIN);
    assert_eq!(flock(&file, FlockOperation::NonBlockingLockShared), again);
    assert_eq!(fcntl_lock(&file, FlockOperation::NonBlockingLockShared), again);
    vfs.unlock(&cred, &inode, LockOwner(7), 0..u64::MAX).unwrap();

    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let found = vfs.test_lock(&cred, &inode, &whole(7, false)).unwrap();
    assert_eq!(found, Some(LockConflict { range: 0..u64::MAX, exclusive: true }));
    assert_eq!(flock(&other, FlockOperation::NonBlockingLockShared), again, "another open of this program");
    flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
    drop((file, other));
    // The last close may be told after it returned.
    wait_until(|| vfs.lock(&cred, &inode, &whole(7, true)).is_ok());
    vfs.unlock(&cred, &inode, LockOwner(7), 0..u64::MAX).unwrap();

    // fcntl(2): the close of any descriptor ends the locks of the process.
    let (file, other) = (open(), open());
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(vfs.lock(&cred, &inode, &whole(7, false)).is_err());
    drop(other);
    vfs.lock(&cred, &inode, &whole(7, false)).unwrap();
    let to_read = std::fs::File::open(&path).unwrap();
    let refused = flock(&to_read, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::BADF), "not open for writing");
}

#[test]
fn a_program_waits_for_a_lock_until_it_is_free_or_the_program_is_killed() {
    use rustix::fs::{FlockOperation, flock};
    if !can_mount() {
        return;
    }
    let (vfs, here) = remote_mount();
    let (cred, path, inode) = (Cred::root(), here.path("f"), written_file(&vfs, &here));
    vfs.lock(&cred, &inode, &whole(7, true)).unwrap();
    let wait = || {
        let mut flock = std::process::Command::new("flock");
        flock.args(["-x", path.to_str().unwrap(), "-c", "exit 42"]);
        flock.spawn().unwrap()
    };
    let (mut first, mut killed) = (wait(), wait());
    std::thread::sleep(Duration::from_millis(500));
    assert!(first.try_wait().unwrap().is_none() && killed.try_wait().unwrap().is_none());
    killed.kill().unwrap();
    // It would never end if its wait were not interrupted.
    assert!(!killed.wait().unwrap().success());
    assert!(first.try_wait().unwrap().is_none());
    vfs.unlock(&cred, &inode, LockOwner(7), 0..u64::MAX).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(42));

    // An unlock by a program of this mount ends the wait of another one at once.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut waits = wait();
    std::thread::sleep(Duration::from_secs(4));
    assert!(waits.try_wait().unwrap().is_none());
    let before = Instant::now();
    flock(&file, FlockOperation::Unlock).unwrap();
    assert_eq!(waits.wait().unwrap().code(), Some(42));
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}: it was in its longest pause", before.elapsed());
}
