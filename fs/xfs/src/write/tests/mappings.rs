//! Intents of mappings that Linux left.

use super::fixture::{Fixture, judge, load};
use super::harness::Image;
use crate::fork::{Extent, ForkSource, Which};
use crate::log::{FoundIntent, Lsn, MappingIntent, mapping_regions};
use ivers_block::FileBlock;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::{FileType, Result};

/// Types of intents in the log.
const MAPPING: u16 = 0x1244;
const FREE: u16 = 0x1236;

fn mapping(id: u64, ino: u64, extent: Extent, removes: bool) -> FoundIntent {
    let intent = MappingIntent { ino, which: Which::Data, extent, removes };
    let regions = mapping_regions(id, &intent);
    FoundIntent { kind: MAPPING, id, lsn: Lsn { cycle: 1, sector: 2 }, regions }
}

/// An intent that frees blocks.
fn free(id: u64, extent: &Extent) -> FoundIntent {
    let mut region = vec![0x36, 0x12, 1, 0, 1, 0, 0, 0];
    region.extend([id, extent.start.0].iter().flat_map(|long| long.to_le_bytes()));
    region.extend([extent.len as u32, 0].iter().flat_map(|word| word.to_le_bytes()));
    FoundIntent { kind: FREE, id, lsn: Lsn { cycle: 1, sector: 2 }, regions: vec![region] }
}

fn finish(fixture: &mut Fixture, ino: u64, intents: Vec<FoundIntent>) -> Result<()> {
    let done = fixture.space.finish_intents(intents, &|ino| Ok(fixture.change(|tx| Ok(load(tx, ino)))));
    fixture.reload(ino);
    done
}

fn extent_at(fixture: &Fixture, ino: u64, at: u64) -> Extent {
    let inode = &fixture.inodes[&ino];
    fixture.change(|tx| Ok(tx.find_extent(&inode.data, FileBlock(at), ino)?.0.unwrap()))
}

/// The model moves blocks too.
fn moved(fixture: &mut Fixture, ino: u64, (from, to): (u64, u64), count: u64) {
    let model = fixture.model(ino);
    for at in 0..count {
        let fill = model.blocks.remove(&(from + at)).unwrap();
        model.blocks.insert(to + at, fill);
    }
}

#[test]
fn mappings_of_the_log_come_and_go() {
    if !can_loop_mount() || !super::common::have_xfsprogs() {
        return;
    }
    let kinds: [(&str, &[&str]); 3] = [
        ("default", &[]),
        ("rmapbt", &["-m", "rmapbt=1"]),
        ("1 KiB, rmapbt", &["-m", "rmapbt=1", "-b", "size=1024"]),
    ];
    for (name, args) in kinds {
        let image = Image::new(args, 0);
        let mut fixture = Fixture::open(&image);
        // A list of extents, and a tree.
        for extents in [3, 300] {
            let what = format!("{name}, {extents} extents");
            let file = fixture.create(fixture.root, what.as_bytes(), FileType::Regular, b"");
            let fill = |nth: u64| 1 + (nth % 200) as u8;
            (0..extents).for_each(|nth| fixture.write(file, 10 * nth, 4, fill(nth), nth == 2));
            // The end of the file stays where it is.
            fixture.write(file, 5000, 1, 9, false);
            let to = |extent: Extent, at: u64| Extent { file_block: FileBlock(at), ..extent };

            // Blocks move within the file, and what does not change stays.
            let first = extent_at(&fixture, file, 10);
            assert_eq!((first.file_block.0, first.len), (10, 4), "{what}");
            let intents = vec![mapping(1, file, first, true), mapping(2, file, to(first, 4000), false)];
            finish(&mut fixture, file, intents).unwrap();
            moved(&mut fixture, file, (10, 4000), 4);
            // The older of two intents may have the greater number.
            let intents =
                vec![mapping(9, file, to(first, 4000), true), mapping(3, file, to(first, 4002), false)];
            finish(&mut fixture, file, intents).unwrap();
            moved(&mut fixture, file, (4000, 4010), 4);
            moved(&mut fixture, file, (4010, 4002), 4);
            // Unwritten blocks, and a part of an extent.
            let unwritten = extent_at(&fixture, file, 20);
            assert!(unwritten.unwritten, "{what}");
            let part = Extent { len: 2, ..unwritten };
            finish(
                &mut fixture,
                file,
                vec![mapping(4, file, part, true), mapping(5, file, to(part, 4100), false)],
            )
            .unwrap();
            moved(&mut fixture, file, (20, 4100), 2);
            // What leaves the file is freed by another intent, which is older.
            let gone = extent_at(&fixture, file, 0);
            finish(&mut fixture, file, vec![free(6, &gone), mapping(7, file, gone, true)]).unwrap();
            fixture.model(file).blocks.retain(|block, _| *block >= 4);

            // Other blocks than the promised ones, blocks where there are some, of a free inode.
            let other = Extent { start: gone.start, ..to(first, 4002) };
            assert!(finish(&mut fixture, file, vec![mapping(8, file, other, true)]).is_err(), "{what}");
            let over = to(gone, 4001);
            assert!(finish(&mut fixture, file, vec![mapping(8, file, over, false)]).is_err(), "{what}");
            let now = extent_at(&fixture, file, 4002);
            assert_eq!(now, to(first, 4002), "{what}: a refused intent changes nothing");
        }
        judge(&image, fixture, name);
    }
}
