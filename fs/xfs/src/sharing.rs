//! Which blocks files share: reading the B-trees of reference counts.

use crate::btree::TreeSource;
use crate::inode::Dinode;
use crate::layout::bytes::number;
use crate::layout::dinode::flags2;
use crate::layout::tree::TreeKind;
use crate::live::Xfs;
use ivers_block::BlockNo;
use ivers_vfs::Result;

impl Dinode {
    /// Whether other files may have blocks of this file.
    pub(crate) fn may_share(&self) -> bool {
        self.flags2() & flags2::REFLINK != 0
    }
}

impl Xfs {
    /// How many of `len` blocks of one group, from the first one on, are alike, and whether files share them.
    /// The caller keeps changes of groups away.
    pub(crate) fn sharing(&self, start: BlockNo, len: u64) -> Result<(u64, bool)> {
        let (ag, first) = self.sb.ag_of_device(start);
        let root = self.refcount_root(ag)?;
        let (mut alike, mut shared) = (0, false);
        while alike < len {
            let at = first.saturating_add(alike as u32);
            let (record, next) = self.find_in_group(TreeKind::Refcounts, ag, root, at)?;
            let field = |at| record.as_deref().and_then(|record| number(record, at, 4)).unwrap_or(0);
            // Records do not overlap, and blocks without a record have one owner.
            let end = field(0) + field(4);
            let (end, here) = match end > at.into() {
                true => (end, field(8) > 1),
                false => (next.map_or(u64::MAX, u64::from), false),
            };
            if alike > 0 && here != shared {
                break;
            }
            shared = here;
            // A damaged tree may have a record before the block as the next one.
            alike += end.saturating_sub(at.into()).max(1);
        }
        Ok((alike.min(len), shared))
    }
}
