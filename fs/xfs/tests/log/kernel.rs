//! Logs that ivers wrote and Linux replays, and the other way round.

use crate::common::*;
use crate::intents::Free;
use crate::volume::{Volume, superblock, writable};
use ivers_block::{BlockNo, Unit};
use ivers_journal::LogObject;
use ivers_oracle::kernel::can_loop_mount;
use ivers_oracle::{LoopMount, have_programs, output, run, said};
use ivers_vfs::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Files of all forms that inodes have, and blocks of all kinds.
const FILL: &str = r#"
set -e
for i in $(seq 200); do echo $i > file-$i; done
mkdir many; for i in $(seq 600); do : > many/a-name-that-fills-blocks-$i; done
ln -s short s; mknod null c 1 3; mkfifo fifo
xfs_io -f -c 'truncate 64m' fragments
for i in $(seq 0 2 400); do echo "pwrite -q $((i * 65536)) 65536"; done | xfs_io fragments
for i in 1 2 3 4; do ln -s $(printf "$i%.0s" $(seq 1000)) long-$i; done
"#;

fn has_tools() -> bool {
    have_xfsprogs() && have_programs(&["xfs_io", "xfs_logprint"]) && can_loop_mount()
}

/// Makes an image that Linux filled.
fn image(path: &Path, args: &[&str]) {
    mkfs(path, args, None);
    let mounted = LoopMount::new(path, "").unwrap();
    let filled = Command::new("sh").args(["-c", FILL]).current_dir(mounted.path()).output().unwrap();
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    for number in 0..40 {
        let value = vec![b'v'; 10 * number];
        xattr::set(mounted.path().join(format!("file-{number}")).as_path(), "user.a", &value).ok();
        xattr::set(mounted.path().join("many"), format!("user.value-{number}"), &value).unwrap();
    }
    mounted.unmount().unwrap();
}

