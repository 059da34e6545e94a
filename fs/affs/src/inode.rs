//! Inodes: loading them from headers, storing them in headers.

use crate::layout::{
    ARCHIVED, Block, TICK_NS, amiga_to_posix, head, mode_to_protect, protect_to_mode, put_date, put_tail32,
    tail, tail_block, to_utf8,
};
use crate::readdir::ListedChain;
use crate::volume::{Affs, CycleCheck, Header, Kind};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::*;
use ivers_write_ordering::{Stage, Ticket};
use std::sync::Arc;

/// What the driver keeps with an inode in memory.
pub(crate) struct AffsInode {
    pub kind: Kind,
    pub state: RankedMutex<rank::Driver<15>, InodeState>,
}

#[derive(Default)]
pub(crate) struct InodeState {
    pub protect: u32,
    /// Latin-1.
    pub comment: Vec<u8>,
    /// Blocks of a regular file. Loaded at the first use.
    pub map: Option<Arc<BlockMap>>,
    /// Blocks that are reserved for dirty pages; see [`crate::file`].
    pub reserved: u64,
    /// End of the file that the reservation covers, in data blocks.
    pub reserved_end: u64,
    /// The last change that shrank the file. The file grows only after that change is durable.
    pub shrink_ticket: Ticket,
    /// The chain that `readdir` read last.
    pub listed_chain: Option<ListedChain>,
}

/// The blocks of a file, with all changes included that are not written yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockMap {
    pub size: u64,
    pub data: Vec<Block>,
    pub extensions: Vec<Block>,
    /// Blocks that the tables name although the size does not need them. Linux leaves such blocks. They are
    /// freed when the tables change.
    pub surplus: Vec<Block>,
}

pub(crate) fn affs_inode(inode: &Inode) -> &AffsInode {
    inode.private::<AffsInode>()
}

pub(crate) fn header_block(inode: &Inode) -> Block {
    Block(inode.ino.0 as u32)
}

/// Exchanges owners 0 and 0xFFFF, as the Multi-User File System does.
fn swap_root_id(id: u32, multi_user: bool) -> u32 {
    if multi_user && (id == 0 || id == 0xffff) { id ^ 0xffff } else { id }
}

impl Affs {
    /// Returns the hard links to an entry, newest first. Checks that each of them is a link to this entry.
    pub(crate) fn hard_links(&self, header: &Header) -> Result<Vec<Header>> {
        let mut all = Vec::new();
        let mut cycle = CycleCheck::new();
        let mut next = header.next_link();
        while next != Block::NONE {
            let link = self.header(next)?;
            let is_link = matches!(link.kind, Kind::LinkFile | Kind::LinkDirectory);
            if !is_link || link.real() != header.block || !cycle.step(next) {
                return Err(self.geometry.corrupt(
                    next,
                    format!("not a hard link to block {}, or the chain of links has a cycle", header.block),
                ));
            }
            next = link.next_link();
            all.push(link);
        }
        Ok(all)
    }

