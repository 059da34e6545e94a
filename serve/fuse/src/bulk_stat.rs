//! The entries of a directory with the attributes that a tree walk needs: one request for hundreds of files,
//! instead of several for each file. A server is asked for them together, too.
//!
//! `system.ivers.children` of a directory has the first part. The next part is `system.ivers.children.N`,
//! where N is the number at the start of the previous part:
//!
//! ```text
//! N NUL                                             0: this was the last part
//! ino generation change mode uid gid size name NUL  decimal; change is `-` if it needs a query
//! ```
//!
//! Each change attribute counts as queried. It is that of the file which had the name while the directory was
//! locked. It is missing for a file of which the kernel holds back data, does not show a change yet, or shows
//! data that could not be written; a separate query flushes the file first. A caller needs read and search
//! permission for the directory.

use crate::connection::{Connection, OrErrno};
use crate::nodes::Node;
use fuser::{Errno, INodeNo, Request};
use ivers_vfs::{Cred, InodeRef};
use std::sync::Arc;

/// The name of the attribute; see the module.
pub const CHILDREN: &str = "system.ivers.children";
/// The longest value that the kernel passes on (`XATTR_SIZE_MAX`).
pub const CHILDREN_MAX: usize = 64 << 10;

/// Entries looked up at once. They fit unless their names are long.
const BATCH: usize = 512;
/// The longest decimal number, and its NUL.
const HEAD_MAX: usize = 21;
/// The longest record without its name: three numbers of 64 bits and four of 32 bits, each with a blank, and
/// a NUL.
const RECORD_MAX: usize = 3 * 21 + 4 * 11 + 1;
/// The longest name that the kernel passes on.
const NAME_MAX: usize = 255;
const READ_AND_SEARCH: u32 = 5;

/// A name in a directory, with the attributes of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The inode number that stat shows.
    pub ino: u64,
    /// The generation of the inode.
    pub generation: u32,
    /// The change attribute, if it was available at once.
    pub change: Option<u64>,
    /// File type and permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The name within the directory.
    pub name: Vec<u8>,
}

impl Child {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { ino, generation, change, mode, uid, gid, size, name } = self;
        let change = change.map_or_else(|| "-".to_owned(), |change| change.to_string());
        out.extend_from_slice(format!("{ino} {generation} {change} {mode} {uid} {gid} {size} ").as_bytes());
        out.extend_from_slice(name);
        out.push(0);
    }

    fn parse(record: &[u8]) -> Option<Self> {
        let mut fields = record.splitn(8, |&byte| byte == b' ');
        let mut word = || std::str::from_utf8(fields.next()?).ok();
        let (ino, generation) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let change = match word()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        let (mode, uid, gid) = (word()?.parse().ok()?, word()?.parse().ok()?, word()?.parse().ok()?);
        let size = word()?.parse().ok()?;
        let name = fields.next().filter(|name| !name.is_empty() && !name.contains(&b'/'))?.to_vec();
        Some(Self { ino, generation, change, mode, uid, gid, size, name })
    }
}

/// Parses a value into its entries and the number of the next part, if there is one.
pub fn parse_children(value: &[u8]) -> Option<(Vec<Child>, Option<u64>)> {
    let mut records = value.strip_suffix(b"\0")?.split(|&byte| byte == 0);
    let next: u64 = std::str::from_utf8(records.next()?).ok()?.parse().ok()?;
    let children = records.map(Child::parse).collect::<Option<_>>()?;
    Some((children, Some(next).filter(|&next| next != 0)))
}

/// An entry before its file is queried.
struct Entry {
    name: Vec<u8>,
    next: u64,
    inode: InodeRef,
    /// The node of the file, if the kernel had one.
    known: Option<Arc<Node>>,
    is_asked: bool,
}

/// Returns whether the kernel holds back data of a file, or shows data that could not be written.
fn cannot_show(node: &Node) -> bool {
    node.is_held_back() || node.has_diverged()
}

