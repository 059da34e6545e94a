//! What operations do to files. They know of clients only what [`Clients`](crate::compound::Clients) answers.
//!
//! | module | operations |
//! |---|---|
//! | `handle` | PUTFH, PUTROOTFH, PUTPUBFH, GETFH, SAVEFH, RESTOREFH, LOOKUP, LOOKUPP, READLINK, SECINFO, SECINFO_NO_NAME |
//! | `attr` | GETATTR, SETATTR, VERIFY, NVERIFY |
//! | `access` | ACCESS |
//! | `list` | READDIR |
//! | `names` | CREATE, LINK, REMOVE, RENAME |
//! | `open` | of OPEN, what it does to files |
//! | `data` | READ, WRITE, COMMIT |
//! | `ranges` | SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, COPY, IO_ADVISE |
//! | `xattr` | GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR |

mod access;
pub mod attr;
mod data;
pub(crate) mod handle;
mod list;
mod name;
mod names;
pub(crate) mod open;
mod ranges;
pub mod status;
mod xattr;

use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_vfs::InodeRef;

use crate::compound::{Answered, Context, Object};
use crate::state::Step;
use status::OrStatus;

/// Whether an operation's result is in the reply already.
#[derive(Debug)]
pub enum Put {
    /// It is.
    Result,
    /// It is here, with its number.
    Answered(Answered),
}

/// Names and attributes are durable when they are answered, unless the export says that they need not be. Then they are a little later: within the time that its mount leaves
/// any change in memory. Data is nobody's business here: WRITE and COMMIT say themselves when it is durable, and with it the names that lead to it.
pub(crate) fn settle(object: &Object, inodes: &[&InodeRef]) -> Res<()> {
    if object.is_deferred() { Ok(()) } else { object.vfs().commit(inodes).nfs() }
}

/// Bytes that the result of an operation which changes something may take, or begins something: for less it is not begun. The others are done first, and forgotten if
/// they do not fit.
pub fn least_room(op: &Op) -> usize {
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
        // With a delegation, whose entry names somebody, and the offset of a limit.
        number::OPEN => BARE + STATEID + CHANGE_INFO + 4 + BITMAP + 4 + STATEID + 4 + 12 + 16 + 256,
        number::OPEN_CONFIRM | number::OPEN_DOWNGRADE | number::CLOSE | number::LOCKU => BARE + STATEID,
        // Either the stateid or the lock that is in the way, with its owner.
        number::LOCK => BARE + 8 + 8 + 4 + 8 + 4 + 1024,
        _ => BARE,
    }
}

fn answer<T: Xdr>(out: &mut Encoder, result: T) -> Step<Put> {
    NfsStat::Ok.put(out);
    result.put(out);
    Ok(Put::Result)
}

/// Do an operation: its number is in `out` already, what else is put there is its result. After an error `out` is for the caller to cut.
pub fn perform(context: &mut Context, op: &Op, out: &mut Encoder) -> Step<Put> {
    match op {
        Op::Access(want) => answer(out, access::access(context, *want)?),
        Op::Commit(args) => answer(out, data::commit(context, args)?),
        Op::Create(args) => answer(out, names::create(context, args)?),
        Op::GetAttr(want) => answer(out, attr::get_attr(context, want)?),
        Op::GetFh(()) => answer(out, handle::get_fh(context)?),
        Op::Link(name) => answer(out, names::link(context, name)?),
        Op::Lookup(name) => answer(out, handle::lookup(context, name)?),
        Op::LookupP(()) => answer(out, handle::lookupp(context)?),
        Op::NVerify(given) => answer(out, attr::nverify(context, given)?),
        // [RFC8881 18.17.3] There are no named attributes.
        Op::OpenAttr(_) => context.current().map_err(Into::into).and(Err(NfsStat::Notsupp.into())),
        Op::PutFh(handle) => answer(out, handle::put_fh(context, handle)?),
        Op::PutPubFh(()) | Op::PutRootFh(()) => answer(out, handle::put_root_fh(context)?),
        Op::Read(args) => data::read(context, args, out).map(|()| Put::Result),
        Op::ReadDir(args) => list::read_dir(context, args, out).map(|()| Put::Result),
        Op::ReadLink(()) => answer(out, handle::read_link(context)?),
        Op::Remove(name) => answer(out, names::remove(context, name)?),
        Op::Rename(args) => answer(out, names::rename(context, args)?),
        Op::RestoreFh(()) => answer(out, handle::restore_fh(context)?),
        Op::SaveFh(()) => answer(out, handle::save_fh(context)?),
        Op::SecInfo(name) => answer(out, handle::sec_info(context, name)?),
        Op::SecInfoNoName(style) => answer(out, handle::sec_info_no_name(context, *style)?),
        Op::SetAttr(args) => {
            // It tells what was set in any case: its status is inside.
            attr::set_attr(context, args)?.put(out);
            Ok(Put::Result)
        }
        Op::Verify(given) => answer(out, attr::verify(context, given)?),
        Op::Write(args) => answer(out, data::write(context, args)?),
        Op::Allocate(args) => answer(out, ranges::allocate(context, args)?),
        Op::Copy(args) => {
            Ok(Put::Answered(Answered::Result(Box::new(OpResult::Copy(ranges::copy(context, args)?)))))
        }
        Op::Deallocate(args) => answer(out, ranges::deallocate(context, args)?),
        Op::IoAdvise(args) => answer(out, ranges::io_advise(context, args)?),
        Op::ReadPlus(args) => answer(out, ranges::read_plus(context, args)?),
        Op::Seek(args) => answer(out, ranges::seek(context, args)?),
        Op::GetXattr(name) => answer(out, xattr::get(context, name)?),
        Op::SetXattr(args) => answer(out, xattr::set(context, args)?),
        Op::ListXattrs(args) => answer(out, xattr::list(context, args)?),
        Op::RemoveXattr(name) => answer(out, xattr::remove(context, name)?),
        // Without shared extents in the VFS.
        Op::Clone(_) | Op::Unsupported(_) => Err(NfsStat::Notsupp.into()),
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
        | Op::ReclaimComplete(_) => {
            let service = context.service.clone();
            service.clients.operate(context, op).map(Put::Answered)
        }
    }
}
