//! Random operations on names, attributes and contents, against a model.

use super::common::V5;
use super::fixture::{Fixture, judge, name};
use super::harness::{Image, Seeded};
use crate::dir::name_hash;
use crate::fork::Fork;
use ivers_vfs::FileType;
use rand::seq::{IndexedRandom, SliceRandom};

fn can_run() -> bool {
    super::common::have_xfsprogs() && ivers_oracle::kernel::can_loop_mount()
}

fn any(random: &mut Seeded, of: impl Iterator<Item = u64>) -> Option<u64> {
    of.collect::<Vec<_>>().choose(&mut random.0).copied()
}

fn a_dir(random: &mut Seeded, fixture: &Fixture) -> u64 {
    any(random, fixture.models.keys().copied().filter(|ino| fixture.is_dir(*ino))).unwrap()
}

fn an_entry(random: &mut Seeded, fixture: &Fixture, dir: u64) -> Option<Vec<u8>> {
    fixture.models[&dir].entries.keys().cloned().collect::<Vec<_>>().choose(&mut random.0).cloned()
}

/// Whether `ino` may go: no directory with entries, nor one of the first two.
fn may_go(fixture: &Fixture, ino: u64, keep: u64) -> bool {
    ino != keep && fixture.models[&ino].entries.is_empty()
}

fn value_len(random: &mut Seeded) -> usize {
    match random.below(12) {
        0..6 => random.below(60) as usize,
        6..9 => random.below(300) as usize,
        9 => random.below(4000) as usize,
        10 => random.below(9000) as usize,
        _ => random.below(65537) as usize,
    }
}

fn step(random: &mut Seeded, fixture: &mut Fixture, keep: u64) {
    let dir = a_dir(random, fixture);
    let new = name(random);
    let is_free = !fixture.models[&dir].entries.contains_key(&new);
    let files = |fixture: &Fixture, kind: FileType| {
        fixture
            .inodes
            .iter()
            .filter(|(_, inode)| inode.kind() == kind)
            .map(|(ino, _)| *ino)
            .collect::<Vec<_>>()
    };
    match random.below(20) {
        0..5 if is_free => {
            let (kind, target) = match random.below(10) {
                0 => (FileType::Fifo, vec![]),
                1 => (FileType::CharDevice, vec![]),
                2 => (FileType::Symlink, vec![b't'; 1 + random.below(1023) as usize]),
                3 | 4 => (FileType::Directory, vec![]),
                _ => (FileType::Regular, vec![]),
            };
            fixture.create(dir, &new, kind, &target);
        }
        5 if is_free => {
            let files = files(fixture, FileType::Regular);
            if let Some(ino) = files.choose(&mut random.0) {
                fixture.link(dir, &new, *ino);
            }
        }
        6 | 7 => {
            let Some(old) = an_entry(random, fixture, dir) else { return };
            if may_go(fixture, fixture.models[&dir].entries[&old], keep) {
                fixture.unlink(dir, &old);
            }
        }
        8 | 9 => {
            let Some(old) = an_entry(random, fixture, dir) else { return };
            let (ino, to) = (fixture.models[&dir].entries[&old], a_dir(random, fixture));
            let target = if random.one_in(3) { an_entry(random, fixture, to) } else { None }.unwrap_or(new);
            let replaced = fixture.models[&to].entries.get(&target).copied();
            let allowed = replaced.is_none_or(|replaced| {
                replaced != ino
                    && may_go(fixture, replaced, keep)
                    && fixture.is_dir(replaced) == fixture.is_dir(ino)
            });
            if allowed && !(fixture.is_dir(ino) && fixture.is_above(ino, to)) {
                fixture.rename(dir, &old, to, &target);
            }
        }
        10 => {
            let other_dir = a_dir(random, fixture);
            let (Some(a), Some(b)) = (an_entry(random, fixture, dir), an_entry(random, fixture, other_dir))
            else {
                return;
            };
            let inos = [fixture.models[&dir].entries[&a], fixture.models[&other_dir].entries[&b]];
            let above = |ino: u64, dir: u64| fixture.is_dir(ino) && fixture.is_above(ino, dir);
            if inos[0] != inos[1] && !above(inos[0], other_dir) && !above(inos[1], dir) {
                fixture.exchange(dir, &a, other_dir, &b);
            }
        }
        11..15 => {
            let inos: Vec<u64> = fixture.models.keys().copied().filter(|ino| *ino != fixture.root).collect();
            let Some(ino) = inos.choose(&mut random.0).copied() else { return };
            let is_plain = matches!(fixture.inodes[&ino].kind(), FileType::Regular | FileType::Directory);
            let space =
                if is_plain { ["user", "trusted", "security"][random.below(3) as usize] } else { "trusted" };
            let existing: Vec<String> = fixture.models[&ino].xattrs.keys().cloned().collect();
            match existing.choose(&mut random.0) {
                Some(old) if random.one_in(3) => {
                    let value = (!random.one_in(2)).then(|| vec![7; value_len(random)]);
                    fixture.set_xattr(ino, old, value.as_deref());
                }
                _ => {
                    let tail = "x".repeat(random.below(30) as usize);
                    let name = format!("{space}.{}{tail}", random.below(1000));
                    fixture.set_xattr(ino, &name, Some(&vec![random.below(256) as u8; value_len(random)]));
                }
            }
        }
        _ => {
            let files = files(fixture, FileType::Regular);
            let Some(ino) = files.choose(&mut random.0).copied() else { return };
            let (first, count) = (u64::from(random.below(80)), 1 + u64::from(random.below(6)));
            match random.below(5) {
                0 => fixture.punch(ino, first, count * 3),
                1 => {
                    // Only holes: what is written stays written.
                    let model = &fixture.models[&ino];
                    if !(first..first + count).any(|block| model.blocks.contains_key(&block)) {
                        fixture.write(ino, first, count, 0, true);
                    }
                }
                _ => fixture.write(ino, first, count, 1 + random.below(255) as u8, false),
            }
        }
    }
}

