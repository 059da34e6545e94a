//! The extent tree: extents, their references, and block groups.

use super::state::{Checker, Reference};
use super::walk::Visit;
use crate::layout::bytes::read;
use crate::layout::chunk::{DATA, METADATA, SYSTEM};
use crate::layout::extent_item::{ExtentItem, Ref, decode_keyed, kind_of, number_of};
use crate::layout::features::Incompat;
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::layout::node::Node;
use crate::layout::raw::{RawBlockGroupItem, RawExtentItem};
use crate::layout::superblock::MAX_LEVEL;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::cmp::Reverse;

/// The object of every block group item (`chunk_objectid`).
const GROUP_OBJECT: u64 = object::FIRST_CHUNK_TREE;
/// How much larger than its hash the offset of a reference may be: references with one hash follow each
/// other.
const HASH_STEPS: u64 = 1 << 10;

/// The extent that the walk is at, with the references found so far.
struct Open {
    key: Key,
    bytes: u64,
    level: u8,
    is_data: bool,
    /// The number of references that the item says, and of those that were found.
    refs: u64,
    found: u64,
}

/// A walk of the extent tree.
#[derive(Default)]
pub(super) struct ExtentTree {
    open: Option<Open>,
    /// The end of the previous extent.
    end: u64,
}

impl Visit for ExtentTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            self.item(checker, leaf.key(index), leaf.data(index));
        }
        Ok(())
    }
}

fn bad(checker: &mut Checker, key: Key, what: impl AsRef<str>) {
    let what = format!("item {key} of the extent tree: {}", what.as_ref());
    checker.bad("extent-item-wrong", Place::block(key.objectid), what);
}

impl ExtentTree {
    fn item(&mut self, checker: &mut Checker, key: Key, data: &[u8]) {
        match key.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                self.finish(checker);
                self.extent(checker, key, data);
            }
            kind::TREE_BLOCK_REF..=kind::SHARED_DATA_REF => match decode_keyed(key, data) {
                Ok((by, count)) => self.reference(checker, key, by, count, true),
                Err(what) => bad(checker, key, what),
            },
            kind::BLOCK_GROUP_ITEM => checker.add_group(key, data),
            _ => bad(checker, key, "no item of this type belongs here"),
        }
    }

    fn extent(&mut self, checker: &mut Checker, key: Key, data: &[u8]) {
        let sb = &checker.forest.volume.sb;
        let (node_size, sector) = (u64::from(sb.node_size), u64::from(sb.sector_size));
        let is_skinny = key.kind == kind::METADATA_ITEM;
        let bytes = if is_skinny { node_size } else { key.offset };
        let end = key.objectid.checked_add(bytes);
        let has_feature = sb.incompat.contains(Incompat::SKINNY_METADATA);
        // Extents that overlap are refused, because the sets of sectors would be wrong.
        let what = match end {
            Some(end) if end <= key.objectid => Some("it has no bytes".to_owned()),
            Some(_) if !key.objectid.is_multiple_of(sector) || !bytes.is_multiple_of(sector) => {
                Some("it does not consist of sectors".to_owned())
            }
            Some(_) if key.objectid < self.end => Some("it overlaps the extent before it".to_owned()),
            Some(_) if is_skinny && !has_feature => Some("the feature skinny-metadata is not set".to_owned()),
            Some(_) => None,
            None => Some("it ends past all addresses".to_owned()),
        };
        if let Some(what) = what {
            return bad(checker, key, what);
        }
        self.end = key.objectid + bytes;
        let item = match ExtentItem::decode(data, is_skinny) {
            Ok(item) => item,
            Err(what) => return bad(checker, key, what),
        };
        let flags = read::<RawExtentItem>(data, 0).map_or(0, |raw| raw.flags.get());
        let Some((first, sectors)) = checker.space.sectors(key.objectid, bytes) else {
            return bad(checker, key, "it is not in one chunk");
        };
        let (is_data, last) = (item.is_data(), checker.forest.volume.sb.generation);
        let contents = checker.space.group(key.objectid).map_or(0, |group| group.chunk.contents());
        // The second pass only collects differences of references.
        if !checker.quiet {
            checker.space.used.set_run(first, sectors);
            if is_data {
                checker.space.data.set_run(first, sectors);
            }
            if let Some(group) = checker.space.group_mut(key.objectid) {
                group.used = group.used.saturating_add(bytes);
            }
        }
        let wanted = if is_data { DATA } else { METADATA | SYSTEM };
        let level = match is_skinny {
            true => u8::try_from(key.offset).unwrap_or(u8::MAX),
            false => item.level().unwrap_or(0),
        };
        if !item.has_one_kind() || flags & !(3 | 1 << 8) != 0 || (is_data && (is_skinny || flags >> 8 != 0)) {
            bad(checker, key, format!("its flags are {flags:#x}"));
        } else if contents & wanted == 0 {
            bad(checker, key, format!("it is in a chunk with contents of type {contents:#x}"));
        } else if !is_data && (bytes != node_size || level >= MAX_LEVEL) {
            bad(checker, key, format!("a block of {bytes} bytes and level {level}"));
        } else if item.generation > last {
            bad(checker, key, format!("generation {} is after the last one", item.generation));
        }
        let ordered = item.inline.windows(2).all(|pair| {
            let order = |by: &Ref| (kind_of(by), Reverse(number_of(by)));
            order(&pair[0].0) <= order(&pair[1].0)
        });
        if !ordered {
            bad(checker, key, "its references are not in order");
        }
        self.open = Some(Open { key, bytes, level, is_data, refs: item.refs, found: 0 });
        for (by, count) in item.inline {
            self.reference(checker, key, by, count, false);
        }
    }

    fn reference(&mut self, checker: &mut Checker, key: Key, by: Ref, count: u32, is_keyed: bool) {
        let Some(open) = self.open.as_mut().filter(|open| open.key.objectid == key.objectid) else {
            return bad(checker, key, "a reference without its extent");
        };
        open.found = open.found.saturating_add(count.into());
        let (bytes, level, is_data) = (open.bytes, open.level, open.is_data);
        let of_data = matches!(by, Ref::Data { .. } | Ref::SharedData { .. });
        let sector = checker.space.sector;
        let what = match by {
            _ if of_data != is_data => Some("a reference of the wrong type".to_owned()),
            _ if count == 0 => Some("a reference that counts 0 times".to_owned()),
            Ref::Data { root, .. } if !is_subvolume(root) && !is_special(root) => {
                Some(format!("a reference by tree {root}"))
            }
            Ref::Data { offset, .. } if !offset.is_multiple_of(sector) => {
                Some(format!("a reference with offset {offset}"))
            }
            Ref::SharedBlock { parent } | Ref::SharedData { parent } if !parent.is_multiple_of(sector) => {
                Some(format!("a reference by the block {parent}"))
            }
            Ref::Data { .. } if is_keyed && key.offset.wrapping_sub(number_of(&by)) > HASH_STEPS => {
                Some("its offset is not the hash of the reference".to_owned())
            }
            _ => None,
        };
        if let Some(what) = what {
            bad(checker, key, what);
        }
        checker.add_reference(Reference { bytenr: key.objectid, bytes, level, by }, count.into());
    }

    /// Compares the count of the previous extent with its references.
    pub(super) fn finish(&mut self, checker: &mut Checker) {
        let Some(open) = self.open.take().filter(|open| open.found != open.refs) else { return };
        let what = format!("it counts {} references and has {}", open.refs, open.found);
        checker.bad("extent-refs-wrong", Place::block(open.key.objectid), what);
    }
}

