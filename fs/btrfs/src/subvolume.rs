//! Subvolumes: their trees, their names in their parents, and which one is mounted.

use crate::filesystem::Btrfs;
use crate::layout::checksum::name_hash;
use crate::layout::items::{DirItem, RootItem, RootRef};
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::tree::{Root, Tree};
use ivers_vfs::{Error, NameError, Result};
use std::ops::ControlFlow;

/// Roots of trees that are kept in memory. One more is found in the tree of roots each time.
const ROOTS_MAX: usize = 1 << 16;

/// The subvolume whose root directory is the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Subvolume {
    /// The default one of the filesystem.
    #[default]
    Default,
    /// The one with this number; 5 is the top level.
    Id(u64),
    /// The one with this path from the top level.
    Path(Vec<u8>),
}

impl Btrfs {
    pub(crate) fn root_tree(&self) -> Tree {
        let root = self.forest.roots.lock().get(&object::ROOT_TREE).map(|root| root.root);
        Tree { id: object::ROOT_TREE, root: root.unwrap_or(self.forest.volume.sb.root) }
    }

    /// Finds the root of a tree; `None` if there is none, or if it is being deleted.
    pub(crate) fn root_of(&self, id: u64) -> Result<Option<Root>> {
        let known = self.forest.roots.lock().get(&id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let root_tree = self.root_tree();
        let last = Key::new(id, kind::ROOT_ITEM, u64::MAX);
        // A snapshot has its transaction as the offset.
        let found = self.forest.last_at_most(&root_tree, last, |key, data| {
            if (key.objectid, key.kind) != (id, kind::ROOT_ITEM) {
                return Ok(None);
            }
            let item = RootItem::decode(data).map_err(|what| self.forest.corrupt(what, &root_tree, key))?;
            Ok(Some((key, item)))
        })?;
        // mkfs.btrfs makes other trees, such as that of quotas, without references.
        let is_deleted = |item: &RootItem| is_subvolume(id) && item.refs == 0;
        let Some((key, item)) = found.flatten().filter(|(_, item)| !is_deleted(item)) else {
            return Ok(None);
        };
        let RootItem { root, last_snapshot, read_only, .. } = item;
        let root = Root { root, key: Some(key), last_snapshot, read_only, dropped: false };
        let mut roots = self.forest.roots.lock();
        if roots.len() < ROOTS_MAX {
            roots.insert(id, root.clone());
        }
        Ok(Some(root))
    }

    /// Finds the tree with a number; `None` if there is none, or if it is being deleted.
    pub(crate) fn tree(&self, id: u64) -> Result<Option<Tree>> {
        Ok(self.root_of(id)?.map(|root| Tree { id, root: root.root }))
    }

    /// Finds a subvolume.
    pub(crate) fn subvolume(&self, id: u64) -> Result<Option<Tree>> {
        let root = if is_subvolume(id) { self.root_of(id)? } else { None };
        Ok(root.filter(|root| !root.dropped).map(|root| Tree { id, root: root.root }))
    }

    /// Whether a subvolume has this name in a directory of another one. A snapshot has a copy of the entry,
    /// but not the subvolume.
    pub(crate) fn is_named_in(&self, subvolume: u64, parent: u64, dir: u64, name: &[u8]) -> Result<bool> {
        let key = Key::new(parent, kind::ROOT_REF, subvolume);
        let named = self.forest.get(&self.root_tree(), key, |data| {
            RootRef::decode(data).map(|found| found.dir == dir && found.name == name)
        })?;
        Ok(named.unwrap_or(false))
    }

    /// Returns the subvolume and the directory in it that have the name of a subvolume.
    pub(crate) fn parent_of_subvolume(&self, id: u64) -> Result<Option<(u64, u64)>> {
        let first = Key::new(id, kind::ROOT_BACKREF, 0);
        let last = Key::new(id, kind::ROOT_BACKREF, u64::MAX);
        let root_tree = self.root_tree();
        self.forest.scan(&root_tree, first, last, |key, data| {
            let found = RootRef::decode(data).map_err(|what| self.forest.corrupt(what, &root_tree, key))?;
            Ok(ControlFlow::Break((key.offset, found.dir)))
        })
    }

    pub(crate) fn default_subvolume(&self) -> Result<u64> {
        let name = b"default";
        let dir = self.forest.volume.sb.root_dir_objectid;
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name));
        let named = self.forest.get(&self.root_tree(), key, |data| {
            let entries = DirItem::decode_all(data, false)?;
            let found = entries.iter().find(|entry| entry.name == name);
            Ok(found.map(|entry| entry.location.objectid))
        })?;
        Ok(named.flatten().unwrap_or(object::FS_TREE))
    }

    /// Finds the subvolume that an option names. `place` names the image.
    pub(crate) fn chosen_subvolume(&self, chosen: &Subvolume) -> Result<u64> {
        let missing = |what: String| {
            let place = &self.forest.volume.place;
            Err(Error::Incompatible(format!("{place}: there is no subvolume {what}")))
        };
        let id = match chosen {
            Subvolume::Default => self.default_subvolume()?,
            Subvolume::Id(id) => *id,
            Subvolume::Path(path) => match self.subvolume_at(path)? {
                Some(id) => id,
                None => return missing(format!("{:?}", path.escape_ascii().to_string())),
            },
        };
        match self.subvolume(id)? {
            Some(_) => Ok(id),
            None => missing(id.to_string()),
        }
    }

    fn subvolume_at(&self, path: &[u8]) -> Result<Option<u64>> {
        let (mut subvolume, mut dir) = (object::FS_TREE, object::FIRST_FREE);
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let Some(tree) = self.subvolume(subvolume)? else { return Ok(None) };
            let found = match self.find_name(&tree, dir, name) {
                Ok(Some(found)) => found,
                Ok(None) | Err(Error::Name(NameError::Stale)) => return Ok(None),
                Err(error) => return Err(error),
            };
            (subvolume, dir) = match found.place(subvolume) {
                Some(place) => place,
                None => return Ok(None),
            };
        }
        Ok((dir == object::FIRST_FREE).then_some(subvolume))
    }
}
