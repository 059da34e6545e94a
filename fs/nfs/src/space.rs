//! Space of files: ALLOCATE, DEALLOCATE (RFC 7862, 15.1, 15.4).

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::share;
use ivers_nfs4::ops::v42::RangeArgs;
use ivers_vfs::*;

use crate::attributes;
use crate::driver::Nfs;

impl AllocateOps for Nfs {
    fn fallocate(
        &self,
        caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        length: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let (node, end) = (self.node(inode), offset.saturating_add(length));
        let punches = mode == FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        // ALLOCATE makes the file longer.
        let allocates = mode.is_empty() || (mode == FallocateMode::KEEP_SIZE && end <= inode.size());
        if !punches && !allocates {
            return Err(NameError::NotSupported.into());
        }
        let ops = |stateid| {
            let range = RangeArgs { stateid, offset, length };
            let op = if punches { Op::Deallocate(range) } else { Op::Allocate(range) };
            vec![op, Op::GetAttr(attributes::of_file())]
        };
        let changing = self.changing(node);
        let done = self.with_stateid(caller, node, share::WRITE, ops);
        let (mut results, sent) = self.change(done.and_then(|done| done.up_to(2, &self.place(node))))?;
        (0..2).for_each(|_| results.skip());
        if punches {
            node.open.with_unstable(|unstable| unstable.forget(offset..end));
        }
        changing.learn_or_expire(&mut results, sent)
    }
}
