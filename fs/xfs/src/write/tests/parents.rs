//! Intents of parent pointers that Linux left, after each part of the work.

use super::fixture::{Fixture, assert_seen, load};
use super::harness::{Image, close};
use crate::fork::Fork;
use crate::log::{FoundIntent, Lsn, Pointer, parent_regions};
use crate::write::attr::parent_value;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::{FileType, Result};

/// The type of an attribute intent in the log.
const ATTRIBUTE: u16 = 0x1246;

fn finish(
    fixture: &mut Fixture,
    whose: (u64, u32),
    old: Option<Pointer<'_>>,
    new: Option<Pointer<'_>>,
) -> Result<()> {
    let regions = parent_regions(whose, old, new);
    let intent = FoundIntent { kind: ATTRIBUTE, id: 9, lsn: Lsn { cycle: 1, sector: 2 }, regions };
    let done = fixture.space.finish_intents(vec![intent], &|ino| Ok(fixture.change(|tx| Ok(load(tx, ino)))));
    fixture.reload(whose.0);
    done
}

/// A name that needs a block soon.
fn long(nth: usize) -> Vec<u8> {
    format!("{nth:03}{}", "n".repeat(nth % 120)).into_bytes()
}

#[test]
fn intents_are_finished_whatever_was_done() {
    if !can_loop_mount() {
        return;
    }
    let image = Image::with_features("parent");
    let mut fixture = Fixture::open(&image);
    let (root, dir) = (fixture.root, image.directory);
    // Parent pointers in the inode, in a block, in a tree.
    for (kind, names) in [(0, 2), (1, 25), (2, 400)] {
        let name = |nth: usize| [format!("{kind}-").as_bytes(), &long(nth)].concat();
        let file = fixture.create(root, &name(0), FileType::Regular, b"");
        fixture.set_xattr(file, "user.note", Some(b"stays"));
        (1..names).for_each(|nth| fixture.link(if nth % 2 == 0 { root } else { dir }, &name(nth), file));
        let form = match &fixture.inodes[&file].attrs {
            Fork::Local(_) => 0,
            Fork::Extents(list) if list.iter().map(|extent| extent.len).sum::<u64>() == 1 => 1,
            _ => 2,
        };
        assert_eq!(form, kind, "{names} names");
        let parents = [root, dir].map(|dir| (dir, fixture.inodes[&dir].generation()));
        let values = parents.map(parent_value);
        let whose = (file, fixture.inodes[&file].generation());
        let new: Vec<u8> = [format!("{kind}-new").as_bytes(), &[b'w'; 200]].concat();
        // Done, and not done.
        for done in [true, false] {
            // A new name.
            fixture.link(root, &new, file);
            if !done {
                fixture.edit(file, |tx, inode| tx.remove_parent(inode, &new, parents[0]));
            }
            finish(&mut fixture, whose, None, Some((&new, &values[0]))).unwrap();
            // It goes to another directory, under another name.
            let moved = name(999);
            for half in [true, false] {
                fixture.rename(root, &new, dir, &moved);
                if !done {
                    fixture.edit(file, |tx, inode| tx.remove_parent(inode, &moved, parents[1]));
                    if !half {
                        fixture.edit(file, |tx, inode| tx.add_parent(inode, &new, parents[0]));
                    }
                }
                let (old, pointer) = ((&new[..], &values[0][..]), (&moved[..], &values[1][..]));
                finish(&mut fixture, whose, Some(old), Some(pointer)).unwrap();
                fixture.rename(dir, &moved, root, &new);
            }
            // It goes.
            fixture.unlink(root, &new);
            if !done {
                fixture.edit(file, |tx, inode| tx.add_parent(inode, &new, parents[0]));
            }
            finish(&mut fixture, whose, Some((&new, &values[0])), None).unwrap();
        }
        // Of another inode.
        let before = fixture.inodes[&file].encode(&fixture.space.sb);
        let other = (file, whose.1.wrapping_add(1));
        assert!(finish(&mut fixture, other, None, Some((b"x", &values[0]))).is_err());
        assert_eq!(fixture.inodes[&file].encode(&fixture.space.sb), before);
    }
    let expected = fixture.expected();
    close(fixture.space);
    image.check("intents of parent pointers");
    let mounted = LoopMount::new(&image.path, "").unwrap();
    assert_seen(&expected, mounted.path(), "intents of parent pointers");
    super::common::fill::in_dir(mounted.path(), "rm -r ./*");
    mounted.unmount().unwrap();
    image.check("after Linux");
}
