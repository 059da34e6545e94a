//! Damages a base image, mounts and walks it, and makes the calls of the input.

use crate::base::BASES;
use crate::damage::damaged;
use crate::input::{Call, Flags};
use crate::place::Class;
use ivers_block::{Budget, Device};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The bound of the caches: a damaged image must not need more.
const CACHE_BYTES: u64 = 8 << 20;
/// The largest number of inodes that a walk visits.
const MAX_VISITED: usize = 160;
/// The largest number of names read from one directory.
const MAX_NAMES: usize = 300;

/// Runs an input whose patches hit structures of `classes`.
pub fn run(input: &[u8], classes: &[Class]) {
    let (device, flags, mut rest) = damaged(&BASES, input, classes);
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

/// A bound for the memory of a checker.
pub(crate) fn memory() -> Memory {
    Memory::new(Arc::new(Budget::new(CACHE_BYTES)), "")
}

/// The options with which an image is opened. Its caches are bounded.
pub(crate) fn driver_options(read_only: bool) -> DriverOptions {
    let budget = Arc::new(Budget::new(CACHE_BYTES));
    DriverOptions { read_only, budget, ..DriverOptions::default() }
}

/// Runs the checker on a base image that the input damages. Its findings do not matter: it must end.
pub fn check(input: &[u8], classes: &[Class]) {
    let (device, ..) = damaged(&BASES, input, classes);
    let _ = ivers_ext4::check::check(device, memory(), "image");
}

/// Mounts and uses the image, and closes it or stops as in a crash. Then mounts the result.
pub(crate) fn mount_twice(flags: Flags, calls: &[Call], mount: impl Fn(Flags) -> Option<Arc<Vfs>>) {
    if let Some(vfs) = mount(flags) {
        session(&vfs, calls);
        if flags.crash() {
            drop(vfs);
        } else {
            let _ = vfs.unmount();
        }
    }
    if !flags.read_only()
        && !calls.is_empty()
        && let Some(vfs) = mount(Flags(0))
    {
        session(&vfs, &[]);
        let _ = vfs.unmount();
    }
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only());
    let budget = common.budget.clone();
    let options =
        OpenOptions { common, no_replay: flags.no_replay() && flags.read_only(), ..OpenOptions::default() };
    let fs = Ext4::open(device.clone(), options).ok()?;
    on_vfs(fs, flags, budget)
}

/// Mounts an opened filesystem.
pub(crate) fn on_vfs(fs: Arc<dyn FileSystem>, flags: Flags, budget: Arc<Budget>) -> Option<Arc<Vfs>> {
    let options = MountOptions {
        cache_bytes: CACHE_BYTES,
        budget: Some(budget),
        background: false,
        read_only: flags.read_only(),
        ..MountOptions::default()
    };
    Vfs::mount(fs, options).ok()
}

/// An inode and the name under which it was found.
struct Seen {
    inode: InodeRef,
    dir: InodeRef,
    name: Vec<u8>,
}

/// Walks a mount and makes these calls in it.
pub(crate) fn session(vfs: &Arc<Vfs>, calls: &[Call]) {
    let Ok(root) = vfs.root() else { return };
    let _ = vfs.stat_fs();
    let mut seen = vec![Seen { inode: root.clone(), dir: root.clone(), name: b"..".to_vec() }];
    walk(vfs, &root, 0, &mut seen);
    for (number, call) in calls.iter().enumerate() {
        let on = usize::from(call.on) % seen.len();
        make(vfs, &mut seen, on, *call, number);
    }
    let _ = vfs.sync();
}

