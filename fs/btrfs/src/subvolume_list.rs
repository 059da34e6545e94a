//! Listing subvolumes, with their paths from the top level.

use crate::filesystem::Btrfs;
use crate::layout::bytes::read;
use crate::layout::items::{RootItem, RootRef};
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::layout::raw::{RawRootItem, RawRootTail};
use ivers_vfs::{Result, SubvolumeInfo, Timestamp};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The most names in a path. A damaged image may have directories or subvolumes that form a cycle.
const NAMES_MAX: usize = 4096;

/// The name of a subvolume in its parent.
struct Named {
    parent: u64,
    dir: u64,
    name: Vec<u8>,
}

impl Btrfs {
    /// All subvolumes that are not deleted, by number.
    pub(crate) fn list_subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let _trees = self.live.read();
        let tree = self.root_tree();
        let default = self.default_subvolume()?;
        let (mut found, mut named) = (Vec::new(), HashMap::new());
        let last = Key::new(object::LAST_FREE, u8::MAX, u64::MAX);
        self.forest.scan(&tree, Key::new(object::FS_TREE, 0, 0), last, |key, data| {
            let corrupt = |what: String| self.forest.corrupt(what, &tree, key);
            match key.kind {
                kind::ROOT_ITEM if is_subvolume(key.objectid) => {
                    let item = RootItem::decode(data).map_err(corrupt)?;
                    if item.refs > 0 {
                        found.push(described(key.objectid, &item, data, default));
                    }
                }
                kind::ROOT_BACKREF => {
                    let reference = RootRef::decode(data).map_err(corrupt)?;
                    let (dir, name) = (reference.dir, reference.name.to_vec());
                    named.insert(key.objectid, Named { parent: key.offset, dir, name });
                }
                _ => {}
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        for one in &mut found {
            one.parent = named.get(&one.id).map(|named| named.parent);
            one.path = self.path_of_subvolume(one.id, &named)?;
        }
        Ok(found)
    }

    /// The path from the top level. `None`: a directory on the way has no name.
    fn path_of_subvolume(&self, id: u64, named: &HashMap<u64, Named>) -> Result<Option<Vec<u8>>> {
        let (mut names, mut at) = (Vec::new(), id);
        while at != object::FS_TREE {
            if names.len() > NAMES_MAX {
                return Ok(None);
            }
            let Some(Named { parent, dir, name }) = named.get(&at) else { return Ok(None) };
            names.push(name.clone());
            let Some(tree) = self.subvolume(*parent)? else { return Ok(None) };
            let mut dir = *dir;
            while dir != object::FIRST_FREE {
                let Some((above, name)) = self.first_name(&tree, dir)? else { return Ok(None) };
                names.push(name);
                dir = above;
                if names.len() > NAMES_MAX {
                    return Ok(None);
                }
            }
            at = *parent;
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }
}

fn described(id: u64, item: &RootItem, data: &[u8], default: u64) -> SubvolumeInfo {
    let tail: Option<RawRootTail> = read(data, size_of::<RawRootItem>());
    let tail = tail.as_ref();
    let created = tail.map(|tail| &tail.otime);
    SubvolumeInfo {
        id,
        parent: None,
        path: None,
        read_only: item.read_only,
        is_default: id == default,
        generation: item.root.generation,
        uuid: tail.map_or([0; 16], |tail| tail.uuid),
        parent_uuid: tail.map_or([0; 16], |tail| tail.parent_uuid),
        received_uuid: tail.map_or([0; 16], |tail| tail.received_uuid),
        created: created.map_or(Timestamp::default(), |time| Timestamp {
            sec: time.sec.get() as i64,
            nsec: time.nsec.get(),
        }),
    }
}
