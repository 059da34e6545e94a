//! READ, WRITE, COMMIT.

use ivers_nfs4::ops::v40::{CommitArgs, ReadArgs, WriteArgs, WriteOk};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{StableHow, StateId, Verifier};
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_vfs::WriteFlags;
use ivers_vfs::access::{EXECUTE, READ, WRITE};

use crate::compound::status::OrStatus;
use crate::compound::{Context, Object, PermitGuard};
use crate::state::{Access, Step};

/// Whether the stateid is one of the special values, which refer to no open.
pub fn is_special(stateid: &StateId) -> bool {
    matches!(*stateid, StateId::ANONYMOUS | StateId::READ_BYPASS)
}

/// Begins to read an object. OPEN has checked the rights of the user that opened the file. A special stateid,
/// or one of another user, is checked now. The owner of the file always passes, as it could change the mode.
pub fn begin_read(context: &Context, object: &Object, stateid: &StateId) -> Step<PermitGuard> {
    let cred = object.regular(context.minor)?.read_cred()?;
    let stateid = context.resolve_stateid(stateid)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let check = || match inode.with_attr(|attr| attr.uid) == cred.uid {
        true => Ok(()),
        // A client must read a program to run it, so execute permission suffices.
        false => vfs.access(cred, inode, READ).or_else(|_| vfs.access(cred, inode, EXECUTE)).nfs(),
    };
    begin_checked(context, object, &stateid, Access::Read, check)
}

/// Begins an access, and runs `check` unless the caller opened the file. For a special stateid the check
/// comes first: a caller without rights must not cause a recall of a delegation.
fn begin_checked(
    context: &Context,
    object: &Object,
    stateid: &StateId,
    does: Access,
    check: impl FnOnce() -> Res<()>,
) -> Step<PermitGuard> {
    if is_special(stateid) {
        check()?;
        return context.begin_access(object, stateid, does);
    }
    let guard = context.begin_access(object, stateid, does)?;
    if !context.is_opener(stateid) {
        check()?;
    }
    Ok(guard)
}

/// Begins to write to an object, with the checks of [`begin_read`].
pub fn begin_write(context: &Context, object: &Object, stateid: &StateId) -> Step<PermitGuard> {
    let cred = object.regular(context.minor)?.write_cred()?;
    let stateid = context.resolve_stateid(stateid)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let check = || match inode.with_attr(|attr| attr.uid) == cred.uid {
        true => Ok(()),
        false => vfs.access(cred, inode, WRITE).nfs(),
    };
    begin_checked(context, object, &stateid, Access::Write, check)
}

/// The end of a byte range. Error: NFS4ERR_INVAL if it exceeds 64 bits.
pub fn range_end(offset: u64, length: u64) -> Res<u64> {
    offset.checked_add(length).ok_or(NfsStat::Inval)
}

/// READ. The data is written into the reply directly.
pub fn read(context: &Context, args: &ReadArgs, out: &mut Encoder) -> Step<()> {
    let object = context.object(NfsStat::Isdir)?;
    let _guard = begin_read(context, object, &args.stateid)?;
    let (vfs, inode, cred) = (object.vfs(), &object.inode, object.read_cred()?);
    let available = inode.size().saturating_sub(args.offset);
    let count = u64::from(args.count.min(context.service.limits.data_bytes_max)).min(available) as usize;
    NfsStat::Ok.put(out);
    let eof_at = out.len();
    false.put(out);
    let read = match count {
        0 => {
            out.opaque(&[]);
            0
        }
        _ => out.opaque_with(count, |space| vfs.read(cred, inode, args.offset, space)).nfs()?,
    };
    // [RFC8881 18.22.3]
    let eof = args.offset.saturating_add(read as u64) >= inode.size();
    out.patch_word(eof_at, u32::from(eof));
    Ok(())
}

/// WRITE.
pub fn write(context: &Context, args: &WriteArgs) -> Step<WriteOk> {
    let object = context.object(NfsStat::Isdir)?;
    let _guard = begin_write(context, object, &args.stateid)?;
    // [RFC8881 18.32.3]
    range_end(args.offset, args.data.len() as u64)?;
    let (vfs, inode, cred) = (object.vfs(), &object.inode, object.write_cred()?);
    // Take the verifier before the write: if data is lost meanwhile, the client sees another verifier later.
    let verifier = object.export.filesystem.verifier();
    let count = args.data.len().min(context.service.limits.data_bytes_max as usize);
    let flags = match args.stable {
        StableHow::FileSync => WriteFlags::SYNC,
        StableHow::Unstable | StableHow::DataSync => WriteFlags::empty(),
    };
    let count = vfs.write(cred, inode, args.offset, &args.data[..count], flags).nfs()? as u32;
    // [RFC8881 18.32.3]
    if args.stable == StableHow::DataSync {
        vfs.fsync(inode, true).nfs()?;
    }
    Ok(WriteOk { count, committed: args.stable, verifier })
}

/// COMMIT. Flushes the whole file, whatever the range.
pub fn commit(context: &Context, args: &CommitArgs) -> Step<Verifier> {
    let object = context.object(NfsStat::Isdir)?.regular(context.minor)?;
    // [RFC8881 18.3.3]
    range_end(args.offset, u64::from(args.count))?;
    object.vfs().fsync(&object.inode, false).nfs()?;
    // Take the verifier after the flush: it includes every loss before.
    Ok(object.export.filesystem.verifier())
}
