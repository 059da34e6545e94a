//! Extended attributes: in the inode's body, in a block that several inodes may share, and values in
//! attribute inodes.

mod acl;
mod block;
pub(crate) mod body;
mod inode;
mod relocate;

use crate::fs::{Ext4, Handle, core_of};
use crate::layout::{Compat, Incompat};
use body::{Attribute, INDEX_SYSTEM, INLINE_DATA, Table, Value};
use ivers_vfs::{Cred, Error, Inode, Logged, NameError, Result, Touch, XattrMode, XattrOps};

/// Name index of `trusted.*`.
pub(crate) const INDEX_TRUSTED: u8 = 4;
const INDEX_ACL_ACCESS: u8 = 2;
const INDEX_ACL_DEFAULT: u8 = 3;
const INDEX_RICHACL: u8 = 8;
/// Longest name after its prefix, in bytes.
const NAME_MAX: usize = 255;
/// Longest value that the system calls accept, in bytes.
const VALUE_MAX: usize = 65536;
/// Blocks that setting one attribute may change: the old and the new block, bitmap, descriptor, inode, and a
/// margin.
const CREDITS: u32 = 24;

/// Prefixes and their indexes; `true` marks a complete name.
const PREFIXES: &[(u8, &[u8], bool)] = &[
    (INDEX_ACL_ACCESS, b"system.posix_acl_access", true),
    (INDEX_ACL_DEFAULT, b"system.posix_acl_default", true),
    (INDEX_RICHACL, b"system.richacl", true),
    (1, b"user.", false),
    (INDEX_TRUSTED, b"trusted.", false),
    (6, b"security.", false),
    (INDEX_SYSTEM, b"system.", false),
];

/// Splits a full name into index and short name.
fn split_name(name: &[u8]) -> Result<(u8, &[u8])> {
    for &(index, prefix, whole) in PREFIXES {
        match name.strip_prefix(prefix) {
            Some(b"") if whole => return Ok((index, b"")),
            Some(rest) if !whole && !rest.is_empty() => {
                return match rest.len() {
                    // Inline data is not an attribute for users.
                    _ if index == INDEX_SYSTEM && rest == INLINE_DATA => Err(NameError::NotSupported.into()),
                    0..=NAME_MAX => Ok((index, rest)),
                    _ => Err(NameError::Range.into()),
                };
            }
            _ => {}
        }
    }
    Err(NameError::NotSupported.into())
}

/// Joins an index and a short name to a full name, if users may see it.
fn join_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    if index == INDEX_SYSTEM && name == INLINE_DATA {
        return None;
    }
    let &(_, prefix, whole) = PREFIXES.iter().find(|(known, ..)| *known == index)?;
    (whole == name.is_empty()).then(|| [prefix, name].concat())
}

impl Ext4 {
    pub(crate) fn body_attributes(&self, inode: &Inode) -> Result<Vec<Attribute>> {
        Table::Body.parse(&core_of(inode).read().body_xattrs).map_err(|what| self.corrupt_inode(what, inode))
    }

    fn value_of(&self, attribute: Attribute) -> Result<Vec<u8>> {
        match attribute.value {
            Value::Here(value) => Ok(value),
            Value::Inode { ino, size } => self.ea_inode_value(ino, size),
        }
    }

    /// Returns the value of an attribute by name index and short name, or `None`.
    pub(crate) fn xattr_get_raw(&self, inode: &Inode, index: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = self.body_attributes(inode)?.into_iter().find(|a| a.is(index, name));
        if found.is_none() {
            found = self.block_attributes(inode)?.into_iter().find(|a| a.is(index, name));
        }
        found.map(|attribute| self.value_of(attribute)).transpose()
    }

    /// Deletes attribute inodes without references. This thread must hold no handle.
    pub(crate) fn delete_ea_inodes(&self, dead: Vec<Inode>) -> Result<()> {
        dead.iter().try_for_each(|inode| self.delete_unused(inode))
    }

    /// Converts a value to its stored form.
    fn stored_value(&self, index: u8, value: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        Ok(match (index, value) {
            (INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT, Some(value)) => {
                Some(acl::to_disk(value).ok_or(NameError::Invalid)?)
            }
            (_, value) => value.map(<[u8]>::to_vec),
        })
    }

