//! The boot-loader inode: what a swap exchanges and keeps; debugfs and the kernel agree.

use crate::common::{debugfs, fsck, mkfs, mount};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SWAP_BOOT: u32 = 0x6611;

fn read(vfs: &Vfs, file: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    let mut at = 0;
    while at < bytes.len() {
        at += vfs.read(&Cred::root(), file, at as u64, &mut bytes[at..]).unwrap();
    }
    bytes
}

/// The data of inode 5 as debugfs reads it.
fn boot_loader(image: &Path) -> Vec<u8> {
    let out = image.with_extension("dump");
    debugfs(image, &format!("dump <5> {}", out.display()));
    std::fs::read(out).unwrap()
}

/// Writes scattered contents, so that an extent tree or a block map needs blocks outside the inode.
fn scattered(vfs: &Vfs, file: &InodeRef, pieces: u64, byte: u8) {
    for nth in 0..pieces {
        vfs.write(&Cred::root(), file, nth * 16384, &[byte; 4096], WriteFlags::empty()).unwrap();
    }
}

fn file(vfs: &Vfs, name: &str) -> InodeRef {
    vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &CreateSpec::file(0o644), false)
        .unwrap()
        .0
}

fn swaps(args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, args, 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let first = file(&vfs, "first");
    scattered(&vfs, &first, 40, b'1');
    // An attribute block stays with its inode, and so does its share of the block count.
    vfs.set_xattr(&cred, &first, "user.big", &[b'x'; 600], XattrMode::Any).unwrap();
    let stage1 = read(&vfs, &first);

    let before = vfs.change(&first).unwrap();
    vfs.ioctl(&cred, &first, SWAP_BOOT, &[]).unwrap();
    let after = vfs.change(&first).unwrap();
    assert!(after > before, "{args:?}: the swap is a change");
    assert_eq!(first.size(), 0, "{args:?}: there was no boot loader");
    assert_eq!(vfs.change(&first).unwrap(), after);

    let second = file(&vfs, "second");
    vfs.write(&cred, &second, 0, b"stage two, short", WriteFlags::empty()).unwrap();
    vfs.ioctl(&cred, &second, SWAP_BOOT, &[]).unwrap();
    assert_eq!(read(&vfs, &second), stage1, "{args:?}: what the first swap put away");
    // The extent tree was swapped too: it can be changed, and its blocks freed.
    vfs.write(&cred, &second, 16384, &[b'3'; 9000], WriteFlags::empty()).unwrap();
    drop((first, second));
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&path, "after two swaps");
    assert_eq!(boot_loader(&path), b"stage two, short", "{args:?}");

    let vfs = mount(&path);
    let root = vfs.root().unwrap();
    let first = vfs.lookup(&cred, &root, b"first").unwrap();
    assert_eq!(vfs.change(&first), Some(after), "{args:?}: and it rests over a remount");
    vfs.ioctl(&cred, &first, SWAP_BOOT, &[]).unwrap();
    assert_eq!(read(&vfs, &first), b"stage two, short");
    drop(first);
    vfs.unlink(&cred, &root, b"second", false).unwrap();
    drop(root);
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&path, "after the third");
    assert_eq!(boot_loader(&path), b"", "{args:?}");
}

#[test]
fn boot_loader_swaps_exchange_only_data() {
    for args in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "inline_data"],
        &["-t", "ext4", "-O", "^has_journal"],
        &["-t", "ext4", "-O", "^metadata_csum", "-I", "128"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2"],
    ] {
        swaps(args);
    }
}

/// Swaps a file with extents and one with a block map.
#[test]
fn a_block_map_and_an_extent_tree_are_swapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext3"], 64 << 20);
    let cred = Cred::root();
    let with_vfs = |work: &dyn Fn(&Arc<Vfs>, &InodeRef)| {
        let vfs = mount(&path);
        let root = vfs.root().unwrap();
        let file = vfs.lookup(&cred, &root, b"f").unwrap_or_else(|_| file(&vfs, "f"));
        work(&vfs, &file);
        drop((file, root));
        vfs.unmount().unwrap();
    };
    with_vfs(&|vfs, file| {
        scattered(vfs, file, 30, b'm');
        vfs.ioctl(&cred, file, SWAP_BOOT, &[]).unwrap();
    });
    fsck(&path, "a map in inode 5");
    let out =
        Command::new("tune2fs").args(["-O", "extents"]).arg(&path).output().expect("tune2fs (e2fsprogs)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    with_vfs(&|vfs, _| {
        let new = file(vfs, "g");
        vfs.ioctl(&cred, &new, SWAP_BOOT, &[]).unwrap();
        assert_eq!(read(vfs, &new).iter().filter(|&&byte| byte == b'm').count(), 30 * 4096);
        scattered(vfs, &new, 30, b'n');
    });
    fsck(&path, "a tree in inode 5");
}

#[test]
fn invalid_swaps_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4"], 32 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let root = vfs.root().unwrap();
    let f = file(&vfs, "f");
    vfs.write(&cred, &f, 0, b"stays", WriteFlags::empty()).unwrap();
    let refused = |cred: &Cred, inode: &InodeRef, why: NameError| match vfs.ioctl(cred, inode, SWAP_BOOT, &[])
    {
        Err(Error::Name(name)) if name == why => {}
        other => panic!("{other:?}, not {why:?}"),
    };
    refused(&Cred::user(1000, 1000), &f, NameError::NotPermitted);
    refused(&Cred { access_checked: true, ..Cred::user(1000, 1000) }, &f, NameError::NotPermitted);
    refused(&cred, &root, NameError::Invalid);
    vfs.link(&cred, &f, &root, b"g", false).unwrap();
    refused(&cred, &f, NameError::Invalid);
    vfs.unlink(&cred, &root, b"g", false).unwrap();
    let set = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
    vfs.set_attr(&cred, &f, &set).unwrap();
    refused(&cred, &f, NameError::NotPermitted);
    assert_eq!(read(&vfs, &f), b"stays");
    drop((f, root));
    vfs.unmount().unwrap();
    fsck(&path, "nothing was swapped");
}

/// The kernel swaps back a swap of ours, and ours undoes a swap of the kernel.
#[test]
fn the_kernel_undoes_a_swap() {
    if !can_loop_mount() || !ivers_oracle::have_programs(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4"], 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let f = file(&vfs, "f");
    vfs.write(&cred, &f, 0, b"ours", WriteFlags::empty()).unwrap();
    vfs.ioctl(&cred, &f, SWAP_BOOT, &[]).unwrap();
    vfs.write(&cred, &f, 0, b"next", WriteFlags::empty()).unwrap();
    drop(f);
    vfs.unmount().unwrap();
    drop(vfs);
    {
        let kernel = LoopMount::new(&path, "").unwrap();
        let script = "import fcntl,sys; fcntl.ioctl(open(sys.argv[1],'r+'), 0x6611)";
        let f = kernel.path().join("f");
        let out = Command::new("python3").args(["-c", script]).arg(&f).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(std::fs::read(&f).unwrap(), b"ours");
        kernel.unmount().unwrap();
    }
    fsck(&path, "after the kernel's swap");
    assert_eq!(boot_loader(&path), b"next");
    let vfs = mount(&path);
    let f = vfs.lookup(&cred, &vfs.root().unwrap(), b"f").unwrap();
    vfs.ioctl(&cred, &f, SWAP_BOOT, &[]).unwrap();
    assert_eq!(read(&vfs, &f), b"next");
    drop(f);
    vfs.unmount().unwrap();
    fsck(&path, "after ours");
    assert_eq!(boot_loader(&path), b"ours");
}
