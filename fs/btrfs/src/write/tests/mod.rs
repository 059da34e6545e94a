//! Tests of changes inside a transaction: trees against a model, and commits between the parts of a change.

mod contradictions;
mod short_of_space;

use super::change::Need;
use super::dropping::Dropped;
use super::names::Name;
use crate::inode::{file_of, vnode_of};
use crate::layout::bytes::read;
use crate::layout::extent_item::{Ref, keyed_data, kind_of, number_of};
use crate::layout::items::referred_extent;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::Expected;
use crate::layout::raw::RawRootItem;
use crate::live::groups::Use;
use crate::live::log::LogTree;
use crate::{Btrfs, CompressWith, OpenOptions};
use ivers_block::{Budget, Device, MemDevice};
use ivers_oracle::have_programs;
use ivers_vfs::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::Arc;

/// Makes a filesystem with nodes of 4 KiB. `None`: there is no mkfs.btrfs.
fn new_image() -> Option<Arc<MemDevice>> {
    if !have_programs(&["mkfs.btrfs"]) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
    let args = ["-q", "-n", "4096", "-m", "single", path.to_str().unwrap()];
    ivers_oracle::run("mkfs.btrfs", args).unwrap();
    Some(Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap())))
}

fn open(device: Arc<dyn Device>) -> Arc<Btrfs> {
    Btrfs::open(vec![device], OpenOptions::default()).unwrap()
}

/// Items of a tree from a key on. Each block is checked against the one that leads to it.
fn items_of(fs: &Btrfs, tree: u64, first: Key) -> Vec<(Key, Vec<u8>)> {
    fn walk(fs: &Btrfs, expected: &Expected, found: &mut Vec<(Key, Vec<u8>)>) {
        let node = fs.forest.node(expected).unwrap();
        for index in 0..node.count() {
            match node.level {
                0 => found.push((node.key(index), node.data(index).to_vec())),
                _ => walk(fs, &node.expected_below(index, expected), found),
            }
        }
    }
    let root = fs.root_of(tree).unwrap().unwrap().root;
    let mut found = Vec::new();
    walk(fs, &Expected::root_of(tree, root), &mut found);
    found.retain(|(key, _)| *key >= first);
    found
}

#[test]
fn a_tree_keeps_what_a_map_keeps() {
    let Some(device) = new_image() else { return };
    // After all that is in the tree, and before it.
    for (seed, tree, base, kind) in [(1, object::FS_TREE, 1 << 40, 200), (2, object::FS_TREE, 1 << 41, 201)] {
        let fs = open(device.clone());
        let mut random = SmallRng::seed_from_u64(seed);
        let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        let first = Key::new(base, 0, 0);
        for step in 0..6000u32 {
            let key = Key::new(base + random.random_range(0..600), kind, 0);
            // Up to an item that fills a leaf. The second half removes more than it adds.
            let most = [60, 400, 1200, 3900][random.random_range(0..4)];
            let data = vec![step as u8; random.random_range(0..most)];
            let removes = random.random_range(0..10) < if step < 3000 { 2 } else { 6 };
            fs.with_tx(|tx| match model.contains_key(&key) {
                true if removes => {
                    model.remove(&key);
                    tx.remove(tree, key)
                }
                _ => {
                    model.insert(key, data.clone());
                    tx.put(tree, key, &data)
                }
            })
            .unwrap();
            if step % 10 == 0 {
                let expected: Vec<_> = model.clone().into_iter().collect();
                assert!(items_of(&fs, tree, first) == expected, "step {step}");
                fs.with_tx(|tx| tx.check_trees()).unwrap();
            }
            if step % 500 == 499 {
                fs.with_tx(|tx| tx.commit()).unwrap();
            }
        }
        assert!(model.len() > 30, "{} items", model.len());
    }
}