/// Trees that are not subvolumes and have data: the old cache of free space, and data that a balance moves.
fn is_special(root: u64) -> bool {
    root == object::ROOT_TREE || root == object::DATA_RELOCATION
}

impl Checker {
    /// Takes the item of a block group.
    pub(super) fn add_group(&mut self, key: Key, data: &[u8]) {
        let place = Place::block(key.objectid);
        let raw: RawBlockGroupItem = match read(data, 0) {
            Some(raw) if data.len() == size_of::<RawBlockGroupItem>() => raw,
            _ => return self.bad("block-group-wrong", place, format!("its item has {} bytes", data.len())),
        };
        let Some(group) = self.space.groups.get_mut(&key.objectid).filter(|it| it.chunk.length == key.offset)
        else {
            let what = format!("a block group of {} bytes has no chunk", key.offset);
            return self.bad("block-group-wrong", place, what);
        };
        group.stored_used = Some(raw.used.get());
        let (flags, wanted) = (raw.flags.get(), group.chunk.flags);
        if flags != wanted {
            let what =
                format!("the type of the block group is {flags:#x}, and that of its chunk {wanted:#x}");
            self.bad("block-group-wrong", place, what);
        } else if raw.chunk_objectid.get() != GROUP_OBJECT {
            let what = format!("the block group names object {}", raw.chunk_objectid.get());
            self.bad("block-group-wrong", place, what);
        }
    }

    /// Compares the used bytes of block groups with the extents in them.
    pub(super) fn check_groups(&mut self) {
        let mut wrong = Vec::new();
        for (start, group) in &self.space.groups {
            let what = match group.stored_used {
                None => (
                    "block-group-missing",
                    format!("the chunk of {} bytes has no block group", group.chunk.length),
                ),
                Some(used) if used != group.used && self.extents_sound => {
                    let what =
                        format!("the block group says that {used} bytes are used, and {} are", group.used);
                    ("block-group-used-wrong", what)
                }
                Some(_) => continue,
            };
            wrong.push((*start, what));
        }
        for (start, (code, what)) in wrong {
            self.bad(code, Place::block(start), what);
        }
    }
}
