//! Listing, making, snapshotting and deleting subvolumes on a mount.
//!
//! A program announces what its next mkdir(2) or rmdir(2) in a directory means: it sets the attribute
//! `system.ivers.subvolume` of the directory. So the kernel locks the directory, checks permissions, and
//! updates its caches as for any other directory. An announcement is valid for one call of the same thread,
//! with the same name.
//!
//! | value | next call |
//! |---|---|
//! | `create NAME` | mkdir(2) makes an empty subvolume |
//! | `snapshot INO NAME` | mkdir(2) makes a snapshot of the subvolume whose root has inode number INO |
//! | `snapshot-ro INO NAME` | the snapshot is read-only |
//! | `delete NAME` | rmdir(2) deletes the subvolume |
//!
//! Only root and the owner of the mount may delete, or snapshot a subvolume whose root directory belongs to
//! another user.
//!
//! A snapshot contains data that the kernel holds back only if it is flushed before: reading
//! `system.ivers.subvolume.flush` of the root of the source does so. This cannot be a part of the mkdir(2):
//! the kernel has locked the directory then, and a flush opens files by their paths.
//!
//! `system.ivers.subvolumes` has the first part of the list, for root and the owner of the mount. The next
//! part is `system.ivers.subvolumes.N`, where N is the number at the start of the previous part:
//!
//! ```text
//! N NUL                                            0: this was the last part
//! id parent flags generation sec nsec uuid parent_uuid received_uuid path NUL
//! ```
//!
//! `flags` has a 1 for read-only, a 2 for the default subvolume, and a 4 if there is a path. `parent` is 0 if
//! there is none. UUIDs are hexadecimal.

use crate::connection::{Connection, OrErrno};
use crate::nodes::Node;
use fuser::{Errno, INodeNo, Request};
use ivers_vfs::{Ino, SubvolumeInfo, Timestamp, Vfs};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Announces the meaning of the next mkdir(2) or rmdir(2) in a directory.
pub const SUBVOLUME: &str = "system.ivers.subvolume";
/// Reading it flushes what the kernel holds back of the files in a subvolume.
pub const SUBVOLUME_FLUSH: &str = "system.ivers.subvolume.flush";
/// The list of all subvolumes.
pub const SUBVOLUMES: &str = "system.ivers.subvolumes";

/// The announcements that are kept. The oldest one is dropped for another: its program has probably ended.
const KEPT: usize = 64;

/// What the next mkdir(2) or rmdir(2) means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubvolumeCall {
    /// mkdir(2) makes an empty subvolume.
    Create,
    /// mkdir(2) makes a snapshot.
    Snapshot {
        /// The inode number of the root of the source, as stat shows it.
        source: u64,
        /// Nothing in the snapshot can be changed.
        read_only: bool,
    },
    /// rmdir(2) deletes a subvolume.
    Delete,
}

impl SubvolumeCall {
    /// Returns the value to set.
    pub fn encode(&self, name: &[u8]) -> Vec<u8> {
        let head = match self {
            Self::Create => "create ".to_owned(),
            Self::Snapshot { source, read_only: false } => format!("snapshot {source} "),
            Self::Snapshot { source, read_only: true } => format!("snapshot-ro {source} "),
            Self::Delete => "delete ".to_owned(),
        };
        [head.as_bytes(), name].concat()
    }

    fn parse(value: &[u8]) -> Option<(Self, &[u8])> {
        let (word, rest) = split(value)?;
        let snapshot = |read_only| {
            let (source, name) = split(rest)?;
            Some((Self::Snapshot { source: number(source)?, read_only }, name))
        };
        match word {
            b"create" => Some((Self::Create, rest)),
            b"snapshot" => snapshot(false),
            b"snapshot-ro" => snapshot(true),
            b"delete" => Some((Self::Delete, rest)),
            _ => None,
        }
    }
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&byte| byte == b' ')?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

struct Announced {
    thread: u32,
    uid: u32,
    dir: u64,
    name: Vec<u8>,
    call: SubvolumeCall,
}

/// The announcements whose call has not arrived yet.
#[derive(Default)]
pub(crate) struct Announcements(Mutex<VecDeque<Announced>>);