#[test]
fn random_operations_on_all_kinds() {
    if !can_run() {
        return;
    }
    for (kind, args) in V5 {
        let image = Image::new(args, 0);
        let mut random = Seeded::new(kind);
        let mut fixture = Fixture::open(&image);
        let small_space = args.contains(&"size=65536");
        let rounds = if small_space { 250 } else { 900 };
        for _ in 0..rounds {
            step(&mut random, &mut fixture, image.directory);
        }
        judge(&image, fixture, kind);
        image.use_in_linux(kind);
    }
}

#[test]
fn many_names_are_added_and_removed_in_random_order() {
    if !can_run() {
        return;
    }
    let kinds =
        ["default", "1 KiB and directory blocks of 8 KiB", "blocks of 1 KiB", "directory blocks of 64 KiB"];
    for (kind, args) in V5.iter().filter(|(kind, _)| kinds.contains(kind)) {
        let image = Image::new(args, 0);
        let mut random = Seeded::new(kind);
        let mut fixture = Fixture::open(&image);
        let dir = image.directory;
        let count = 20_000;
        let mut names: Vec<Vec<u8>> = (0..count)
            .map(|nth| format!("{nth}-{}", "y".repeat(random.below(30) as usize)).into_bytes())
            .collect();
        names.shuffle(&mut random.0);
        let file = fixture.create(fixture.root, b"file", FileType::Regular, b"");
        // Another directory grows beside it, so that neither has one extent.
        let beside = fixture.create(fixture.root, b"beside", FileType::Directory, b"");
        for (nth, name) in names.iter().enumerate() {
            fixture.link(dir, name, file);
            if nth % 4 == 0 {
                fixture.link(beside, name, file);
            }
        }
        for nth in (0..names.len()).step_by(4) {
            fixture.unlink(beside, &names[nth]);
        }
        fixture.unlink(fixture.root, b"beside");
        judge(&image, fixture, &format!("{kind}, full"));
        let mut fixture = Fixture::open(&image);
        let found = fixture.change(|tx| Ok(super::fixture::load(tx, file)));
        fixture.inodes.insert(file, found);
        let entries = names.iter().map(|name| (name.clone(), file)).collect();
        fixture.model(dir).entries = entries;
        let root = fixture.root;
        fixture.model(root).entries.insert(b"file".to_vec(), file);
        let model = super::fixture::Model { links: 1 + count, ..Default::default() };
        fixture.models.insert(file, model);
        names.shuffle(&mut random.0);
        for name in &names[..names.len() - 40] {
            fixture.unlink(dir, name);
        }
        judge(&image, fixture, &format!("{kind}, 40 left"));
        let mut fixture = Fixture::open(&image);
        let found = fixture.change(|tx| Ok(super::fixture::load(tx, file)));
        fixture.inodes.insert(file, found);
        fixture.model(root).entries.insert(b"file".to_vec(), file);
        fixture.models.insert(file, super::fixture::Model { links: 41, ..Default::default() });
        for name in &names[names.len() - 40..] {
            fixture.model(dir).entries.insert(name.clone(), file);
        }
        for name in &names[names.len() - 40..] {
            fixture.unlink(dir, name);
        }
        assert!(matches!(fixture.inodes[&dir].data, Fork::Local(_)), "an empty directory is in the inode");
        fixture.unlink(root, b"d");
        judge(&image, fixture, &format!("{kind}, empty"));
    }
}