    pub(crate) fn fs_load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        let block = Block(u32::try_from(ino.0).map_err(|_| NameError::Stale)?);
        let Some(generation) = self.generation_of(block) else { return Err(NameError::Stale.into()) };
        if block != self.geometry.root && (!self.is_inside(block) || self.bitmap.is_free(block)) {
            return Err(NameError::Stale.into());
        }
        let header = match self.header(block) {
            // The block of an old inode number may have any other contents.
            Err(Error::Corrupt { .. }) if block != self.geometry.root => return Err(NameError::Stale.into()),
            header => header?,
        };
        if header.kind == Kind::LinkFile {
            return Err(NameError::Stale.into());
        }
        self.inode_from_header(&header, generation)
    }

    /// Decodes the inode of a header.
    pub(crate) fn inode_from_header(&self, header: &Header, generation: u32) -> Result<LoadedInode> {
        let geometry = &self.geometry;
        let (bytes, is_dir) = (&header.bytes, header.kind.is_dir());
        let protect = header.protect();
        let ids = |at: usize| {
            let at = bytes.len() - at;
            swap_root_id(
                u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])),
                geometry.variant.multi_user,
            )
        };
        // In the root block, other fields are at these offsets.
        let (uid, gid, perm) = match header.kind {
            Kind::Root => (0, 0, 0o755),
            Kind::SoftLink | Kind::LinkDirectory => (ids(tail::UID), ids(tail::GID), 0o777),
            _ => (ids(tail::UID), ids(tail::GID), protect_to_mode(protect, is_dir)),
        };
        let unit_512 = u64::from(geometry.block_size / 512);
        let (kind, size, blocks) = match header.kind {
            Kind::Root | Kind::Directory => (FileType::Directory, u64::from(geometry.block_size), 1),
            Kind::SoftLink | Kind::LinkDirectory => {
                (FileType::Symlink, self.link_target(header)?.len() as u64, 1)
            }
            Kind::File | Kind::LinkFile => {
                let data = geometry.data_blocks(header.size());
                if data > u64::from(geometry.blocks) {
                    return Err(geometry.corrupt(
                        header.block,
                        format!("the size of a file, {} bytes, is larger than the volume", header.size()),
                    ));
                }
                (FileType::Regular, header.size(), 1 + data + geometry.extensions(data))
            }
        };
        let nlink = if kind == FileType::Regular { 1 + self.hard_links(header)?.len() as u32 } else { 1 };
        let time = geometry.variant.date_in(bytes);
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
            private: Box::new(AffsInode {
                kind: header.kind,
                state: RankedMutex::new(InodeState { protect, comment, ..InodeState::default() }),
            }),
        })
    }

    pub(crate) fn comment_of(&self, header: &Header) -> Result<Vec<u8>> {
        let variant = self.geometry.variant;
        let invalid = || self.geometry.corrupt(header.block, "the length of the comment is invalid");
        let comment = variant.comment_in(&header.bytes).ok_or_else(invalid)?;
        let elsewhere = tail_block(&header.bytes, tail::LONG_COMMENT_BLOCK);
        if !variant.long_names || !comment.is_empty() || elsewhere == Block::NONE {
            return Ok(comment.to_vec());
        }
        let bytes = self.checked_buffer(elsewhere, "a comment")?.read();
        let len = usize::from(bytes[head::TABLE]);
        bytes.get(head::TABLE + 1..head::TABLE + 1 + len).map(<[u8]>::to_vec).ok_or_else(invalid)
    }

    /// Returns the target of a soft link, or of a hard link to a directory, which is shown as a symbolic
    /// link.
    pub(crate) fn link_target(&self, header: &Header) -> Result<Vec<u8>> {
        if header.kind == Kind::LinkDirectory {
            return self.relative_path(header);
        }
        let field = &header.bytes[head::TABLE..header.bytes.len() - tail::BM_FLAG];
        let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        Ok(amiga_to_posix(&field[..len]))
    }

    /// Returns the relative path from a hard link to its directory. The tree would have loops if it
    /// contained these links as directories.
    fn relative_path(&self, link: &Header) -> Result<Vec<u8>> {
        let up = self.names_up_to_root(link.parent())?.len();
        let real = self.header(link.real())?;
        if !real.kind.is_dir() {
            return Err(self
                .geometry
                .corrupt(link.block, "a hard link to a directory refers to another kind of entry"));
        }
        let down = self.names_up_to_root(real.block)?;
        let mut parts = vec![b"..".to_vec(); up];
        parts.extend(down.into_iter().rev());
        if parts.is_empty() {
            parts.push(b".".to_vec());
        }
        Ok(parts.join(&b'/'))
    }

    /// Returns the names from a directory up to the root.
    fn names_up_to_root(&self, dir: Block) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut cycle = CycleCheck::new();
        let mut at = dir;
        while at != self.geometry.root {
            let header = self.header(at)?;
            if header.kind != Kind::Directory || !cycle.step(at) {
                return Err(self.geometry.corrupt(at, "the parents of a directory do not lead to the root"));
            }
            names.push(to_utf8(self.name_of(&header)?));
            at = header.parent();
        }
        Ok(names)
    }

    /// Stores the attributes in the header. `prepare_setattr` has refused what a header cannot store.
    pub(crate) fn fs_log_inode(&self, inode: &Inode) -> Result<()> {
        let this = affs_inode(inode);
        let change = self.change()?;
        let mut state = this.state.lock();
        // Read under the lock: of two threads that log the inode, the later one writes the newer
        // attributes.
        let attr = inode.attr();
        let block = header_block(inode);
        let date = attr.mtime;
        self.bitmap.note_change_time(attr.ctime);
        if this.kind == Kind::Root {
            return self.edit(&change, block, Stage::Attach, |bytes| put_date(bytes, tail::DATE, date));
        }
        if !matches!(this.kind, Kind::SoftLink | Kind::LinkDirectory) {
            state.protect = mode_to_protect(attr.perm, state.protect, this.kind.is_dir());
        }
        let header = self.header(block)?;
        if this.kind == Kind::File && self.geometry.variant.date_in(&header.bytes) != date.truncate(TICK_NS) {
            state.protect &= !ARCHIVED;
        }
        drop(header);
        self.mark_record_stale(block);
        let (protect, owner) = (state.protect, self.owner_word(attr.uid, attr.gid));
        self.edit(&change, block, Stage::Attach, |bytes| {
            put_date(bytes, tail::DATE, date);
            put_tail32(bytes, tail::PROTECT, protect);
            put_tail32(bytes, tail::UID, owner);
        })
    }

    /// Returns owner and group as a header stores them.
    pub(crate) fn owner_word(&self, uid: u32, gid: u32) -> u32 {
        let [uid, gid] = [uid, gid].map(|id| swap_root_id(id, self.geometry.variant.multi_user) & 0xffff);
        uid << 16 | gid
    }
}