impl Announcements {
    /// Keeps what a thread announces on a directory. It replaces what the thread announced before.
    pub(crate) fn announce(
        &self,
        connection: &Connection,
        request: &Request,
        dir: &Node,
        value: &[u8],
    ) -> Result<(), Errno> {
        let (call, name) = SubvolumeCall::parse(value).ok_or(Errno::EINVAL)?;
        if connection.vfs.fs().subvolumes().is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        let may = match call {
            SubvolumeCall::Create => true,
            SubvolumeCall::Delete => connection.is_for_owner(request),
            SubvolumeCall::Snapshot { source, .. } => {
                let source = connection.node(INodeNo(connection.nodes.id(source)))?;
                connection.is_for_owner(request) || source.inode.with_attr(|attr| attr.uid == request.uid())
            }
        };
        if !may {
            return Err(Errno::EPERM);
        }
        let (thread, uid) = (request.pid(), request.uid());
        let mut kept = self.0.lock();
        kept.retain(|one| one.thread != thread);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Announced { thread, uid, dir: dir.id, name: name.to_vec(), call });
        Ok(())
    }

    /// Takes what the thread of an mkdir(2) or rmdir(2) announced, if it is for this name.
    pub(crate) fn take(&self, request: &Request, dir: INodeNo, name: &[u8]) -> Option<SubvolumeCall> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|one| one.thread == request.pid())?;
        let is_meant = |one: &Announced| (one.uid, one.dir, &one.name[..]) == (request.uid(), dir.0, name);
        kept.remove(at).filter(is_meant).map(|one| one.call)
    }
}

/// Returns the subvolumes from number `first` on, in at most `bytes_max` bytes.
pub(crate) fn list(vfs: &Vfs, first: u64, bytes_max: usize) -> Result<Vec<u8>, Errno> {
    /// The longest decimal number, and its NUL.
    const HEAD_MAX: usize = 21;
    let all = vfs.list_subvolumes().or_errno()?;
    let (mut records, mut next) = (Vec::new(), 0);
    for one in all.iter().filter(|one| one.id >= first) {
        let record = encode(one);
        if records.len() + record.len() + HEAD_MAX > bytes_max {
            next = one.id;
            break;
        }
        records.extend(record);
    }
    if records.is_empty() && next != 0 {
        return Err(Errno::ERANGE);
    }
    Ok([next.to_string().as_bytes(), b"\0", &records].concat())
}

fn encode(one: &SubvolumeInfo) -> Vec<u8> {
    let hex = |uuid: &[u8; 16]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let has_path = one.path.is_some();
    let flags = u8::from(one.read_only) | u8::from(one.is_default) << 1 | u8::from(has_path) << 2;
    let head = format!(
        "{} {} {flags} {} {} {} {} {} {} ",
        one.id,
        one.parent.unwrap_or(0),
        one.generation,
        one.created.sec,
        one.created.nsec,
        hex(&one.uuid),
        hex(&one.parent_uuid),
        hex(&one.received_uuid)
    );
    [head.as_bytes(), one.path.as_deref().unwrap_or_default(), b"\0"].concat()
}

/// Parses a part of the list into its subvolumes and the number of the next part, if there is one.
pub fn parse_subvolumes(value: &[u8]) -> Option<(Vec<SubvolumeInfo>, Option<u64>)> {
    let mut records = value.strip_suffix(b"\0")?.split(|&byte| byte == 0);
    let next: u64 = number(records.next()?)?;
    let all = records.map(decode).collect::<Option<_>>()?;
    Some((all, Some(next).filter(|&next| next != 0)))
}

