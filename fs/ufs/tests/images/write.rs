//! Images are changed, and have the tree of a model; the checker finds nothing. `IVERS_SEED` and
//! `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind, `IVERS_CHECK_EACH` compares the
//! model after each so many steps.

use crate::common::*;
use ivers_block::MemDevice;
use ivers_vfs::{CreateSpec, Cred, SetAttr, WriteFlags};
use std::sync::Arc;

fn storm(name: &str, image: &[u8], steps: u64) -> usize {
    let device = Arc::new(MemDevice::from_bytes(image));
    let closed = |what: &str| assert_clean(device.clone(), what);
    storm_rounds(name, steps, || mount_writable(device.clone()), |_, _| (), closed)
}

#[test]
fn random_changes_of_all_kinds() {
    if !have_makefs() {
        return;
    }
    let only = std::env::var("IVERS_KIND").ok();
    for kind in KINDS.iter().filter(|kind| only.as_deref().is_none_or(|only| only == kind.0)) {
        let larger = |word: &&'static str| if word.ends_with('m') { "192m" } else { *word };
        let options: Vec<_> = kind.1.iter().map(larger).chain(["-f", "5000"]).collect();
        let full = storm(kind.0, &image_of(&(kind.0, &options)), number("IVERS_STEPS", 400));
        // Extended attributes have two blocks at most.
        assert!(full < 10, "{}: {full} steps without space", kind.0);
    }
}

#[test]
fn random_changes_of_full_images() {
    if !have_makefs() {
        return;
    }
    let only = std::env::var("IVERS_KIND").ok();
    for kind in KINDS.iter().filter(|kind| only.as_deref().is_none_or(|only| only == kind.0)) {
        let full = storm(kind.0, &image_of(kind), number("IVERS_STEPS", 400));
        println!("{}: {full} steps without space", kind.0);
    }
}

#[test]
fn no_file_ends_in_a_hole() {
    if !have_makefs() {
        return;
    }
    let cred = Cred::root();
    for kind in &KINDS[..2] {
        let device = Arc::new(MemDevice::from_bytes(&image_of(kind)));
        let vfs = mount_writable(device.clone());
        let root = vfs.root().unwrap();
        // In the second file there are indirect blocks before and after the new end.
        for (name, written, ends) in [
            ("end 1", 200_000, [150_001, 131_072, 1, 0]),
            ("end 2", 90 << 20, [80 << 20, 70_000_001, 30_000, 8192]),
        ] {
            let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
            vfs.write(&cred, &file, written, b"the only data", WriteFlags::default()).unwrap();
            vfs.sync().unwrap();
            for end in ends {
                let set = SetAttr { size: Some(end), ..SetAttr::default() };
                let blocks = vfs.set_attr(&cred, &file, &set).unwrap().blocks_512;
                vfs.sync().unwrap();
                let blocks = blocks.min(vfs.stat(&file).blocks_512);
                assert_eq!(blocks > 0, end > 0, "{}, cut to {end}: {blocks} blocks", kind.0);
            }
        }
        drop(root);
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(device, kind.0);
    }
}