    /// Sets the first attributes of a new inode, by full name. The caller logs the inode.
    pub(crate) fn xattr_init(
        &self,
        h: &mut Handle,
        inode: &Inode,
        attributes: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<()> {
        for (name, value) in attributes {
            let (index, short) = split_name(name)?;
            let stored = self.stored_value(index, Some(value))?;
            self.xattr_set_raw(h, inode, index, short, stored.as_deref())?;
        }
        Ok(())
    }

    /// Sets or removes an attribute within a transaction. Changes `InodeCore` and attribute blocks; the
    /// caller logs the inode.
    pub(crate) fn xattr_set_raw(
        &self,
        h: &mut Handle,
        inode: &Inode,
        index: u8,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        // No transaction may start here: dead inodes stay orphans until the next mount.
        self.xattr_set(h, inode, index, name, value, &mut Vec::new())
    }

    /// Like `xattr_set_raw`; adds to `dead` the attribute inodes to delete after the handle has ended, also
    /// on lack of space.
    fn xattr_set(
        &self,
        h: &mut Handle,
        inode: &Inode,
        index: u8,
        name: &[u8],
        value: Option<&[u8]>,
        dead: &mut Vec<Inode>,
    ) -> Result<()> {
        let body_before = self.body_attributes(inode)?;
        let block_before = self.block_attributes(inode)?;
        let mut in_body = body_before.clone();
        let mut in_block = block_before.clone();
        in_body.retain(|a| !a.is(index, name));
        in_block.retain(|a| !a.is(index, name));
        let room = core_of(inode).read().body_xattrs.len();
        let mut made_inode = None;
        if let Some(value) = value {
            let here = Attribute { index, name: name.to_vec(), value: Value::Here(value.to_vec()), hash: 0 };
            if !self.place_attribute(room, &mut in_body, &mut in_block, here.clone()) {
                if !self.sb.incompat.contains(Incompat::EA_INODE) {
                    return Err(NameError::NoSpace.into());
                }
                let size = value.len() as u32;
                let named = Attribute { value: Value::Inode { ino: 0, size }, ..here };
                // Make an inode only if there is space for the name.
                if !self.place_attribute(room, &mut in_body, &mut in_block, named) {
                    return Err(NameError::NoSpace.into());
                }
                let (ino, value_hash) = self.make_ea_inode(h, inode, value, dead)?;
                made_inode = Some(ino);
                for made in in_body.iter_mut().chain(&mut in_block).filter(|a| a.is(index, name)) {
                    made.hash = body::name_hash(name).rotate_left(16) ^ value_hash;
                    made.value = Value::Inode { ino, size };
                }
            }
        }
        if in_block != block_before {
            if !self.sb.compat.contains(Compat::EXT_ATTR) && !in_block.is_empty() {
                return Err(NameError::NotSupported.into());
            }
            match self.store_block_attributes(h, inode, &block_before, &in_block) {
                Ok(gone) => dead.extend(gone),
                Err(error) => {
                    // The new inode stays without references.
                    if let Some(ino) = made_inode {
                        dead.extend(self.put_ea_inode(h, ino)?);
                    }
                    return Err(error);
                }
            }
        }
        if room > 0 {
            core_of(inode).write().body_xattrs = Table::Body.encode(room, &in_body).into();
        }
        for gone in body_before.iter().filter(|old| !in_body.contains(old)) {
            dead.extend(self.put_value(h, &gone.value)?);
        }
        let charged =
            |body: &[Attribute], block: &[Attribute]| self.value_blocks(body) + self.value_blocks(block);
        self.add_blocks_512(inode, charged(&in_body, &in_block) - charged(&body_before, &block_before));
        Ok(())
    }

    /// Blocks of attribute inodes, which count as blocks of every inode that refers to them.
    fn value_blocks(&self, attributes: &[Attribute]) -> i64 {
        let blocks = attributes.iter().map(|a| match a.value {
            Value::Here(_) => 0,
            Value::Inode { size, .. } => i64::from(size.div_ceil(self.sb.block_size)),
        });
        blocks.sum()
    }

    /// Places an attribute in the body, else in the block; false if it fits neither.
    fn place_attribute(
        &self,
        room: usize,
        in_body: &mut Vec<Attribute>,
        in_block: &mut Vec<Attribute>,
        new: Attribute,
    ) -> bool {
        for (table, len, attributes) in
            [(Table::Body, room, in_body), (Table::Block, self.sb.block_size as usize, in_block)]
        {
            attributes.push(new.clone());
            if table.fits(len, attributes) {
                return true;
            }
            attributes.pop();
        }
        false
    }

    /// Releases everything that the attributes of an inode in deletion hold: the block's reference, attribute
    /// inodes. Returns the attribute inodes to delete after the handle has ended.
    pub(crate) fn xattr_delete_all(&self, h: &mut Handle, inode: &Inode) -> Result<Vec<Inode>> {
        let mut dead = self.release_attribute_block(h, inode)?;
        let in_body = self.body_attributes(inode)?;
        core_of(inode).write().body_xattrs.clear();
        for gone in in_body {
            dead.extend(self.put_value(h, &gone.value)?);
        }
        Ok(dead)
    }
}

impl XattrOps for Ext4 {
    fn value_max(&self) -> u32 {
        65536
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let (index, short) = split_name(name)?;
        let value = self.xattr_get_raw(inode, index, short)?.ok_or(NameError::NoAttribute)?;
        match index {
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => acl::from_disk(&value)
                .ok_or_else(|| self.corrupt_inode("an access control list is damaged", inode)),
            _ => Ok(value),
        }
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for attribute in self.body_attributes(inode)?.iter().chain(&self.block_attributes(inode)?) {
            names.extend(join_name(attribute.index, &attribute.name));
        }
        Ok(names)
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (index, short) = split_name(name)?;
        if value.is_some_and(|value| value.len() > VALUE_MAX) {
            return Err(NameError::AttributeTooLarge.into());
        }
        let exists = self
            .body_attributes(inode)?
            .iter()
            .chain(&self.block_attributes(inode)?)
            .any(|a| a.is(index, short));
        mode.check(exists, value.is_none())?;
        let stored = self.stored_value(index, value)?;
        let blocks = value.map_or(0, <[u8]>::len).div_ceil(self.sb.block_size as usize) as u32;
        let mut h = self.begin(CREDITS + blocks)?;
        let mut dead = Vec::new();
        let set = self.xattr_set(&mut h, inode, index, short, stored.as_deref(), &mut dead);
        if set.is_ok() {
            inode.changed(Touch::Metadata, Logged::Anyway);
            self.log(&mut h, inode)?;
        }
        drop(h);
        match set {
            Ok(()) => self.delete_ea_inodes(dead),
            // Delete the inodes that were made before space ran out.
            Err(Error::Name(_)) => self.delete_ea_inodes(dead).and(set),
            Err(_) => set,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_and_join() {
        for (name, index, short) in [
            (&b"user.a"[..], 1, &b"a"[..]),
            (b"trusted.ivers.epoch", 4, b"ivers.epoch"),
            (b"security.selinux", 6, b"selinux"),
            (b"system.posix_acl_access", 2, b""),
            (b"system.posix_acl_default", 3, b""),
            (b"system.other", 7, b"other"),
        ] {
            assert_eq!(split_name(name).unwrap(), (index, short));
            assert_eq!(join_name(index, short).unwrap(), name);
        }
        for name in [&b"user."[..], b"system.data", b"nonsense", b"other.x", b""] {
            assert!(split_name(name).is_err());
        }
        assert_eq!(join_name(7, b"data"), None);
        assert_eq!(join_name(99, b"x"), None);
    }

    #[test]
    fn attribute_tables_round_trip() {
        let attribute = |index, name: &[u8], value: &[u8]| Attribute {
            index,
            name: name.to_vec(),
            value: Value::Here(value.to_vec()),
            hash: 0,
        };
        let mut all =
            vec![attribute(6, b"selinux", b"label"), attribute(1, b"b", b""), attribute(1, b"a", &[7; 33])];
        for (table, len) in [(Table::Body, 128), (Table::Block, 1024)] {
            assert!(table.fits(len, &all));
            let area = table.encode(len, &all);
            let mut read = table.parse(&area).unwrap();
            for a in &mut read {
                a.hash = 0;
            }
            if table == Table::Block {
                all.sort_by_key(|a| (a.index, a.name.len(), a.name.clone()));
            }
            assert_eq!(read, all);
            assert!(!table.fits(80, &all));
        }
        assert_eq!(Table::Body.encode(96, &[]), vec![0; 96]);
    }

    #[test]
    fn values_that_share_bytes_are_errors() {
        let named = |name: &[u8]| Attribute {
            index: 1,
            name: name.to_vec(),
            value: Value::Here(vec![1; 30]),
            hash: 0,
        };
        let mut area = Table::Body.encode(96, &[named(b"a")]);
        // The same value again, under another name.
        let (first, second) = (4, 4 + 20);
        area.copy_within(first..second, second);
        area[second + 16] = b'b';
        assert!(Table::Body.parse(&area).is_err());
        assert!(body::without_inline_data(&area).is_err());
    }

    #[test]
    fn hostile_tables_are_errors() {
        let attribute =
            Attribute { index: 1, name: b"name".to_vec(), value: Value::Here(vec![1; 20]), hash: 0 };
        let area = Table::Body
            .encode(96, &[attribute.clone(), Attribute { index: 7, name: b"data".to_vec(), ..attribute }]);
        for at in 0..area.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = area.clone();
                bad[at] = byte;
                let _ = Table::Body.parse(&bad);
                let _ = Table::Block.parse(&bad);
                let _ = body::inline_data_range(&bad);
                let _ = body::without_inline_data(&bad);
            }
        }
    }
}