#[test]
fn a_directory_is_emptied_in_the_order_of_hashes() {
    if !can_run() {
        return;
    }
    let image = Image::new(&["-b", "size=1024"], 0);
    let mut random = Seeded::new("in the order of hashes");
    let mut fixture = Fixture::open(&image);
    let (root, dir) = (fixture.root, image.directory);
    let file = fixture.create(root, b"file", FileType::Regular, b"");
    let mut names: Vec<Vec<u8>> = (0..7500).map(|nth| format!("{nth}").into_bytes()).collect();
    // In random order 16 leaves get nearly full: too full to be joined with one that gets empty.
    names.shuffle(&mut random.0);
    names.iter().for_each(|name| fixture.link(dir, name, file));
    names.sort_by_key(|name| name_hash(&fixture.space.sb, name));
    names.iter().for_each(|name| fixture.unlink(dir, name));
    assert!(matches!(fixture.inodes[&dir].data, Fork::Local(_)), "an empty directory is in the inode");
    fixture.unlink(root, b"d");
    judge(&image, fixture, "in the order of hashes");
}

#[test]
fn attributes_of_all_sizes() {
    if !can_run() {
        return;
    }
    let kinds = ["default", "blocks of 1 KiB", "blocks of 64 KiB", "inodes of 2 KiB"];
    for (kind, args) in V5.iter().filter(|(kind, _)| kinds.contains(kind)) {
        let image = Image::new(args, 0);
        let mut random = Seeded::new(kind);
        let mut fixture = Fixture::open(&image);
        let sizes =
            [0, 1, 100, 255, 256, 300, 700, 735, 764, 770, 2000, 3058, 3064, 3070, 4040, 65535, 65536];
        for (nth, size) in sizes.into_iter().enumerate() {
            let file =
                fixture.create(fixture.root, format!("alone-{size}").as_bytes(), FileType::Regular, b"");
            fixture.set_xattr(file, "user.alone", Some(&vec![nth as u8; size]));
            fixture.set_xattr(image.directory, &format!("user.{size}"), Some(&vec![nth as u8; size]));
        }
        // A tree of many blocks, which then shrinks.
        let many = fixture.create(fixture.root, b"many", FileType::Regular, b"");
        let mut names: Vec<String> =
            (0..1500).map(|nth| format!("user.{nth}{}", "z".repeat(random.below(40) as usize))).collect();
        for name in &names {
            fixture.set_xattr(many, name, Some(&vec![1; random.below(400) as usize]));
        }
        names.shuffle(&mut random.0);
        for name in &names[..700] {
            fixture.set_xattr(many, name, None);
        }
        let gone = fixture.create(fixture.root, b"gone", FileType::Regular, b"");
        for name in &names {
            fixture.set_xattr(gone, name, Some(&vec![2; value_len(&mut random).min(2000)]));
        }
        names.shuffle(&mut random.0);
        names.iter().for_each(|name| fixture.set_xattr(gone, name, None));
        assert!(matches!(fixture.inodes[&gone].attrs, Fork::None), "no attribute is left");
        assert_eq!(fixture.inodes[&gone].raw.di_nblocks.get(), 0);
        judge(&image, fixture, kind);
    }
}

