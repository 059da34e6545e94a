//! Operations on files. Clients' state is reached through [`Clients`](crate::compound::Clients) only.
//!
//! | module | operations |
//! |---|---|
//! | `filehandle` | PUTFH, PUTROOTFH, PUTPUBFH, GETFH, SAVEFH, RESTOREFH |
//! | `filehandle` | LOOKUP, LOOKUPP, READLINK, SECINFO, SECINFO_NO_NAME |
//! | `attr` | GETATTR, SETATTR, VERIFY, NVERIFY |
//! | `access` | ACCESS |
//! | `readdir` | READDIR |
//! | `namespace` | CREATE, LINK, REMOVE, RENAME |
//! | `open` | the part of OPEN that works on files |
//! | `file_io` | READ, WRITE, COMMIT |
//! | `ranges_v42` | SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, COPY, IO_ADVISE |
//! | `xattr` | GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR |

mod access;
pub mod attr;
mod component;
mod durability;
mod file_io;
pub(crate) mod filehandle;
mod namespace;
pub(crate) mod open;
mod ranges_v42;
mod readdir;
mod xattr;

use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::{Encoder, Xdr};

use crate::compound::Context;
use crate::state::Step;

/// The outcome of [`perform`].
#[derive(Debug)]
pub enum Outcome {
    /// The result is in the reply.
    Written,
    /// The result, which is not in the reply yet.
    Result(Box<OpResult>),
    /// The operation works on clients' state. The executor performs it.
    OfState,
}

/// The largest result of an operation that changes something, in bytes. With less room left, the operation
/// does not run. Other operations run first, and their result is dropped if it does not fit.
pub fn result_bytes_min(op: &Op) -> usize {
    const BARE: usize = 8;
    const CHANGE_INFO: usize = 20;
    const BITMAP: usize = 16;
    const STATEID: usize = 16;
    match op.number() {
        number::LINK | number::REMOVE | number::SETXATTR | number::REMOVEXATTR => BARE + CHANGE_INFO,
        number::RENAME => BARE + 2 * CHANGE_INFO,
        number::CREATE => BARE + CHANGE_INFO + BITMAP,
        number::SETATTR => BARE + BITMAP,
        number::WRITE | number::COMMIT => BARE + 16,
        number::COPY => BARE + 4 + STATEID + 8 + 4 + 8 + 8,
        // With a delegation, the principal of its permissions, and its space limit.
        number::OPEN => BARE + STATEID + CHANGE_INFO + 4 + BITMAP + 4 + STATEID + 4 + 12 + 16 + 256,
        number::OPEN_CONFIRM | number::OPEN_DOWNGRADE | number::CLOSE | number::LOCKU => BARE + STATEID,
        // Either the stateid, or the conflicting lock with its owner.
        number::LOCK => BARE + 8 + 8 + 4 + 8 + 4 + 1024,
        _ => BARE,
    }
}

/// Whether an operation is usually answered from memory. Exceptions: an ACL, or a filehandle of a file that
/// is not in the inode cache, may take one read from the device.
pub fn answers_from_memory(number: u32) -> bool {
    matches!(
        number,
        number::SEQUENCE
            | number::PUTFH
            | number::PUTROOTFH
            | number::PUTPUBFH
            | number::GETFH
            | number::SAVEFH
            | number::RESTOREFH
            | number::GETATTR
            | number::ACCESS
            | number::RENEW
            | number::TEST_STATEID
    )
}

fn put_ok<T: Xdr>(out: &mut Encoder, result: T) -> Step<Outcome> {
    NfsStat::Ok.put(out);
    result.put(out);
    Ok(Outcome::Written)
}

