//! Holes: SEEK (RFC 7862, 15.11).

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::share;
use ivers_nfs4::ops::v42::{DataContent, SeekArgs};
use ivers_vfs::*;

use crate::driver::Nfs;
use crate::reply::take;

impl BlockMapOps for Nfs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let (node, size) = (self.node(inode), inode.size());
        let range = |end: u64, kind| MappedRange { start: offset, len: end.saturating_sub(offset), kind };
        if offset >= size {
            return Ok(range(u64::MAX, RangeKind::Hole));
        }
        let ops = |stateid| {
            let seek = |what: DataContent| Op::Seek(SeekArgs { stateid, offset, what: what as u32 });
            vec![seek(DataContent::Hole), seek(DataContent::Data)]
        };
        let place = self.place(node);
        let outcome = self.with_stateid(&Cred::system(), node, share::READ, ops)?;
        let mut results = match outcome.up_to(2, &place) {
            Ok((results, _)) => results,
            // The file is shorter there, because its newest bytes are cached here.
            Err(Error::Name(NameError::NoSuchOffset)) => return Ok(range(u64::MAX, RangeKind::Hole)),
            // The server does not know, or does not say: all of it is data.
            Err(Error::Name(NameError::NotSupported | NameError::Access)) => {
                return Ok(range(size, RangeKind::Data));
            }
            Err(error) => return Err(error),
        };
        results.skip();
        let hole = take!(results, Seek)?;
        if hole.offset > offset {
            return Ok(range(hole.offset, RangeKind::Data));
        }
        // Where nothing follows, some servers fail and others say that it is the end.
        let data = take!(results, Seek).ok().filter(|data| !data.eof && data.offset > offset);
        Ok(range(data.map_or(u64::MAX, |data| data.offset), RangeKind::Hole))
    }
}