/// Linux keeps free as much space as the root items say. If a value is too small, Linux counts it below zero,
/// and then a small filesystem looks full.
#[test]
fn root_items_count_the_blocks_of_their_trees() {
    let Some(device) = new_image() else { return };
    const TREES: [u64; 4] =
        [object::FS_TREE, object::EXTENT_TREE, object::FREE_SPACE_TREE, object::CSUM_TREE];
    fn blocks(fs: &Btrfs, expected: &Expected) -> u64 {
        let node = fs.forest.node(expected).unwrap();
        let below = (0..node.count()).filter(|_| node.level > 0);
        1 + below.map(|index| blocks(fs, &node.expected_below(index, expected))).sum::<u64>()
    }
    let off = |fs: &Btrfs| {
        TREES.map(|tree| {
            let root = fs.root_of(tree).unwrap().unwrap();
            let whole = Expected::root_of(tree, root.root);
            let roots = fs.tree(object::ROOT_TREE).unwrap().unwrap();
            let item = fs.forest.get(&roots, root.key.unwrap(), |data| Ok(data.to_vec())).unwrap().unwrap();
            let stored = read::<RawRootItem>(&item, 0).unwrap().bytes_used.get();
            stored as i64 - blocks(fs, &whole) as i64 * 4096
        })
    };
    let before = off(&open(device.clone()));
    let fs = open(device);
    let mut random = SmallRng::seed_from_u64(3);
    for step in 0..3000u64 {
        let key = Key::new((1 << 40) + random.random_range(0..400), 200, 0);
        let need = if step < 2000 { Need::Items } else { Need::Removal };
        fs.change(need, |tx| match tx.item(object::FS_TREE, key)? {
            Some(_) if step >= 2000 => tx.remove(object::FS_TREE, key),
            _ if step >= 2000 => Ok(()),
            _ => tx.put(object::FS_TREE, key, &[step as u8; 900]),
        })
        .unwrap();
        if step % 700 == 1 {
            fs.commit().unwrap();
            assert_eq!(off(&fs), before, "step {step}");
        }
    }
    fs.commit().unwrap();
    assert_eq!(off(&fs), before);
}

#[test]
fn a_block_that_was_made_wrong_is_not_written() {
    let Some(device) = new_image() else { return };
    let fs = open(device.clone());
    let tree = object::FS_TREE;
    let key = |number: u64| Key::new((1 << 40) + number, 200, 0);
    fs.with_tx(|tx| {
        (0..50).try_for_each(|number| tx.put(tree, key(number), &[7; 500]))?;
        tx.commit()
    })
    .unwrap();
    let before = device.to_bytes();
    let result = fs.with_tx(|tx| {
        tx.put(tree, key(50), &[8; 500])?;
        let root = fs.root_of(tree)?.unwrap().root.bytenr;
        let spoilt = fs.forest.dirty.edit(root, |node| {
            assert!(node.level > 0);
            node.set_key(node.count() - 1, key(100));
        });
        assert!(spoilt.is_some());
        tx.commit()
    });
    assert!(result.unwrap_err().to_string().contains("made wrong"));
    assert!(fs.failure().is_some());
    assert!(device.to_bytes() == before, "something was written");
}

/// The superblock stores one generation for itself and for the root of the root tree. So a commit without
/// changes would write a superblock that does not match this root.
#[test]
fn a_change_that_stores_nothing_asks_for_no_commit() {
    let Some(device) = new_image() else { return };
    let fs = open(device.clone());
    fs.commit().unwrap();
    let before = device.to_bytes();
    fs.change(Need::Items, |_| Ok(())).unwrap();
    fs.commit().unwrap();
    drop(open(Arc::new(MemDevice::from_bytes(&device.to_bytes()))));
    assert!(device.to_bytes() == before, "something was written");
}

