//! Read-ahead of directories, for programs that list one directory after the other, as find(1) does.
//!
//! The request for the start of a listing also asks for the listings of directories that follow in the same
//! parent. It does so if the directory is the first one of its parent, or if the one before was listed. The
//! longer the row of listed directories before it, the more are asked for. The replies count within the
//! attribute timeout, as all replies do.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ivers_nfs4::ops::Op;
use ivers_vfs::{FileType, Ino};

use crate::attributes;
use crate::driver::{Nfs, REPLY_OVERHEAD, all_rights};
use crate::listing;
use crate::nodes::Node;

/// Directories that are asked for with the first one of a parent.
const FIRST: usize = 2;
/// The most directories that one request asks for ahead.
const MOST: usize = 32;
/// Bytes of each of their listings. A longer one is not kept.
const LISTING_BYTES: u32 = 16 << 10;
/// Bytes of the other results of a directory, and of its operations.
const OTHER_BYTES: usize = 1024;
/// PUTFH, ACCESS, GETATTR, READDIR.
const OPERATIONS: usize = 4;
/// Operations of the directory that the program lists, with SEQUENCE.
const OWN_OPERATIONS: usize = 5;
/// A parent with more directories is not searched for more.
const SEARCHED_MAX: usize = 4096;

impl Nfs {
    /// Returns directories that the program will probably list after `dir`. Those with a known listing are
    /// left out.
    pub(crate) fn ahead_of(&self, dir: &Node) -> Vec<Arc<Node>> {
        self.siblings_after(dir).unwrap_or_default()
    }

    fn siblings_after(&self, dir: &Node) -> Option<Vec<Arc<Node>>> {
        // A server of NFSv4.0 does not say how much it takes.
        if self.attribute_timeout.is_zero() || self.client.is_version_40() {
            return None;
        }
        let parent = self.nodes.find_number(Ino(dir.parent.load(Relaxed)))?;
        let parts = self.listings.whole(parent.ino, parent.change())?;
        let items = parts.iter().flat_map(|part| &part.items).take(SEARCHED_MAX);
        let directories = items.filter(|item| item.attributes.kind == Some(FileType::Directory));
        let handles: Vec<_> =
            directories.filter_map(|item| Some(&item.attributes.file.as_ref()?.0)).collect();
        let own = handles.iter().position(|handle| **handle == dir.handle)?;
        let (before, after) = (&handles[..own], &handles[own + 1..]);
        let is_listed = |node: &Arc<Node>| self.listings.has_whole(node.ino, node.change());
        let was_listed = |handle: &_| self.nodes.find(handle).is_some_and(|node| is_listed(&node));
        let in_a_row = before.iter().rev().take(MOST).take_while(|handle| was_listed(handle)).count();
        if in_a_row == 0 && !before.is_empty() {
            return None;
        }
        let most = (2 * in_a_row).clamp(FIRST, MOST).min(self.ahead_max()?);
        let unknown = after.iter().filter_map(|handle| self.nodes.find(handle)).filter(|it| !is_listed(it));
        Some(unknown.take(most).collect())
    }

    /// Returns how many directories a request can ask for ahead.
    fn ahead_max(&self) -> Option<usize> {
        let session = self.client.session().ok()?;
        let operations = session.operations_max.saturating_sub(OWN_OPERATIONS) / OPERATIONS;
        let each = LISTING_BYTES as usize + OTHER_BYTES;
        // Half is for the directory itself.
        let reply = session.reply_bytes_max.saturating_sub(REPLY_OVERHEAD) / 2 / each;
        let request = session.request_bytes_max / 2 / OTHER_BYTES;
        Some(operations.min(reply).min(request))
    }

    /// Returns the operations that ask for directories ahead.
    pub(crate) fn ops_ahead(&self, ahead: &[Arc<Node>]) -> Vec<Op> {
        let each = |node: &Arc<Node>| {
            [
                Op::PutFh(node.handle.clone()),
                Op::Access(all_rights()),
                Op::GetAttr(attributes::of_file()),
                Op::ReadDir(listing::start(LISTING_BYTES)),
            ]
        };
        ahead.iter().flat_map(each).collect()
    }
}
