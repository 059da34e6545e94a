//! What is kept beside an inode, and inodes from and to their headers.

use crate::layout::{
    ARCHIVED, Block, TICK_NS, head, mode_of, posix_path, protect_of, put_date, put_tail32, tail, tail_block,
    to_utf8,
};
use crate::listing::Listing;
use crate::volume::{Affs, Header, Hops, Kind};
use ivers_vfs::sync::Mutex;
use ivers_vfs::*;
use ivers_write_ordering::{Stage, Ticket};
use std::sync::Arc;

/// What is kept beside an inode.
pub(crate) struct Node {
    pub kind: Kind,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub protect: u32,
    /// In Latin-1.
    pub comment: Vec<u8>,
    /// A regular file's blocks, once somebody asked for them.
    pub map: Option<Arc<Map>>,
    /// Blocks promised to dirty pages; see [`crate::file`].
    pub promised: u64,
    /// Up to where pages have been promised room, in data blocks.
    pub promised_end: u64,
    /// The change that last made the file shorter: it is not lengthened before that is durable.
    pub shrunk: Ticket,
    /// What `readdir` last read.
    pub listing: Option<Listing>,
}

/// Where a file lies, as the device shall have it when all changes are home.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Map {
    pub size: u64,
    pub data: Vec<Block>,
    pub extensions: Vec<Block>,
    /// What the tables name beyond what the size needs: others (Linux) leave such blocks. They go when the tables change.
    pub surplus: Vec<Block>,
}

pub(crate) fn node(inode: &Inode) -> &Node {
    inode.private::<Node>()
}

pub(crate) fn block_of(inode: &Inode) -> Block {
    Block(inode.ino.0 as u32)
}

/// A volume of the Multi-User File System keeps root as the other end of the numbers.
fn swap_root(id: u32, multi_user: bool) -> u32 {
    if multi_user && (id == 0 || id == 0xffff) { id ^ 0xffff } else { id }
}

impl Affs {
    /// The hard links to what a header is, newest first: each is one, and leads here.
    pub(crate) fn links_of(&self, header: &Header) -> Result<Vec<Header>> {
        let mut all = Vec::new();
        let mut hops = Hops::new();
        let mut next = header.next_link();
        while next != Block::NONE {
            let link = self.header(next)?;
            let is_link = matches!(link.kind, Kind::LinkFile | Kind::LinkDirectory);
            if !is_link || link.real() != header.block || !hops.step(next) {
                return Err(self.shape.damaged(next, format!("no link to block {}", header.block)));
            }
            next = link.next_link();
            all.push(link);
        }
        Ok(all)
    }