fn names_of(vfs: &Arc<Vfs>, dir: &InodeRef, cursor: u64) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let most = vfs.info().name_max as usize;
    let _ = vfs.readdir(&Cred::root(), dir, cursor, &mut |entry| {
        assert!(
            !entry.name.is_empty() && entry.name.len() <= most && !entry.name.contains(&b'/'),
            "a name of {} bytes",
            entry.name.len()
        );
        names.push(entry.name.to_vec());
        if names.len() < MAX_NAMES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    names
}

fn walk(vfs: &Arc<Vfs>, dir: &InodeRef, depth: u32, seen: &mut Vec<Seen>) {
    let cred = Cred::root();
    for name in names_of(vfs, dir, 0).iter().filter(|name| *name != b"." && *name != b"..") {
        if seen.len() >= MAX_VISITED {
            return;
        }
        let Ok(inode) = vfs.lookup(&cred, dir, name) else { continue };
        // Other names of an inode show nothing new.
        if seen.iter().all(|other| other.inode.ino != inode.ino) {
            look(vfs, &inode);
        }
        seen.push(Seen { inode: inode.clone(), dir: dir.clone(), name: name.clone() });
        if inode.kind == FileType::Directory && depth < 4 {
            walk(vfs, &inode, depth + 1, seen);
        }
    }
}

/// Reads everything of an inode, large files in part.
fn look(vfs: &Arc<Vfs>, inode: &InodeRef) {
    let cred = Cred::root();
    let attr = vfs.stat(inode);
    vfs.change(inode);
    let mut buf = [0; 5000];
    for offset in [0, 4096, 12 << 10, 270 << 10, 68 << 20, attr.size.saturating_sub(100), attr.size / 2] {
        let _ = vfs.read(&cred, inode, offset, &mut buf);
    }
    let _ = vfs.read_link(&cred, inode);
    for name in vfs.list_xattr(&cred, inode).unwrap_or_default() {
        let _ = vfs.get_xattr(&cred, inode, name);
    }
    let mut at = 0;
    for _ in 0..12 {
        let Ok(data) = vfs.seek_data(inode, at) else { break };
        let Ok(hole) = vfs.seek_hole(inode, data) else { break };
        assert!(at <= data && data < hole, "data at {data} ends at {hole}");
        at = hole;
    }
    let Ok((pieces, size)) = vfs.read_pieces(&Cred::root(), inode, 0..u64::MAX, 12, 20_000) else { return };
    let mut at = 0;
    for piece in pieces {
        let (from, to) = match piece {
            Piece::Hole(range) => (range.start, range.end),
            Piece::Data(from, bytes) => (from, from + bytes.len() as u64),
        };
        assert!(
            from == at && from < to && to <= size,
            "an extent from {from} to {to} does not follow {at}, in {size} bytes"
        );
        at = to;
    }
}

/// Makes one call, which can fail.
fn make(vfs: &Arc<Vfs>, seen: &mut Vec<Seen>, on: usize, call: Call, number: usize) {
    let cred = Cred::root();
    let Seen { inode, dir, name } = &seen[on];
    let (inode, dir, name) = (inode.clone(), dir.clone(), name.clone());
    let arg = u64::from(call.arg);
    let offset = arg << (call.what >> 5);
    let parent = if inode.kind == FileType::Directory { inode.clone() } else { dir.clone() };
    let fresh =
        [&b"new"[..], number.to_string().as_bytes(), &vec![b'x'; usize::from(call.arg % 240)]].concat();
    let create = |spec: &CreateSpec| vfs.create(&cred, &parent, &fresh, spec, true).ok();
    let made = match call.what % 24 {
        0 => {
            let at = Some(TimeSet::At(Timestamp { sec: i64::from(call.arg) << 20, nsec: 5 }));
            let size = if call.what & 0x80 == 0 { 0 } else { offset };
            create(&CreateSpec { uid: Some(u32::from(call.arg)), mtime: at, size, ..CreateSpec::file(0o644) })
        }
        1 => create(&CreateSpec::directory(0o755)),
        2 => create(&CreateSpec::symlink(vec![b't'; usize::from(call.arg % 1100) + 1])),
        3 if call.what & 0x80 != 0 => {
            let _ = vfs.remove(&cred, &dir, &name, &inode, true);
            None
        }
        3 => {
            let _ = vfs.unlink(&cred, &dir, &name, true);
            None
        }
        4 => {
            let _ = vfs.rmdir(&cred, &dir, &name, true);
            None
        }
        5 if call.what & 0x80 != 0 => {
            let meant = Expected { moved: &inode, replaced: None };
            let _ = vfs.rename_expected(&cred, (&dir, &name), (&parent, &fresh), meant, true);
            None
        }
        5 => {
            let _ = vfs.rename(&cred, &dir, &name, &parent, &fresh, RenameFlags::empty(), true);
            None
        }
        6 => {
            let other = &seen[usize::from(call.arg) % seen.len()];
            let flags = if call.arg & 0x100 == 0 { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            let (to, new) = (other.dir.clone(), other.name.clone());
            let _ = vfs.rename(&cred, &dir, &name, &to, &new, flags, true);
            None
        }
        7 => {
            let _ = vfs.link(&cred, &inode, &seen[usize::from(call.arg) % seen.len()].dir, &fresh, false);
            None
        }
        9 | 19 if call.what & 0x80 != 0 => {
            let other = seen[usize::from(call.arg) % seen.len()].inode.clone();
            let block = u64::from(vfs.stat_fs().map_or(1024, |figures| figures.block_size));
            let (from, to, len) = (u64::from(call.arg >> 12), u64::from(call.arg >> 8 & 15), call.arg & 31);
            let (from, to, len) = (from * block, to * block, u64::from(len) * block);
            if call.what % 24 == 9 {
                let _ = vfs.clone_range(&cred, &inode, from, &other, to, len);
            } else {
                let _ = vfs.copy_range(&cred, &inode, from, &other, to, len + 1);
            }
            None
        }
        8 | 9 => {
            let data = vec![call.what; usize::from(call.arg % 9000) + 1];
            let flags = if call.what & 0x20 == 0 { WriteFlags::empty() } else { WriteFlags::DIRECT };
            let _ = vfs.write(&cred, &inode, offset, &data, flags);
            None
        }
        10 => {
            let _ = vfs.write(&cred, &inode, 0, &[1; 300], WriteFlags::APPEND);
            None
        }
        11 => {
            let set = SetAttr { size: Some(offset), ..SetAttr::default() };
            let _ = vfs.set_attr(&cred, &inode, &set);
            None
        }
        12 => {
            let set = SetAttr {
                perm: Some(u32::from(call.arg) & 0o7777),
                uid: Some(u32::from(call.arg) << 8),
                project: Some(arg as u32),
                mtime: Some(TimeSet::At(Timestamp { sec: i64::from(call.arg) << 20, nsec: 5 })),
                ..SetAttr::default()
            };
            let _ = vfs.set_attr(&cred, &inode, &set);
            None
        }
        13..=17 => {
            let mode = [
                FallocateMode::empty(),
                FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
                FallocateMode::ZERO_RANGE,
                FallocateMode::COLLAPSE_RANGE,
                FallocateMode::INSERT_RANGE,
            ][usize::from(call.what % 24) - 13];
            let block = u64::from(vfs.stat_fs().map_or(1024, |figures| figures.block_size));
            let (start, len) = (u64::from(call.arg & 0xFF) * block, u64::from(call.arg >> 8) * block);
            let odd = u64::from(call.what >> 5);
            let _ = vfs.fallocate(&cred, &inode, mode, start + odd, len + odd);
            None
        }
        18 | 19 => {
            let name = format!("user.n{}", call.arg % 5);
            let len = usize::from(call.arg) >> (call.what >> 5);
            let _ = vfs.set_xattr(&cred, &inode, name.as_bytes(), &vec![7; len], XattrMode::Any);
            None
        }
        20 => {
            let names = vfs.list_xattr(&cred, &inode).unwrap_or_default();
            if let Some(name) = names.get(usize::from(call.arg) % names.len().max(1)) {
                let _ = vfs.remove_xattr(&cred, &inode, name);
            }
            None
        }
        21 => {
            let cursor = arg << (call.what >> 2);
            let _ = names_of(vfs, &inode, cursor);
            let entries = vfs.list(&Cred::root(), &inode, cursor, 16).unwrap_or_default();
            assert!(entries.len() <= 16 && entries.iter().all(|entry| entry.next < 1 << 63 | 1 << 32));
            None
        }
        22 if call.what & 0x80 != 0 => {
            let _ = vfs.commit(&[&dir, &inode]);
            None
        }
        22 => {
            let _ = vfs.fsync(&inode, call.arg & 1 != 0);
            None
        }
        _ => vfs.create_unnamed(&cred, &parent, &CreateSpec::file(0o600)).ok().map(|inode| (inode, None)),
    };
    if let Some((inode, _)) = made
        && seen.len() < MAX_VISITED + crate::input::MAX_CALLS
    {
        seen.push(Seen { inode, dir: parent, name: fresh });
    } else {
        look(vfs, &inode);
    }
}