fn inodes(vfs: &Arc<Vfs>) -> Vec<u64> {
    let mut inodes = vec![vfs.root().unwrap().ino.0];
    for (path, _) in our_tree(vfs, false).unwrap() {
        inodes.push(vfs.resolve(&Cred::root(), &path, false).unwrap().ino.0);
    }
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

/// The block of the target of a link that starts with this digit. Large inodes have the target inside.
fn target(volume: &Volume, digit: u8) -> Option<Unit> {
    let is_target = |unit: &Unit| volume.cache.get_unit(unit).unwrap().read()[56] == digit;
    volume.structures(&[b"XSLM"]).into_iter().find(is_target)
}

/// Logs something of each kind. Nothing is written in place.
fn change(volume: &Volume, inodes: &[u64]) {
    for (index, part) in inodes.chunks(100).enumerate() {
        let handle = volume.begin();
        for &ino in part {
            volume.change(&handle, ino, |inode| inode.set_mtime(1_000_000_000 + ino % 1000));
        }
        let tid = handle.tid();
        drop(handle);
        if index % 3 == 0 {
            volume.journal.commit(tid).unwrap();
        }
    }
    // Contents that users see: forks in inodes, and blocks.
    let handle = volume.begin();
    for &ino in inodes {
        volume.change(&handle, ino, |inode| match inode.bytes[2] >> 4 {
            0xA if inode.bytes[176..].starts_with(b"short") => inode.put(176, b"SHORT"),
            // A device of characters: the lowest byte of its number.
            0x2 => inode.put(179, &[5]),
            _ => {}
        });
    }
    let (one, two) = (target(volume, b'1'), target(volume, b'2'));
    for unit in [&one, &two].into_iter().flatten() {
        let buffer = volume.cache.get_unit(unit).unwrap();
        handle.modify_range(&buffer, 500..600, |bytes| bytes.fill(b'n'));
    }
    drop(handle);
    volume.journal.commit_all().unwrap();
    // As if the second target were freed: its change must not be replayed.
    let handle = volume.begin();
    two.iter().for_each(|unit| handle.forget_unit(unit));
    // Structures in whole, and parts of them.
    let magics = [b"XDB3", b"XDD3", b"XDF3", b"AB3B", b"AB3C", b"IAB3", b"FIB3", b"RMB3", b"R3FC", b"BMA3"];
    for (index, unit) in volume.structures(&magics).iter().enumerate().take(60) {
        let buffer = volume.cache.get_unit(unit).unwrap();
        let len = buffer.read().len();
        let range = if index % 2 == 0 { 0..len } else { len / 3..len / 2 };
        handle.modify_range(&buffer, range, |_| ());
    }
    // A cluster in whole, as a new one is logged, and a link between unlinked inodes.
    let (unit, offset) = volume.place(inodes[0]);
    let buffer = volume.cache.get_unit(&unit).unwrap();
    handle.modify(&buffer, |_| ());
    let (unit, _) = volume.place(*inodes.last().unwrap());
    let other = volume.cache.get_unit(&unit).unwrap();
    handle.modify_range(&other, offset + 96..offset + 100, |_| ());
    // Heads of groups: several buffers in a block, or one.
    for ag in 0..volume.sb.ag_count {
        for block in 0..(4 * volume.sb.sector_size).div_ceil(volume.sb.block_size) {
            let block: BlockNo = volume.sb.ag_block(ag, block).unwrap();
            let buffer = volume.cache.get(block).unwrap();
            handle.modify(&buffer, |_| ());
        }
    }
    drop(handle);
    volume.journal.commit_all().unwrap();
}

/// What Linux shows after the changes.
fn check_changed(tree: &Tree, vfs_inodes: usize, what: &str) {
    let is_changed = |line: &&String| line.contains("(10000");
    let changed = tree.values().filter(is_changed).count();
    assert_eq!(changed, tree.len(), "{what}");
    assert!(changed + 1 >= vfs_inodes, "{what}");
    let target = |name: &str| &tree[name];
    assert_ne!(target("/long-1"), target("/long-3"), "{what}");
    check_forks(tree, what);
    let digest_of = |byte: u8| format!("data={:x}", digest(&[byte; 1000]));
    assert!(target("/long-2").contains(&digest_of(b'2')), "{what}: a freed buffer was replayed");
    let is_unchanged = target("/long-1").contains(&digest_of(b'1'));
    assert_eq!(is_unchanged, what == "inodes of 2 KiB", "{what}: a buffer was not replayed");
}

#[test]
fn linux_replays_what_ivers_logs() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in V5 {
        let path = dir.path().join("image");
        image(&path, args);
        let inodes = inodes(&mount(&path));
        let (volume, transactions) = Volume::open(writable(&path));
        assert_eq!(transactions, None, "{name}: Linux unmounted it");
        change(&volume, &inodes);
        assert_eq!(volume.journal.stats().checkpoint_blocks, 0, "{name}: something is in place");
        drop(volume);

        let printed = output("xfs_logprint", ["-t".as_ref(), path.as_os_str()]).unwrap();
        let text = said(&printed);
        assert!(printed.status.success() && text.contains("<DIRTY>"), "{name}: {text}");
        assert!(text.contains("TRANS: tid:"), "{name}: {text}");
        let printed = output("xfs_logprint", [path.as_os_str()]).unwrap();
        assert!(printed.status.success(), "{name}: {}", said(&printed));
        let ours = our_tree(&mount(&path), true).unwrap();
        let mounted = LoopMount::new(&path, "").unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let theirs = kernel_tree(mounted.path());
        mounted.unmount().unwrap();
        check_changed(&theirs, inodes.len(), name);
        assert_same(&ours, &theirs, name);
        repair_finds_nothing(&path, name);
    }
}

#[test]
fn a_clean_log_is_clean_to_linux() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in V5 {
        let path = dir.path().join("image");
        image(&path, args);
        let inodes = inodes(&mount(&path));
        // The second session continues the log of the first.
        for _ in 0..2 {
            let (volume, transactions) = Volume::open(writable(&path));
            assert_eq!(transactions, None, "{name}");
            change(&volume, &inodes);
            volume.journal.shutdown().unwrap();
        }
        repair_finds_nothing(&path, name);
        let vfs = mount(&path);
        let ours = our_tree(&vfs, true).unwrap();
        vfs.unmount().unwrap();
        let mounted = LoopMount::new(&path, "ro,norecovery").unwrap();
        assert_same(&ours, &kernel_tree(mounted.path()), name);
        mounted.unmount().unwrap();
        let mounted = LoopMount::new(&path, "").unwrap();
        let theirs = kernel_tree(mounted.path());
        mounted.unmount().unwrap();
        check_in_place(&theirs, name);
        assert_same(&ours, &theirs, name);
        repair_finds_nothing(&path, name);
    }
}

/// What is in the inodes themselves.
fn check_forks(tree: &Tree, what: &str) {
    assert!(tree["/s"].contains(&format!("data={:x}", digest(b"SHORT"))), "{what}: {}", tree["/s"]);
    assert!(tree["/null"].contains("rdev=105 "), "{what}: {}", tree["/null"]);
}