#[test]
fn a_file_of_many_extents() {
    if !can_run() {
        return;
    }
    let kinds = ["default", "all features of 6.1", "blocks of 1 KiB"];
    for (kind, args) in V5.iter().filter(|(kind, _)| kinds.contains(kind)) {
        let image = Image::new(args, 0);
        let mut random = Seeded::new(kind);
        let mut fixture = Fixture::open(&image);
        let file = fixture.create(fixture.root, b"file", FileType::Regular, b"");
        let mut order: Vec<u64> = (0..20_000).collect();
        order.shuffle(&mut random.0);
        for nth in &order {
            fixture.write(file, nth * 2, 1, (nth % 250 + 1) as u8, nth % 7 == 0);
        }
        let extents = fixture.inodes[&file].extents(crate::fork::Which::Data);
        assert_eq!(extents, 20_000, "{kind}");
        order.shuffle(&mut random.0);
        for nth in &order[..15_000] {
            fixture.punch(file, nth * 2, 1);
        }
        // Some holes are filled: extents join.
        for nth in 0..500 {
            fixture.write(file, nth, 1, 9, false);
        }
        judge(&image, fixture, kind);
        let mut fixture = Fixture::open(&image);
        let mut inode = fixture.change(|tx| Ok(super::fixture::load(tx, file)));
        let root = fixture.root;
        fixture.inodes.insert(file, inode.clone());
        fixture.models.insert(file, super::fixture::Model { links: 1, ..Default::default() });
        fixture.model(root).entries.insert(b"file".to_vec(), file);
        fixture.punch(file, 0, 50_000);
        inode = fixture.inodes[&file].clone();
        assert_eq!(inode.raw.di_nblocks.get(), 0);
        assert!(matches!(inode.data, Fork::Extents(ref list) if list.is_empty()));
        fixture.unlink(root, b"file");
        judge(&image, fixture, kind);
    }
}

#[test]
fn parent_pointers_follow_names() {
    if !can_run() {
        return;
    }
    for features in ["parent", "parent,exchange,^rmapbt,^nrext64"] {
        let image = Image::with_features(features);
        let mut random = Seeded::new(features);
        let mut fixture = Fixture::open(&image);
        for _ in 0..1500 {
            step(&mut random, &mut fixture, image.directory);
        }
        let file = fixture.create(fixture.root, b"of many names", FileType::Regular, b"");
        let dir = image.directory;
        for nth in 0..300 {
            fixture.link(
                if nth % 2 == 0 { dir } else { fixture.root },
                format!("many {nth}").as_bytes(),
                file,
            );
        }
        for nth in 0..290 {
            fixture.unlink(if nth % 2 == 0 { dir } else { fixture.root }, format!("many {nth}").as_bytes());
        }
        // xfs_repair 6.1 does not know the feature. Linux needs each parent pointer when it removes a name.
        let expected = fixture.expected();
        super::harness::close(fixture.space);
        image.check(features);
        let mounted = ivers_oracle::LoopMount::new(&image.path, "").unwrap();
        super::fixture::assert_seen(&expected, mounted.path(), features);
        super::common::fill::in_dir(mounted.path(), "rm -r ./*");
        mounted.unmount().unwrap();
        image.check(features);
    }
}
