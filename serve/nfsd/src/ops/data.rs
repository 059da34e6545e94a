//! READ, WRITE, COMMIT.

use ivers_nfs4::ops::v40::{CommitArgs, ReadArgs, WriteArgs, WriteOk};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{StableHow, StateId, Verifier};
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_vfs::WriteFlags;
use ivers_vfs::access::{EXECUTE, READ, WRITE};

use super::status::OrStatus;
use crate::compound::{Context, Held, Object};
use crate::state::{Does, Step};

/// Nobody's stateids: who uses them has not opened the file.
pub fn is_special(stateid: &StateId) -> bool {
    matches!(*stateid, StateId::ANONYMOUS | StateId::READ_BYPASS)
}

/// Leave to read an object. Who opened it himself was checked then; who did not, and uses a special stateid or that of another user, is checked now. The owner may always, since he could let himself.
pub fn may_read(context: &Context, object: &Object, stateid: &StateId) -> Step<Held> {
    let cred = object.regular(context.minor)?.reader()?;
    let stateid = context.meant(stateid)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let check = || match inode.with_attr(|attr| attr.uid) == cred.uid {
        true => Ok(()),
        // What may be run must be read by the client that runs it.
        false => vfs.access(cred, inode, READ).or_else(|_| vfs.access(cred, inode, EXECUTE)).nfs(),
    };
    permit_checked(context, object, &stateid, Does::Read, check)
}

/// Who did not open it is checked: by a special stateid before anybody is asked to stand aside for him, by another's when it is known to be one.
fn permit_checked(
    context: &Context,
    object: &Object,
    stateid: &StateId,
    does: Does,
    check: impl FnOnce() -> Res<()>,
) -> Step<Held> {
    if is_special(stateid) {
        check()?;
        return context.permit(object, stateid, does);
    }
    let leave = context.permit(object, stateid, does)?;
    if !context.is_opener(stateid) {
        check()?;
    }
    Ok(leave)
}

/// Leave to write to an object, likewise.
pub fn may_write(context: &Context, object: &Object, stateid: &StateId) -> Step<Held> {
    let cred = object.regular(context.minor)?.writer()?;
    let stateid = context.meant(stateid)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let check = || match inode.with_attr(|attr| attr.uid) == cred.uid {
        true => Ok(()),
        false => vfs.access(cred, inode, WRITE).nfs(),
    };
    permit_checked(context, object, &stateid, Does::Write, check)
}

/// The end of a range that the protocol can express.
pub fn end_of(offset: u64, length: u64) -> Res<u64> {
    offset.checked_add(length).ok_or(NfsStat::Inval)
}

/// READ: the data goes into the reply at once.
pub fn read(context: &Context, args: &ReadArgs, out: &mut Encoder) -> Step<()> {
    let object = context.object(NfsStat::Isdir)?;
    let _leave = may_read(context, object, &args.stateid)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let behind = inode.size().saturating_sub(args.offset);
    let most = u64::from(args.count.min(context.service.bounds.data_bytes)).min(behind) as usize;
    NfsStat::Ok.put(out);
    let eof_at = out.len();
    false.put(out);
    let read = match most {
        0 => {
            out.opaque(&[]);
            0
        }
        _ => out.opaque_with(most, |space| vfs.read(inode, args.offset, space)).nfs()?,
    };
    // [RFC8881 18.22.3]
    let eof = args.offset.saturating_add(read as u64) >= inode.size();
    out.patch_word(eof_at, u32::from(eof));
    Ok(())
}

/// WRITE.
pub fn write(context: &Context, args: &WriteArgs) -> Step<WriteOk> {
    let object = context.object(NfsStat::Isdir)?;
    let _leave = may_write(context, object, &args.stateid)?;
    // [RFC8881 18.32.3]
    end_of(args.offset, args.data.len() as u64)?;
    let (vfs, inode, cred) = (object.vfs(), &object.inode, object.writer()?);
    // Before: what is lost while this is under way changes it behind our back, and the client sees that.
    let verifier = object.export.filesystem.verifier();
    let most = args.data.len().min(context.service.bounds.data_bytes as usize);
    let flags = match args.stable {
        StableHow::FileSync => WriteFlags::SYNC,
        StableHow::Unstable | StableHow::DataSync => WriteFlags::empty(),
    };
    let count = vfs.write(cred, inode, args.offset, &args.data[..most], flags).nfs()? as u32;
    // [RFC8881 18.32.3]
    if args.stable == StableHow::DataSync {
        vfs.fsync(inode, true).nfs()?;
    }
    Ok(WriteOk { count, committed: args.stable, verifier })
}

/// COMMIT: all of the file, whatever the range.
pub fn commit(context: &Context, args: &CommitArgs) -> Step<Verifier> {
    let object = context.object(NfsStat::Isdir)?.regular(context.minor)?;
    // [RFC8881 18.3.3]
    end_of(args.offset, u64::from(args.count))?;
    object.vfs().fsync(&object.inode, false).nfs()?;
    // Behind the flush: what was lost before it is counted.
    Ok(object.export.filesystem.verifier())
}