fn decode(record: &[u8]) -> Option<SubvolumeInfo> {
    let mut fields = record.splitn(10, |&byte| byte == b' ');
    let mut next = || fields.next();
    let uuid = |text: &[u8]| -> Option<[u8; 16]> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 32 && text.is_ascii())?;
        let mut uuid = [0; 16];
        for (nth, byte) in uuid.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * nth..2 * nth + 2], 16).ok()?;
        }
        Some(uuid)
    };
    let (id, parent, flags): (u64, u64, u8) = (number(next()?)?, number(next()?)?, number(next()?)?);
    let (generation, sec, nsec) = (number(next()?)?, number(next()?)?, number(next()?)?);
    let [own, parent_uuid, received_uuid] = [uuid(next()?)?, uuid(next()?)?, uuid(next()?)?];
    let path = next()?.to_vec();
    Some(SubvolumeInfo {
        id,
        parent: Some(parent).filter(|&parent| parent != 0),
        path: (flags & 4 != 0).then_some(path),
        read_only: flags & 1 != 0,
        is_default: flags & 2 != 0,
        generation,
        uuid: own,
        parent_uuid,
        received_uuid,
        created: Timestamp { sec, nsec },
    })
}

impl Connection {
    /// Whether a request is one of root, or of the owner of the mount.
    pub(crate) fn is_for_owner(&self, request: &Request) -> bool {
        request.uid() == 0 || request.uid() == self.mounter()
    }

    /// Returns whether a file in the subvolume with this root is open.
    pub(crate) fn is_open_in(&self, root: &Node) -> bool {
        let is_in = |node: &Node| self.vfs.is_in_subvolume(&root.inode, Ino(self.nodes.ino(node.id)));
        !self.nodes.all(|node| node.has_handles() && is_in(node)).is_empty()
    }

    /// Makes the kernel hand over what it holds back of files in the subvolume with this root. `then` is told
    /// whether that worked for all files that have a name.
    pub(crate) fn flush_subvolume(self: &Arc<Self>, root: &Node, then: impl FnOnce(bool) + Send + 'static) {
        let is_in = |node: &Node| self.vfs.is_in_subvolume(&root.inode, Ino(self.nodes.ino(node.id)));
        let held = self.nodes.all(|node| node.is_held_back() && is_in(node));
        self.flush_all(held, Box::new(then));
    }

    fn flush_all(self: &Arc<Self>, mut nodes: Vec<Arc<Node>>, then: Box<dyn FnOnce(bool) + Send>) {
        let Some(node) = nodes.pop() else { return then(true) };
        // A snapshot does not show a file without a name.
        if node.inode.attr().nlink == 0 {
            return self.flush_all(nodes, then);
        }
        let connection = self.clone();
        self.flush_in_time(
            node,
            move |flushed| {
                if flushed { connection.flush_all(nodes, then) } else { then(false) }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subvolumes_survive_the_round_trip() {
        let one = |id, path: Option<&[u8]>| SubvolumeInfo {
            id,
            parent: (id > 5).then_some(5),
            path: path.map(<[u8]>::to_vec),
            read_only: id % 2 == 0,
            is_default: id == 5,
            generation: u64::MAX,
            uuid: [0xA7; 16],
            parent_uuid: [0; 16],
            received_uuid: [1; 16],
            created: Timestamp { sec: -7, nsec: 999_999_999 },
        };
        let all = vec![one(5, Some(b"")), one(256, Some(b"a b/\xff c ")), one(257, None)];
        let mut value = b"300\0".to_vec();
        all.iter().for_each(|one| value.extend(encode(one)));
        assert_eq!(parse_subvolumes(&value), Some((all.clone(), Some(300))));
        assert_eq!(parse_subvolumes(b"0\0"), Some((vec![], None)));
        for end in 0..value.len() - 1 {
            assert_ne!(parse_subvolumes(&value[..end]), Some((all.clone(), Some(300))), "{end}");
        }
    }

    #[test]
    fn calls_survive_the_round_trip() {
        let snapshot = |read_only| SubvolumeCall::Snapshot { source: u64::MAX, read_only };
        for call in [SubvolumeCall::Create, SubvolumeCall::Delete, snapshot(true), snapshot(false)] {
            for name in [&b"name"[..], b"a name ", b"\xff"] {
                assert_eq!(SubvolumeCall::parse(&call.encode(name)), Some((call, name)));
            }
        }
        for bad in [&b""[..], b"create", b"snapshot x name", b"snapshot 7", b"snapshot-1 7 name", b" "] {
            assert_eq!(SubvolumeCall::parse(bad), None, "{bad:?}");
        }
    }
}
