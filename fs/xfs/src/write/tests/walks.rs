//! Walks along damaged trees end.

use super::fixture::Fixture;
use super::harness::Image;
use crate::layout::checksum::SHORT_BTREE;
use crate::layout::directory::hash_entries_start;
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use crate::write::extent::FreeExtent;
use crate::write::tx::Tx;
use crate::write::works::CountChange;
use ivers_vfs::{FileType, Result};

fn can_run() -> bool {
    super::common::have_xfsprogs() && ivers_oracle::kernel::can_loop_mount()
}

#[test]
fn a_walk_along_leaves_ends_where_a_node_has_a_leaf_twice() {
    if !can_run() {
        return;
    }
    let image = Image::new(&[], 0);
    let mut fixture = Fixture::open(&image);
    let dir = fixture.create(fixture.root, b"dir", FileType::Directory, b"");
    let file = fixture.create(dir, b"name-0", FileType::Regular, b"");
    (1..1200).for_each(|nth| fixture.link(dir, format!("name-{nth}").as_bytes(), file));
    let inode = &fixture.inodes[&dir];
    let mut tx = fixture.space.begin(fixture.space.journal.max_credits()).unwrap();
    let tree = tx.dir_tree();
    let walk = |tx: &Tx<'_>| -> Result<u32> {
        let (mut path, mut leaves) = (tx.find_leaf(inode, tree, 0)?, 1);
        while tx.next_leaf(inode, tree, &mut path)? {
            leaves += 1;
        }
        Ok(leaves)
    };
    assert!(walk(&tx).unwrap() > 2);
    // An entry is a hash and a block. The second one of the root gets the block of the first one.
    let entries = hash_entries_start(&tx.space().sb);
    let repeat = |bytes: &mut [u8]| bytes.copy_within(entries + 4..entries + 8, entries + 12);
    tx.change_tree(inode, tree, tree.root, repeat).unwrap();
    let error = walk(&tx).expect_err("a leaf comes twice").to_string();
    assert!(error.contains("the leaves of a hash tree have a cycle"), "{error}");
}

#[test]
fn a_walk_along_reference_counts_ends_where_a_root_has_a_leaf_many_times() {
    if !can_run() {
        return;
    }
    const HEADER: usize = 56;
    const CHILDREN: usize = (4096 - HEADER) / 8;
    let image = Image::new(&[], 0);
    let space = image.open();
    let mut tx = space.begin(space.journal.max_credits()).unwrap();
    for nth in 0..400 {
        let block = FreeExtent { start: 1000 + nth * 2, len: 1 };
        tx.change_counts(0, block, CountChange::Increase).unwrap();
    }
    let (root, levels) = tx.root(TreeKind::Refcounts, 0).unwrap();
    assert_eq!(levels, 2);
    let place = space.sb.ag_block(0, root).unwrap();
    // The keys say that only the first child has records before block 15,000.
    let repeat = |bytes: &mut [u8]| {
        bytes[6..8].copy_from_slice(&(CHILDREN as u16).to_be_bytes());
        let (keys, pointers) = bytes[HEADER..].split_at_mut(CHILDREN * 4);
        for nth in 1..CHILDREN {
            keys[nth * 4..][..4].copy_from_slice(&(15_000 + nth as u32).to_be_bytes());
            pointers.copy_within(..4, nth * 4);
        }
    };
    tx.modify(&[place], Some(&SHORT_BTREE), Whose::Group(0), repeat).unwrap();
    let block = FreeExtent { start: 14_000, len: 1 };
    let error = tx.change_counts(0, block, CountChange::Increase).expect_err("a leaf comes twice");
    assert!(error.to_string().contains("has a block twice"), "{error}");
}