    pub(crate) fn fs_load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        let block = Block(u32::try_from(ino.0).map_err(|_| NameError::Stale)?);
        let Some(generation) = self.life(block) else { return Err(NameError::Stale.into()) };
        if block != self.shape.root && (!self.is_inside(block) || self.space.is_free(block)) {
            return Err(NameError::Stale.into());
        }
        let header = match self.header(block) {
            // A number that was kept for long may be that of any block by now.
            Err(Error::Corrupt { .. }) if block != self.shape.root => return Err(NameError::Stale.into()),
            header => header?,
        };
        if header.kind == Kind::LinkFile {
            return Err(NameError::Stale.into());
        }
        self.loaded(&header, generation)
    }

    /// The inode of a header.
    pub(crate) fn loaded(&self, header: &Header, generation: u32) -> Result<LoadedInode> {
        let shape = &self.shape;
        let (bytes, is_dir) = (&header.bytes, header.kind.is_dir());
        let protect = header.protect();
        let ids = |at: usize| {
            let at = bytes.len() - at;
            swap_root(u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])), shape.flavour.multi_user)
        };
        // The root keeps other things where headers have these.
        let (uid, gid, perm) = match header.kind {
            Kind::Root => (0, 0, 0o755),
            Kind::SoftLink | Kind::LinkDirectory => (ids(tail::UID), ids(tail::GID), 0o777),
            _ => (ids(tail::UID), ids(tail::GID), mode_of(protect, is_dir)),
        };
        let unit_512 = u64::from(shape.block_size / 512);
        let (kind, size, blocks) = match header.kind {
            Kind::Root | Kind::Directory => (FileType::Directory, u64::from(shape.block_size), 1),
            Kind::SoftLink | Kind::LinkDirectory => {
                (FileType::Symlink, self.link_target(header)?.len() as u64, 1)
            }
            Kind::File | Kind::LinkFile => {
                let data = shape.data_blocks(header.size());
                if data > u64::from(shape.blocks) {
                    return Err(shape.damaged(
                        header.block,
                        format!("a file of {} bytes on a smaller volume", header.size()),
                    ));
                }
                (FileType::Regular, header.size(), 1 + data + shape.extensions(data))
            }
        };
        let nlink = if kind == FileType::Regular { 1 + self.links_of(header)?.len() as u32 } else { 1 };
        let time = shape.flavour.date_in(bytes);
        let comment = match header.kind {
            Kind::Root => Vec::new(),
            _ => self.comment_of(header)?,
        };
        Ok(LoadedInode {
            ino: header.block.ino(),
            generation,
            attr: Attr {
                kind,
                perm,
                uid,
                gid,
                project: 0,
                nlink,
                size,
                blocks_512: blocks * unit_512,
                rdev: 0,
                atime: time,
                mtime: time,
                ctime: time,
                btime: None,
                flags: InodeFlags::empty(),
            },
            counter: InitialCounter::NotStored,
            private: Box::new(Node {
                kind: header.kind,
                state: Mutex::new(State { protect, comment, ..State::default() }),
            }),
        })
    }

    pub(crate) fn comment_of(&self, header: &Header) -> Result<Vec<u8>> {
        let flavour = self.shape.flavour;
        let impossible = || self.shape.damaged(header.block, "the comment is impossible");
        let comment = flavour.comment_in(&header.bytes).ok_or_else(impossible)?;
        let elsewhere = tail_block(&header.bytes, tail::LONG_COMMENT_BLOCK);
        if !flavour.long_names || !comment.is_empty() || elsewhere == Block::NONE {
            return Ok(comment.to_vec());
        }
        let bytes = self.sealed(elsewhere, "a comment")?.read();
        let len = usize::from(bytes[head::TABLE]);
        bytes.get(head::TABLE + 1..head::TABLE + 1 + len).map(<[u8]>::to_vec).ok_or_else(impossible)
    }

    /// The target of what shows as a symbolic link.
    pub(crate) fn link_target(&self, header: &Header) -> Result<Vec<u8>> {
        if header.kind == Kind::LinkDirectory {
            return self.way_to(header);
        }
        let room = &header.bytes[head::TABLE..header.bytes.len() - tail::BM_FLAG];
        let len = room.iter().position(|&byte| byte == 0).unwrap_or(room.len());
        Ok(posix_path(&room[..len]))
    }

    /// From where a hard link to a directory stands to that directory. A tree with such links as they are would have loops.
    fn way_to(&self, link: &Header) -> Result<Vec<u8>> {
        let up = self.above(link.parent())?.len();
        let real = self.header(link.real())?;
        if !real.kind.is_dir() {
            return Err(self.shape.damaged(link.block, "a link to a directory leads to something else"));
        }
        let down = self.above(real.block)?;
        let mut parts = vec![b"..".to_vec(); up];
        parts.extend(down.into_iter().rev());
        if parts.is_empty() {
            parts.push(b".".to_vec());
        }
        Ok(parts.join(&b'/'))
    }

    /// The names from a directory up to the root.
    fn above(&self, dir: Block) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut hops = Hops::new();
        let mut at = dir;
        while at != self.shape.root {
            let header = self.header(at)?;
            if header.kind != Kind::Directory || !hops.step(at) {
                return Err(self.shape.damaged(at, "the directories above do not lead to the root"));
            }
            names.push(to_utf8(self.name_of(&header)?));
            at = header.parent();
        }
        Ok(names)
    }

    /// Attributes into the header. What no header can keep was refused before; see `fit`.
    pub(crate) fn fs_log_inode(&self, inode: &Inode) -> Result<()> {
        let this = node(inode);
        let change = self.change()?;
        let mut state = this.state.lock();
        // Read under the lock: of two who log at once, the later one writes the newer.
        let attr = inode.attr();
        let block = block_of(inode);
        let date = attr.mtime;
        self.space.changed_at(attr.ctime);
        if this.kind == Kind::Root {
            return self.edit(&change, block, Stage::Attach, |bytes| put_date(bytes, tail::DATE, date));
        }
        if !matches!(this.kind, Kind::SoftLink | Kind::LinkDirectory) {
            state.protect = protect_of(attr.perm, state.protect, this.kind.is_dir());
        }
        let header = self.header(block)?;
        if this.kind == Kind::File && self.shape.flavour.date_in(&header.bytes) != date.truncate(TICK_NS) {
            state.protect &= !ARCHIVED;
        }
        drop(header);
        self.is_stale(block);
        let (protect, owner) = (state.protect, self.owner_word(attr.uid, attr.gid));
        self.edit(&change, block, Stage::Attach, |bytes| {
            put_date(bytes, tail::DATE, date);
            put_tail32(bytes, tail::PROTECT, protect);
            put_tail32(bytes, tail::UID, owner);
        })
    }

    /// Owner and group as a header has them.
    pub(crate) fn owner_word(&self, uid: u32, gid: u32) -> u32 {
        let [uid, gid] = [uid, gid].map(|id| swap_root(id, self.shape.flavour.multi_user) & 0xffff);
        uid << 16 | gid
    }
}