/// What was freed is not written in place either.
fn check_in_place(tree: &Tree, what: &str) {
    check_forks(tree, what);
    let old = format!("data={:x}", digest(&[b'2'; 1000]));
    assert!(tree["/long-2"].contains(&old), "{what}: a freed buffer was written");
    assert!(tree.values().all(|line| line.contains("(10000")), "{what}");
}

/// Changes after which Linux stops: files of all forms are made, changed, renamed and deleted.
const CHANGE: &str = r#"
set -e
rm -r many file-1* long-2; mkdir -p new/deep; mv file-2* new; chmod 600 fragments
for i in $(seq 500); do echo $i > new/deep/a-new-name-$i; done; rm new/deep/a-new-name-3*
for i in $(seq 200); do ln new/file-20 new/link-$i; done
ln -s $(printf 'y%.0s' $(seq 1000)) new/target; truncate -s 1000000 fragments
"#;

#[test]
fn logs_of_linux_are_replayed_in_place() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    const KINDS: [&str; 7] = [
        "default",
        "all features of 6.1",
        "crc alone",
        "blocks of 1 KiB",
        "blocks of 64 KiB",
        "sectors of 4096",
        "log records of 256 KiB",
    ];
    for (name, args) in V5.iter().filter(|(name, _)| KINDS.contains(name)) {
        for how in ["shutdown -f", "shutdown"] {
            let what = format!("{name}, {how}");
            let path = dir.path().join("image");
            image(&path, args);
            let mounted = LoopMount::new(&path, "").unwrap();
            run("sh", ["-c", &format!("cd {}; {CHANGE}", mounted.path().display())]).unwrap();
            if how == "shutdown" {
                run("sync", ["-f".as_ref(), mounted.path().as_os_str()]).unwrap();
            }
            let point = mounted.path().to_str().unwrap().to_owned();
            run("xfs_io", ["-x", "-c", how, &point]).unwrap();
            mounted.unmount().unwrap();
            let copy = dir.path().join("copy");
            copy_image(&path, &copy);
            LoopMount::new(&copy, "").unwrap().unmount().unwrap();
            let mounted = LoopMount::new(&copy, "ro").unwrap();
            let theirs = kernel_tree(mounted.path());
            mounted.unmount().unwrap();

            let vfs = mount(&path);
            let free_blocks = vfs.stat_fs().unwrap().blocks_free;
            let facts = vfs.fs().describe();
            let (_, counts) = facts.iter().find(|(name, _)| name == "inodes").unwrap();
            let (inodes, free) = counts.split_once(", ").unwrap();
            let free = free.split(' ').next().unwrap();
            vfs.unmount().unwrap();
            drop(vfs);
            let (volume, transactions) = Volume::open(writable(&path));
            assert!(transactions.is_some_and(|count| count > 0), "{what}: nothing was replayed");
            volume.store_counts(inodes.parse().unwrap(), free.parse().unwrap(), free_blocks);
            volume.journal.shutdown().unwrap();
            drop(volume);
            repair_finds_nothing(&path, &what);
            assert_same(&our_tree(&mount(&path), true).unwrap(), &theirs, &what);
            // Reading changes times.
            let mounted = LoopMount::new(&path, "ro").unwrap();
            assert_same(&kernel_tree(mounted.path()), &theirs, &what);
            mounted.unmount().unwrap();
            LoopMount::new(&path, "").unwrap().unmount().unwrap();
            repair_finds_nothing(&path, &what);
        }
    }
}

/// The first extent of a file: its block as the format counts, and its length.
fn first_extent(inode: &[u8]) -> (u64, u32) {
    let word = |at: usize| u64::from_be_bytes(inode[176 + at..][..8].try_into().unwrap());
    let (high, low) = (word(0), word(8));
    ((high & 0x1FF) << 43 | low >> 21, (low & 0x1F_FFFF) as u32)
}