/// Runs an operation. `out` already contains its number; the result is appended. On error, the caller
/// truncates `out`.
pub fn perform(context: &mut Context, op: &Op, out: &mut Encoder) -> Step<Outcome> {
    match op {
        Op::Access(want) => put_ok(out, access::access(context, *want)?),
        Op::Commit(args) => put_ok(out, file_io::commit(context, args)?),
        Op::Create(args) => put_ok(out, namespace::create(context, args)?),
        Op::GetAttr(want) => put_ok(out, attr::get_attr(context, want)?),
        Op::GetFh(()) => put_ok(out, filehandle::get_fh(context)?),
        Op::Link(name) => put_ok(out, namespace::link(context, name)?),
        Op::Lookup(name) => put_ok(out, filehandle::lookup(context, name)?),
        Op::LookupP(()) => put_ok(out, filehandle::lookupp(context)?),
        Op::NVerify(given) => put_ok(out, attr::nverify(context, given)?),
        // [RFC8881 18.17.3] There are no named attributes.
        Op::OpenAttr(_) => context.current_fh().map_err(Into::into).and(Err(NfsStat::Notsupp.into())),
        Op::PutFh(handle) => put_ok(out, filehandle::put_fh(context, handle)?),
        Op::PutPubFh(()) | Op::PutRootFh(()) => put_ok(out, filehandle::put_root_fh(context)?),
        Op::Read(args) => file_io::read(context, args, out).map(|()| Outcome::Written),
        Op::ReadDir(args) => readdir::read_dir(context, args, out).map(|()| Outcome::Written),
        Op::ReadLink(()) => put_ok(out, filehandle::read_link(context)?),
        Op::Remove(name) => put_ok(out, namespace::remove(context, name)?),
        Op::Rename(args) => put_ok(out, namespace::rename(context, args)?),
        Op::RestoreFh(()) => put_ok(out, filehandle::restore_fh(context)?),
        Op::SaveFh(()) => put_ok(out, filehandle::save_fh(context)?),
        Op::SecInfo(name) => put_ok(out, filehandle::sec_info(context, name)?),
        Op::SecInfoNoName(style) => put_ok(out, filehandle::sec_info_no_name(context, *style)?),
        Op::SetAttr(args) => {
            // The result contains the status, as it lists the attributes that were set even on error.
            attr::set_attr(context, args)?.put(out);
            Ok(Outcome::Written)
        }
        Op::Verify(given) => put_ok(out, attr::verify(context, given)?),
        Op::Write(args) => put_ok(out, file_io::write(context, args)?),
        Op::Allocate(args) => put_ok(out, ranges_v42::allocate(context, args)?),
        Op::Copy(args) => Ok(Outcome::Result(Box::new(OpResult::Copy(ranges_v42::copy(context, args)?)))),
        Op::Deallocate(args) => put_ok(out, ranges_v42::deallocate(context, args)?),
        Op::IoAdvise(args) => put_ok(out, ranges_v42::io_advise(context, args)?),
        Op::ReadPlus(args) => put_ok(out, ranges_v42::read_plus(context, args)?),
        Op::Seek(args) => put_ok(out, ranges_v42::seek(context, args)?),
        Op::GetXattr(name) => put_ok(out, xattr::get(context, name)?),
        Op::SetXattr(args) => put_ok(out, xattr::set(context, args)?),
        Op::ListXattrs(args) => put_ok(out, xattr::list(context, args)?),
        Op::RemoveXattr(name) => put_ok(out, xattr::remove(context, name)?),
        Op::Clone(args) => put_ok(out, ranges_v42::clone(context, args)?),
        Op::Unsupported(_) => Err(NfsStat::Notsupp.into()),
        Op::Close(_)
        | Op::DelegPurge(_)
        | Op::DelegReturn(_)
        | Op::Lock(_)
        | Op::LockT(_)
        | Op::LockU(_)
        | Op::Open(_)
        | Op::OpenConfirm(_)
        | Op::OpenDowngrade(_)
        | Op::Renew(_)
        | Op::SetClientId(_)
        | Op::SetClientIdConfirm(_)
        | Op::ReleaseLockOwner(_)
        | Op::BackchannelCtl(_)
        | Op::BindConnToSession(_)
        | Op::ExchangeId(_)
        | Op::CreateSession(_)
        | Op::DestroySession(_)
        | Op::FreeStateId(_)
        | Op::Sequence(_)
        | Op::TestStateId(_)
        | Op::DestroyClientId(_)
        | Op::OffloadCancel(_)
        | Op::OffloadStatus(_)
        | Op::ReclaimComplete(_) => Ok(Outcome::OfState),
    }
}