/// Returns the part of a directory that begins at a cursor, of at most `size` bytes.
pub(crate) fn value(
    connection: &Connection,
    request: &Request,
    ino: INodeNo,
    mut cursor: u64,
    bytes_max: usize,
) -> Result<Vec<u8>, Errno> {
    let (vfs, dir) = (&connection.vfs, connection.node(ino)?);
    // The kernel checks no permission for a name with this prefix.
    let cred = match connection.cred(request) {
        cred if cred.access_checked => {
            Cred { groups: connection.groups_of(request), access_checked: false, ..cred }
        }
        cred => cred,
    };
    vfs.access(&cred, &dir.inode, READ_AND_SEARCH).or_errno()?;
    // What is asked for is part of this value: a server is asked once for each file.
    let (mut taken, mut bytes, mut is_all) = (0, HEAD_MAX, true);
    let listed = vfs.list_until(&cred, &dir.inode, cursor, false, &mut |name| {
        taken += 1;
        bytes += RECORD_MAX + name.len();
        is_all = taken < BATCH && bytes + RECORD_MAX + NAME_MAX <= bytes_max;
        !is_all
    });
    let mut entries = Vec::new();
    for entry in listed.or_errno()? {
        // If an inode is damaged, the whole part fails. The caller then asks for each file, and learns which.
        let inode = entry.inode.or_errno()?;
        let known = connection.nodes.get(connection.nodes.id(inode.ino.0));
        let is_asked = !known.as_deref().is_some_and(cannot_show);
        entries.push(Entry { name: entry.name, next: entry.next, inode, known, is_asked });
    }
    let asked = entries.iter().filter(|entry| entry.is_asked);
    let asked: Vec<_> = asked.map(|entry| entry.inode.clone()).collect();
    let mut observed = vfs.observe_many(&asked);
    let mut records = Vec::new();
    for Entry { name, next, inode, known, is_asked } in entries {
        let ino = connection.nodes.id(inode.ino.0);
        let mut observe = || {
            let observed = if is_asked { observed.next() } else { None };
            observed.unwrap_or_else(|| (None, vfs.stat(&inode)))
        };
        let (mut change, attr) = match &known {
            Some(node) => node.changes.number(observe),
            None => observe(),
        };
        // After the query: a change that it counts was noted before. For a node that appeared concurrently it
        // may count anything.
        let may_count =
            |node: Arc<Node>| known.is_none() || cannot_show(&node) || connection.has_inflight(&node);
        change = change.filter(|_| !connection.nodes.get(ino).is_some_and(may_count));
        let (mode, generation) = (attr.kind.mode_bits() | attr.perm, inode.generation);
        let (uid, gid, size) = (attr.uid, attr.gid, attr.size);
        let before = records.len();
        Child { ino, generation, change, mode, uid, gid, size, name }.put(&mut records);
        if records.len() + HEAD_MAX > bytes_max {
            records.truncate(before);
            is_all = false;
            break;
        }
        cursor = next;
    }
    if records.is_empty() && !is_all {
        return Err(Errno::ERANGE);
    }
    let next = if is_all { 0 } else { cursor };
    Ok([next.to_string().as_bytes(), b"\0", &records].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_round_trip() {
        let child = |name: &[u8], change| Child {
            ino: u64::MAX,
            generation: 7,
            change,
            mode: 0o100_644,
            uid: 1000,
            gid: 4,
            size: 1 << 40,
            name: name.to_vec(),
        };
        let children = vec![child(b"a b  c ", Some(3)), child(b"\xff\n", None)];
        let mut value = b"12\0".to_vec();
        children.iter().for_each(|child| child.put(&mut value));
        assert_eq!(parse_children(&value), Some((children.clone(), Some(12))));
        assert_eq!(parse_children(b"0\0"), Some((vec![], None)));
        for end in 0..value.len() - 1 {
            assert_ne!(parse_children(&value[..end]), Some((children.clone(), Some(12))), "{end}");
        }
        for bad in [
            &b""[..],
            b"0",
            b"x\0",
            b"0\09 2 3 4 5 6 7\0",
            b"0\09 2 3 4 5 6 7 \0",
            b"0\09 2 3 4 5 6 7 ../x\0",
        ] {
            assert_eq!(parse_children(bad), None, "{bad:?}");
        }
    }
}