#[test]
fn linux_finishes_intents_without_a_done_item() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in V5.iter().filter(|(name, _)| ["default", "blocks of 1 KiB"].contains(name)) {
        let path = dir.path().join("image");
        image(&path, args);
        let vfs = mount(&path);
        let ino = |path: &str| vfs.resolve(&Cred::root(), path, false).unwrap().ino.0;
        let (whole, cut) = (ino("/file-150"), ino("/file-151"));
        vfs.unmount().unwrap();
        drop(vfs);
        let free_before = free_blocks(&path);
        let (volume, _) = Volume::open(writable(&path));
        // An intent that is done: the file keeps its block.
        let intent = |number: u64, ino: u64| {
            let (start, blocks) = first_extent(&volume.inode(ino).bytes);
            Arc::new(Free { number, start, blocks })
        };
        let (done, left) = (intent(0x1_0000_0001, whole), intent(0x1_0000_0002, cut));
        let handle = volume.begin();
        let object: Arc<dyn LogObject> = done.clone();
        handle.log_object(&object).unwrap();
        let tid = handle.tid();
        drop(handle);
        volume.journal.commit(tid).unwrap();
        let handle = volume.journal.begin_finishing(done.id(), 1000).unwrap();
        handle.finish_object(done.id(), Some(done.record().to_vec()));
        drop(handle);
        volume.journal.commit_all().unwrap();
        // A file loses its block, and the intent that frees it is not done.
        let handle = volume.begin();
        let object: Arc<dyn LogObject> = left.clone();
        handle.log_object(&object).unwrap();
        volume.change(&handle, cut, |inode| {
            inode.put(56, &[0; 16]);
            inode.put(76, &[0; 4]);
        });
        drop(handle);
        volume.journal.commit_all().unwrap();
        drop(volume);

        let device = writable(&path);
        let opened =
            ivers_xfs::log::open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
        let names: Vec<_> = opened.intents.iter().map(|intent| (intent.id, intent.name())).collect();
        assert_eq!(names, [(0x1_0000_0002, "free extent")], "{name}");
        let error = opened.check_finished("image").unwrap_err();
        assert!(error.to_string().contains("free extent"), "{name}: {error}");
        drop((opened, device));
        let mounted = LoopMount::new(&path, "").unwrap();
        let read = |file: &str| std::fs::read_to_string(mounted.path().join(file)).unwrap();
        assert_eq!((read("file-150"), read("file-151")), ("150\n".to_owned(), String::new()), "{name}");
        mounted.unmount().unwrap();
        repair_finds_nothing(&path, name);
        assert_eq!(free_blocks(&path), free_before + u64::from(left.blocks), "{name}");
    }
}

fn free_blocks(path: &Path) -> u64 {
    let vfs = mount(path);
    let free = vfs.stat_fs().unwrap().blocks_free;
    vfs.unmount().unwrap();
    free
}

#[test]
fn the_log_goes_around_its_ring() {
    if !has_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let kinds: [(&str, &[&str]); 4] = [
        ("default", &["--unsupported", "-l", "size=16m"]),
        ("records of 32 KiB", &["--unsupported", "-l", "size=16m,su=32k"]),
        ("records of 256 KiB", &["--unsupported", "-l", "size=20m,su=256k"]),
        ("sectors of 4096", &["--unsupported", "-s", "size=4096", "-l", "size=16m"]),
    ];
    for (name, args) in kinds {
        let path = dir.path().join("image");
        image(&path, args);
        let inodes = inodes(&mount(&path));
        let (volume, _) = Volume::open(writable(&path));
        let blocks = volume.structures(&[b"XDB3", b"XDD3", b"AB3B", b"AB3C", b"IAB3", b"FIB3"]);
        let mut written = 0;
        for round in 0..2500u64 {
            let handle = volume.begin();
            for n in 0..20 {
                let ino = inodes[((round * 20 + n) % inodes.len() as u64) as usize];
                volume.change(&handle, ino, |inode| inode.set_mtime(1_000_000_000 + round));
            }
            for n in 0..round % 40 {
                let buffer =
                    volume.cache.get_unit(&blocks[((round + n) % blocks.len() as u64) as usize]).unwrap();
                handle.modify(&buffer, |_| ());
            }
            drop(handle);
            volume.journal.commit_all().unwrap();
            let bytes = volume.journal.stats().journal_bytes;
            // A rare push by the driver; most come when the log is full.
            if round % 211 == 0 {
                volume.journal.push(30).unwrap();
            }
            // Four times around, and then a log that starts anywhere.
            let around = u64::from(volume.sb.log_blocks) * u64::from(volume.sb.block_size);
            if bytes > 4 * around + (3 << 20) {
                written = bytes;
                break;
            }
        }
        assert!(written > 0, "{name}: the log is not full");
        drop(volume);
        let printed = output("xfs_logprint", ["-t".as_ref(), path.as_os_str()]).unwrap();
        assert!(printed.status.success(), "{name}: {}", said(&printed));
        let ours = our_tree(&mount(&path), true).unwrap();
        let mounted = LoopMount::new(&path, "").unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_same(&ours, &kernel_tree(mounted.path()), name);
        mounted.unmount().unwrap();
        repair_finds_nothing(&path, name);
        assert!(ours.values().filter(|line| line.contains("(100000")).count() > 500, "{name}");
    }
}