#[test]
fn changed_blocks_are_charged_to_the_budget() {
    let Some(device) = new_image() else { return };
    let budget = Arc::new(Budget::new(2 << 20));
    let common = DriverOptions { budget: budget.clone(), ..DriverOptions::default() };
    let options = OpenOptions { common, ..OpenOptions::default() };
    let fs = Btrfs::open(vec![device], options).unwrap();
    let first = fs.live.read().as_ref().unwrap().transid;
    let mut most = 0;
    for number in 0..3000 {
        let key = Key::new((1 << 40) + number, 200, 0);
        fs.change(Need::Items, |tx| tx.put(object::FS_TREE, key, &[7; 1000])).unwrap();
        let dirty: u64 = fs.forest.dirty.all().values().map(|node| node.memory_bytes()).sum();
        assert!(budget.used() >= dirty, "{} bytes are charged, {dirty} are changed", budget.used());
        most = most.max(dirty);
    }
    assert!(most > 1 << 19 && most < 3 << 19, "{most} bytes of changed blocks");
    let commits = fs.live.read().as_ref().unwrap().transid - first;
    assert!((2..30).contains(&commits), "{commits} commits");
    assert!(budget.used() < 3 << 20, "{} bytes are charged", budget.used());
    drop(fs);
    assert_eq!(budget.used(), 0);
}

fn mount(device: Arc<dyn Device>) -> (Arc<Btrfs>, Arc<Vfs>) {
    let fs = open(device);
    let options = MountOptions { background: false, ..MountOptions::default() };
    (fs.clone(), Vfs::mount(fs, options).unwrap())
}

/// Makes a file with an extent for each sector.
fn fragmented(vfs: &Arc<Vfs>, name: &[u8], sectors: u64) -> InodeRef {
    scattered(vfs, &vfs.root().unwrap(), name, sectors, 2)
}

/// Makes a file with an extent for each sector. Extents that follow each other on the device are `parts`
/// sectors apart in the file.
fn scattered(vfs: &Arc<Vfs>, dir: &InodeRef, name: &[u8], sectors: u64, parts: usize) -> InodeRef {
    let cred = Cred::root();
    let (file, _) = vfs.create(&cred, dir, name, &CreateSpec::file(0o644), false).unwrap();
    for first in 0..parts as u64 {
        for sector in (first..sectors).step_by(parts) {
            let data = [sector as u8 | 1; 4096];
            vfs.write(&cred, &file, sector * 4096, &data, WriteFlags::empty()).unwrap();
        }
        vfs.sync().unwrap();
    }
    file
}

#[test]
fn a_crash_in_a_truncation_brings_nothing_back() {
    let Some(device) = new_image() else { return };
    let cred = Cred::root();
    let (fs, vfs) = mount(device.clone());
    let sectors = 2000;
    let file = fragmented(&vfs, b"file", sectors);
    let old = sectors * 4096;
    let mut ends = Vec::new();
    loop {
        let more = fs.truncate_some(&file, 5000).unwrap();
        fs.commit().unwrap();
        // What a crash leaves now. The file then grows again.
        let (_, vfs) = mount(Arc::new(MemDevice::from_bytes(&device.to_bytes())));
        let file = vfs.lookup(&cred, &vfs.root().unwrap(), b"file").unwrap();
        let end = file.attr().size;
        ends.push(end);
        vfs.set_attr(&cred, &file, &SetAttr { size: Some(old), ..SetAttr::default() }).unwrap();
        let mut bytes = vec![9; old as usize];
        assert_eq!(vfs.read(&cred, &file, 0, &mut bytes).unwrap(), old as usize);
        for (at, byte) in bytes.iter().enumerate() {
            let expected = if at < end as usize { (at / 4096) as u8 | 1 } else { 0 };
            assert_eq!(*byte, expected, "byte {at} of a file that ended at {end}");
        }
        if !more {
            break;
        }
    }
    assert!(ends.len() > 2 && ends.is_sorted_by(|a, b| a > b), "{ends:?}");
    assert_eq!(ends.last(), Some(&5000));
}

