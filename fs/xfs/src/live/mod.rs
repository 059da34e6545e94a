//! Changes through the VFS. `docs/xfs.md` has the design: locks, transactions, delayed allocation, the epoch.
//!
//! | module | contents |
//! |---|---|
//! | `volume` | the open filesystem, and verified blocks of it |
//! | `session` | the state of a writable mount |
//! | `vnode` | what the driver keeps with an inode of the VFS |
//! | `attributes` | attributes of the VFS in inodes |
//! | `change` | one transaction, and the inodes in it |
//! | `edits` | what a change does to an inode: the calls of the layers below |
//! | `names` | create, link, unlink, rename |
//! | `reservations`, `writeback`, `copies` | delayed allocation, data, copy on write |
//! | `space`, `clones` | truncation and fallocate; files that get the blocks of others |
//! | `removal`, `unfreed` | freeing inodes without names; those that wait for it |
//! | `epoch`, `unmount` | the epoch record; the end of a session |
//! | `ops` | names, data and attributes as the VFS calls them |

mod attributes;
mod change;
mod clones;
mod copies;
mod edits;
mod epoch;
mod names;
mod ops;
mod removal;
mod reservations;
mod session;
mod space;
mod unfreed;
mod unmount;
mod vnode;
mod volume;
mod writeback;

pub(crate) use crate::write::space::journal_error;
pub(crate) use session::Session;
pub(crate) use vnode::{XfsInode, core_of, private_of};
pub use volume::Xfs;
