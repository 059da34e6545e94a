//! What is in a directory, with all that a walk asks of each file: one request for hundreds of them instead of several for each.
//!
//! `system.ivers.children` of a directory is its beginning; what follows is `system.ivers.children.N`, with the number that the
//! value before it begins with:
//!
//! ```text
//! N NUL                                             0: that was all
//! ino generation change mode uid gid size name NUL  each number decimal; change is `-` where it must be asked for alone
//! ```
//!
//! Each change attribute counts as seen, and is that of the file that had the name when the directory was locked. Files of which the kernel
//! holds something back, does not show something yet or shows what it could not write have none here: asked for alone they are flushed first. Whoever may read and search the directory may ask.

use crate::nodes::Node;
use crate::serving::{OrErrno, Serving};
use fuser::{Errno, INodeNo, Request};
use ivers_vfs::Cred;
use std::sync::Arc;

/// The name of the attribute; see the module.
pub const CHILDREN: &str = "system.ivers.children";
/// The kernel hands out no longer values (`XATTR_SIZE_MAX`).
pub const CHILDREN_MAX: usize = 64 << 10;

/// So many are looked up at once. They fit, unless their names are long.
const BATCH: usize = 512;
/// The longest number, and its NUL.
const HEAD_MAX: usize = 21;
const READ_AND_SEARCH: u32 = 5;

/// A name in a directory, and the file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The number that stat shows.
    pub ino: u64,
    /// Which life of that number.
    pub generation: u32,
    /// The change attribute, if it was to be had at once.
    pub change: Option<u64>,
    /// Kind and permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// In bytes.
    pub size: u64,
    /// Without the directory.
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

/// What a value says, and the number of the one that follows it, if there is one.
pub fn parse_children(value: &[u8]) -> Option<(Vec<Child>, Option<u64>)> {
    let mut records = value.strip_suffix(b"\0")?.split(|&byte| byte == 0);
    let next: u64 = std::str::from_utf8(records.next()?).ok()?.parse().ok()?;
    let children = records.map(Child::parse).collect::<Option<_>>()?;
    Some((children, Some(next).filter(|&next| next != 0)))
}

/// The value for a directory from a cursor on, of at most so many bytes.
pub(crate) fn value(
    serving: &Serving,
    request: &Request,
    ino: INodeNo,
    mut cursor: u64,
    bytes_max: usize,
) -> Result<Vec<u8>, Errno> {
    let (vfs, dir) = (&serving.vfs, serving.node(ino)?);
    // The kernel asks nobody's permission for a name of this kind.
    let cred = match serving.cred(request) {
        cred if cred.checked => Cred { groups: serving.groups_of(request), checked: false, ..cred },
        cred => cred,
    };
    vfs.access(&cred, &dir.inode, READ_AND_SEARCH).or_errno()?;
    let listed = vfs.list(&dir.inode, cursor, BATCH).or_errno()?;
    let (mut records, mut is_all) = (Vec::new(), listed.len() < BATCH);
    for entry in listed {
        // A damaged inode has no facts; whoever asks for it alone is told why.
        let inode = entry.inode.or_errno()?;
        let ino = serving.nodes.id(inode.ino.0);
        let known = serving.nodes.get(ino);
        let (mut change, attr) = match &known {
            Some(node) if node.is_held_back() || node.has_diverged() => (None, vfs.stat(&inode)),
            Some(node) => node.changes.number(|| vfs.observe(&inode)),
            None => vfs.observe(&inode),
        };
        // Behind the number: a change that it counts was noted before. Of a node that has come meanwhile it may count anything.
        let may_count = |node: Arc<Node>| known.is_none() || serving.has_unfinished(&node);
        change = change.filter(|_| !serving.nodes.get(ino).is_some_and(may_count));
        let (mode, generation) = (attr.kind.mode_bits() | attr.perm, inode.generation);
        let (uid, gid, size, name) = (attr.uid, attr.gid, attr.size, entry.name);
        let before = records.len();
        Child { ino, generation, change, mode, uid, gid, size, name }.put(&mut records);
        if records.len() + HEAD_MAX > bytes_max {
            records.truncate(before);
            is_all = false;
            break;
        }
        cursor = entry.next;
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
    fn what_is_put_is_what_is_parsed() {
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