#[test]
fn a_chunk_that_a_commit_makes_is_stored_before_what_is_in_it() {
    let Some(device) = new_image() else { return };
    let fs = open(device.clone());
    let key = |number: u64| Key::new((1 << 40) + number, 200, 0);
    let chunks = fs.forest.volume.chunks().len();
    fs.with_tx(|tx| {
        (0..200).try_for_each(|number| tx.put(object::FS_TREE, key(number), &[7; 500]))?;
        // All of the metadata is taken while references wait.
        for group in tx.live.groups.by_start.values_mut() {
            if group.flags & Use::Metadata.bit() != 0 {
                group.free.take();
            }
        }
        tx.commit()
    })
    .unwrap();
    assert!(fs.forest.volume.chunks().len() > chunks);
    drop(fs);
    let fs = open(device);
    assert_eq!(items_of(&fs, object::FS_TREE, key(0)).len(), 200);
}

#[test]
fn a_reference_is_found_behind_one_that_is_gone() {
    let Some(device) = new_image() else { return };
    let fs = open(device);
    let by = Ref::Data { root: 5, objectid: 300, offset: 0 };
    let other = Ref::Data { root: 5, objectid: 301, offset: 0 };
    let key = |more: u64| Key::new(1 << 50, kind_of(&by), number_of(&by) + more);
    fs.with_tx(|tx| {
        tx.insert(object::EXTENT_TREE, key(0), &keyed_data(&other, 1))?;
        tx.insert(object::EXTENT_TREE, key(2), &keyed_data(&by, 4))?;
        assert_eq!(tx.find_keyed(1 << 50, by)?, (key(2), Some(4)));
        tx.remove(object::EXTENT_TREE, key(2))?;
        assert_eq!(tx.find_keyed(1 << 50, by)?, (key(1), None));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_subvolume_that_is_being_deleted_keeps_its_orphans() {
    let Some(device) = new_image() else { return };
    let fs = open(device);
    for refs in [1, 0] {
        let mut item = [0; 439];
        item[offset_of!(RawRootItem, refs)] = refs;
        fs.with_tx(|tx| tx.put(object::ROOT_TREE, Key::new(300, kind::ROOT_ITEM, 0), &item)).unwrap();
        assert_eq!(fs.subvolumes().unwrap().contains(&300), refs == 1);
    }
}

#[test]
fn a_read_only_top_level_gets_no_record() {
    let Some(device) = new_image() else { return };
    let fs = open(device.clone());
    fs.with_tx(|tx| {
        let key = Key::new(object::FS_TREE, kind::ROOT_ITEM, 0);
        let mut item = tx.item(object::ROOT_TREE, key)?.unwrap();
        item[offset_of!(RawRootItem, flags)] |= 1;
        tx.put(object::ROOT_TREE, key, &item)?;
        tx.commit()
    })
    .unwrap();
    drop(fs);
    let before = device.to_bytes();
    let fs = open(device.clone());
    assert!(fs.health().no_change_attribute.is_some());
    assert_eq!(fs.failure(), None);
    fs.unmount().unwrap();
    assert!(device.to_bytes() == before, "something was written");
}

#[test]
fn no_numbers_are_left() {
    let Some(device) = new_image() else { return };
    let (fs, vfs) = mount(device);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    fs.with_tx(|tx| {
        tx.live.next_objectid.insert(object::FS_TREE, 1 << 39);
        Ok(())
    })
    .unwrap();
    let made = vfs.create(&cred, &root, b"file", &CreateSpec::file(0o644), false);
    assert!(matches!(made, Err(Error::Name(NameError::NoSpace))));
    assert_eq!(fs.failure(), None);
}

#[test]
fn a_hole_over_many_extents_is_shared_in_parts() {
    let Some(device) = new_image() else { return };
    let (fs, vfs) = mount(device);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let sectors = 2000;
    let target = fragmented(&vfs, b"target", sectors);
    let (source, _) = vfs.create(&cred, &root, b"source", &CreateSpec::file(0o644), false).unwrap();
    let size = sectors * 4096;
    vfs.set_attr(&cred, &source, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    let before = target.counter.peek();
    fs.clone_range(&cred, (&source, 0), (&target, 0), size, BlockPool::Unreserved).unwrap();
    assert!(target.counter.peek() - before >= sectors / 512, "too few changes");
    let mut bytes = vec![9; size as usize];
    let (live, vnode) = (fs.live.read(), vnode_of(&target));
    fs.read_file(vnode, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(vnode.item.lock().raw_mut().nbytes.get(), 0);
    drop(live);
}

/// Until the superblock leads to the new log, a crash needs the old one.
#[test]
fn an_fsync_does_not_overwrite_the_log_before_it() {
    let Some(device) = new_image() else { return };
    let (fs, vfs) = mount(device);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let names = (0..200).map(|number| format!("a-long-name-of-a-file-{number}"));
    let make = |name: String| vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false);
    let files: Vec<_> = names.map(|name| make(name).unwrap().0).collect();
    vfs.sync().unwrap();
    let stored = || -> Vec<u64> {
        let live = fs.live.read();
        let log = &live.as_ref().unwrap().log;
        let of_tree = |tree: &LogTree| {
            let leaves: Vec<u64> = tree.leaves().filter_map(|leaf| leaf.stored_at).collect();
            leaves.into_iter().chain(tree.node_at)
        };
        log.trees.values().flat_map(of_tree).chain(log.root_at).collect()
    };
    let content = |bytenr: u64| {
        let mut bytes = vec![0; fs.forest.volume.sb.node_size as usize];
        assert!(fs.forest.volume.read_copy(bytenr, 0, &mut bytes).is_ok());
        bytes
    };
    let mut most = 0;
    for file in &files {
        let before: Vec<_> = stored().into_iter().map(|bytenr| (bytenr, content(bytenr))).collect();
        vfs.write(&cred, file, 0, &[1; 3000], WriteFlags::empty()).unwrap();
        vfs.fsync(file, false).unwrap();
        most = most.max(stored().len());
        let changed = before.iter().filter(|(bytenr, bytes)| content(*bytenr) != *bytes).count();
        // A log that was too large was stored by a commit, which frees its blocks.
        assert!(changed == 0 || stored().is_empty(), "{changed} blocks");
    }
    assert!(most > 4, "a root, a node and several leaves: {most} blocks");
}

/// A commit may come after each part of a deletion. The next mount goes on there.
#[test]
fn a_tree_that_is_dropped_in_part_is_whole() {
    let Some(device) = new_image() else { return };
    if !have_programs(&["btrfs"]) {
        return;
    }
    let (fs, vfs) = mount(device.clone());
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let fill = |name: &str, step: usize, byte: u8| {
        let dir = vfs.lookup(&cred, &root, name.as_bytes()).unwrap();
        for number in (0..1200).step_by(step) {
            let name = format!("file-{number}");
            let spec = CreateSpec::file(0o644);
            let file = match vfs.lookup(&cred, &dir, name.as_bytes()) {
                Ok(file) => file,
                Err(_) => vfs.create(&cred, &dir, name.as_bytes(), &spec, false).unwrap().0,
            };
            vfs.write(&cred, &file, 0, &[byte; 5000], WriteFlags::empty()).unwrap();
        }
    };
    vfs.create_subvolume(&cred, &root, b"s", &CreateSpec::directory(0o755)).unwrap();
    fill("s", 1, 1);
    let source = vfs.lookup(&cred, &root, b"s").unwrap();
    vfs.snapshot_subvolume(&cred, &source, &root, b"kept", true).unwrap();
    // Some leaves are the deleted tree's own. It made the others, too, and the snapshot goes on using them.
    fill("s", 50, 2);
    vfs.sync().unwrap();
    let id = vnode_of(&source).subvolume;
    fs.change(Need::Removal, |tx| {
        tx.unname_subvolume(id, Name { dir: &root, name: b"s" })?;
        tx.dir_changed(&root)
    })
    .unwrap();
    fs.commit().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy");
    let is_clean = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        let words = ["check", "--force", "--check-data-csum", path.to_str().unwrap()];
        ivers_oracle::run("btrfs", words).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    };
    let root_item = fs.list_deleted().unwrap().pop().unwrap();
    fs.forest.roots.lock().insert(id, root_item);
    let mut parts = 0;
    loop {
        let done = fs.change(Need::Removal, |tx| tx.drop_some(id)).unwrap();
        fs.commit().unwrap();
        parts += 1;
        let bytes = device.to_bytes();
        is_clean(&bytes, &format!("after part {parts}"));
        let copy = Arc::new(MemDevice::from_bytes(&bytes));
        let (again, mounted) = mount(copy.clone());
        let names: Vec<_> = mounted.list_subvolumes().unwrap().into_iter().map(|one| one.path).collect();
        assert_eq!(names, [Some(Vec::new()), Some(b"kept".to_vec())], "part {parts}");
        assert!(again.list_deleted().unwrap().is_empty(), "part {parts}");
        mounted.unmount().unwrap();
        is_clean(&copy.to_bytes(), &format!("after part {parts} and a mount"));
        if matches!(done, Dropped::All) {
            break;
        }
    }
    assert!(parts > 3, "{parts} parts");
    drop(source);
    vfs.unmount().unwrap();
}

/// Creates files in a subvolume.
fn fill_subvolume(vfs: &Arc<Vfs>, name: &[u8], files: usize) {
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    vfs.create_subvolume(&cred, &root, name, &CreateSpec::directory(0o755)).unwrap();
    let dir = vfs.lookup(&cred, &root, name).unwrap();
    for number in 0..files {
        let name = format!("file-{number}");
        let (file, _) = vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        vfs.write(&cred, &file, 0, &[1; 5000], WriteFlags::empty()).unwrap();
    }
    vfs.sync().unwrap();
}

/// An image can be mounted for writing although the tree of a deleted subvolume is damaged. The space of the
/// tree stays in use.
#[test]
fn a_damaged_tree_of_a_deleted_subvolume_stays() {
    let Some(device) = new_image() else { return };
    if !have_programs(&["btrfs"]) {
        return;
    }
    let (fs, vfs) = mount(device.clone());
    fill_subvolume(&vfs, b"s", 800);
    let root = vfs.root().unwrap();
    let id = vnode_of(&vfs.lookup(&Cred::root(), &root, b"s").unwrap()).subvolume;
    let top = fs.root_of(id).unwrap().unwrap().root;
    assert!(top.level > 0);
    let expected = Expected {
        bytenr: top.bytenr,
        generation: top.generation,
        level: top.level,
        tree: id,
        first: None,
        below: None,
    };
    let node = fs.forest.node(&expected).unwrap();
    // The blocks after it are dropped first.
    let damaged = node.pointer(0).bytenr;
    fs.change(Need::Removal, |tx| {
        tx.unname_subvolume(id, Name { dir: &root, name: b"s" })?;
        tx.dir_changed(&root)
    })
    .unwrap();
    fs.commit().unwrap();
    let mut whole = vec![0; 4096];
    fs.forest.volume.read_copy(damaged, 0, &mut whole).unwrap();
    let image = device.to_bytes();
    drop((root, vfs));
    let damage = |image: &[u8], bytes: &[u8]| {
        let device = Arc::new(MemDevice::from_bytes(image));
        let fs = Btrfs::open(
            vec![device.clone()],
            OpenOptions {
                common: DriverOptions { read_only: true, ..DriverOptions::default() },
                ..OpenOptions::default()
            },
        );
        fs.unwrap().forest.volume.write_copy(damaged, 0, bytes).unwrap();
        device
    };
    let device = damage(&image, &[0xA5; 4096]);
    for round in 0..2 {
        let (fs, vfs) = mount(device.clone());
        assert_eq!((fs.failure(), fs.list_deleted().unwrap().len()), (None, 1), "round {round}");
        fill_subvolume(&vfs, format!("t{round}").as_bytes(), 50);
        vfs.delete_subvolume(&Cred::root(), &vfs.root().unwrap(), format!("t{round}").as_bytes()).unwrap();
        let root = vfs.root().unwrap();
        let name = format!("new-{round}");
        vfs.create(&Cred::root(), &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        drop(root);
        vfs.unmount().unwrap();
    }
    // With the block as it was, the rest of the tree is dropped.
    let device = damage(&device.to_bytes(), &whole);
    let (fs, vfs) = mount(device.clone());
    assert!(fs.list_deleted().unwrap().is_empty());
    vfs.unmount().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, device.to_bytes()).unwrap();
    ivers_oracle::btrfs::judge(&path).unwrap();
}

/// A snapshot has no copy of a file that is open in its source and has no name, also if it is read-only.
#[test]
fn a_snapshot_has_no_orphans() {
    let Some(device) = new_image() else { return };
    let (fs, vfs) = mount(device.clone());
    fill_subvolume(&vfs, b"s", 3);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let dir = vfs.lookup(&cred, &root, b"s").unwrap();
    let open = vfs.lookup(&cred, &dir, b"file-1").unwrap();
    vfs.unlink(&cred, &dir, b"file-1", false).unwrap();
    let source = vnode_of(&dir).subvolume;
    for (name, read_only) in [(&b"fixed"[..], true), (b"free", false)] {
        vfs.snapshot_subvolume(&cred, &dir, &root, name, read_only).unwrap();
        let made = vnode_of(&vfs.lookup(&cred, &root, name).unwrap()).subvolume;
        assert_eq!(fs.orphans_of(made).unwrap(), [], "{}", name.escape_ascii());
    }
    assert_eq!(fs.orphans_of(source).unwrap().len(), 1);
    // After a crash between the snapshot and the deletion of its orphans.
    let id = fs
        .change(Need::Items, |tx| {
            tx.commit()?;
            let id =
                tx.add_snapshot(source, Name { dir: &root, name: b"late" }, true, Timestamp::default())?;
            tx.dir_changed(&root)?;
            Ok(id)
        })
        .unwrap();
    fs.commit().unwrap();
    assert_eq!(fs.orphans_of(id).unwrap().len(), 1);
    let image = device.to_bytes();
    drop((open, dir, root));
    vfs.unmount().unwrap();
    let device = Arc::new(MemDevice::from_bytes(&image));
    let (fs, vfs) = mount(device.clone());
    for subvolume in fs.subvolumes().unwrap() {
        assert_eq!(fs.orphans_of(subvolume).unwrap(), [], "{subvolume}");
    }
    vfs.unmount().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, device.to_bytes()).unwrap();
    if have_programs(&["btrfs"]) {
        ivers_oracle::btrfs::judge(&path).unwrap();
    }
}

#[test]
fn an_address_that_is_used_again_has_its_new_contents() {
    let Some(device) = new_image() else { return };
    const BYTES: usize = 128 << 10;
    let options = OpenOptions { compress: CompressWith::parse("zlib"), ..OpenOptions::default() };
    let fs = Btrfs::open(vec![device], options).unwrap();
    let options = MountOptions { background: false, ..MountOptions::default() };
    let vfs = Vfs::mount(fs.clone(), options).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let mut addresses = Vec::new();
    for round in 1..12u8 {
        let (file, _) = vfs.create(&cred, &root, b"file", &CreateSpec::file(0o644), false).unwrap();
        vfs.write(&cred, &file, 0, &[round; BYTES], WriteFlags::empty()).unwrap();
        vfs.sync().unwrap();
        let mut bytes = vec![0; BYTES];
        {
            let _trees = fs.live.read();
            fs.read_file(vnode_of(&file), 0, &mut bytes).unwrap();
        }
        assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
        let items = fs.with_tx(|tx| tx.extents_in(file_of(vnode_of(&file)), 0, BYTES as u64, 9)).unwrap();
        assert_eq!(items.len(), 1);
        addresses.extend(referred_extent(items[0].0, &items[0].1).unwrap().map(|extent| extent.bytenr));
        vfs.unlink(&cred, &root, b"file", false).unwrap();
        drop(file);
        vfs.sync().unwrap();
    }
    let count = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert!(addresses.len() < count, "no address was used again");
}
