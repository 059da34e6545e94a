//! Tests of changes inside a transaction: trees against a model, and commits between the parts of a change.

use crate::layout::key::{Key, object};
use crate::layout::node::Expected;
use crate::{Btrfs, OpenOptions};
use ivers_block::{Device, MemDevice};
use ivers_oracle::have_programs;
use ivers_vfs::{CreateSpec, Cred, InodeRef, MountOptions, SetAttr, Vfs, WriteFlags};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
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
    let (bytenr, generation, level) = (root.bytenr, root.generation, root.level);
    let mut found = Vec::new();
    walk(fs, &Expected { bytenr, generation, level, tree, first: None, below: None }, &mut found);
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
                fs.with_tx(|tx| {
                    tx.live.changed = true;
                    tx.commit()
                })
                .unwrap();
            }
        }
        assert!(model.len() > 30, "{} items", model.len());
    }
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
        let mut dirty = fs.forest.dirty.lock();
        let node = Arc::make_mut(dirty.get_mut(&root).unwrap());
        assert!(node.level > 0);
        node.set_key(node.count() - 1, key(100));
        drop(dirty);
        tx.commit()
    });
    assert!(result.unwrap_err().to_string().contains("made wrong"));
    assert!(fs.failure().is_some());
    assert!(device.to_bytes() == before, "something was written");
}

fn mount(device: Arc<dyn Device>) -> (Arc<Btrfs>, Arc<Vfs>) {
    let fs = open(device);
    let options = MountOptions { background: false, ..MountOptions::default() };
    (fs.clone(), Vfs::mount(fs, options).unwrap())
}

/// Makes a file with an extent for each sector.
fn fragmented(vfs: &Arc<Vfs>, name: &[u8], sectors: u64) -> InodeRef {
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (file, _) = vfs.create(&cred, &root, name, &CreateSpec::file(0o644), false).unwrap();
    for odd in 0..2 {
        for sector in (odd..sectors).step_by(2) {
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
