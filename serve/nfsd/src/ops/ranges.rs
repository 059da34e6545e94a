//! SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, COPY, IO_ADVISE (RFC 7862).

use ivers_nfs4::ops::v40::ReadArgs;
use ivers_nfs4::ops::v42::{
    Content, CopyArgs, CopyOk, CopyRequirements, CopyRes, Data, DataContent, Hole, IoAdviseArgs, RangeArgs,
    ReadPlusOk, SeekArgs, SeekOk, WriteResponse,
};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, StableHow, StateId, Verifier};
use ivers_nfs4::xdr::List;
use ivers_vfs::{Error, FallocateMode, NameError, Piece};

use super::data::{end_of, may_read, may_write};
use super::settle;
use super::status::{OrStatus, status};
use crate::compound::{Context, CopyOrder, Object};
use crate::state::Step;

const DATA: u32 = DataContent::Data as u32;
const HOLE: u32 = DataContent::Hole as u32;
/// Bytes of a READ_PLUS's result that hold no data, and of each of its pieces.
const HEAD: usize = 4 + 4 + 4 + 4;
const PIECE: usize = 4 + 8 + 4 + 3;
/// Pieces of one READ_PLUS.
const PIECES: usize = 64;

/// Where data begins, or a hole; none: not before the end.
fn find(object: &Object, offset: u64, what: u32) -> Res<Option<u64>> {
    let (vfs, inode) = (object.vfs(), &object.inode);
    let found = if what == DATA { vfs.seek_data(inode, offset) } else { vfs.seek_hole(inode, offset) };
    match found {
        Ok(at) => Ok(Some(at)),
        Err(Error::Name(NameError::NoSuchOffset)) => Ok(None),
        Err(error) => Err(status(&error)),
    }
}

/// SEEK.
pub fn seek(context: &Context, args: &SeekArgs) -> Step<SeekOk> {
    let object = context.object(NfsStat::Isdir)?;
    let _leave = may_read(context, object, &args.stateid)?;
    // [RFC7862 15.11.3]
    if args.what != DATA && args.what != HOLE {
        return Err(NfsStat::UnionNotsupp.into());
    }
    let size = object.inode.size();
    // [RFC7862 15.11.3]
    if args.offset >= size {
        return Err(NfsStat::Nxio.into());
    }
    let found = find(object, args.offset, args.what)?.filter(|at| *at < size);
    Ok(SeekOk { eof: found.is_none(), offset: found.unwrap_or(size) })
}

fn change_range(context: &Context, args: &RangeArgs, mode: FallocateMode) -> Step<()> {
    let object = context.object(NfsStat::Isdir)?;
    let _leave = may_write(context, object, &args.stateid)?;
    // [RFC7862 15.1.3]
    end_of(args.offset, args.length)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    vfs.fallocate(object.writer()?, inode, mode, args.offset, args.length).nfs()?;
    Ok(settle(object, &[inode])?)
}

/// ALLOCATE.
pub fn allocate(context: &Context, args: &RangeArgs) -> Step<()> {
    change_range(context, args, FallocateMode::empty())
}

/// DEALLOCATE: the size stays.
pub fn deallocate(context: &Context, args: &RangeArgs) -> Step<()> {
    change_range(context, args, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE)
}

/// READ_PLUS: pieces of one moment.
pub fn read_plus(context: &Context, args: &ReadArgs) -> Step<ReadPlusOk> {
    let object = context.object(NfsStat::Isdir)?;
    let _leave = may_read(context, object, &args.stateid)?;
    let room = context.room.saturating_sub(HEAD);
    // As many pieces as leave half of the room to what is in them.
    let pieces = (room / (2 * PIECE)).clamp(usize::from(room > PIECE), PIECES);
    let end = args.offset.saturating_add(args.count.min(context.service.bounds.data_bytes).into());
    let bytes = room - pieces * PIECE;
    let (pieces, size) = object.vfs().read_pieces(&object.inode, args.offset..end, pieces, bytes).nfs()?;
    let mut at = args.offset;
    let content = |piece| match piece {
        Piece::Hole(range) => {
            at = range.end;
            Content::Hole(Hole { offset: range.start, length: range.end - range.start })
        }
        Piece::Data(offset, bytes) => {
            at = offset + bytes.len() as u64;
            Content::Data(Data { offset, bytes })
        }
    };
    let contents = List(pieces.into_iter().map(content).collect());
    // [RFC7862 15.10.3]
    Ok(ReadPlusOk { eof: at >= size, contents })
}

/// COPY, from the first byte to the last. A short one is done at once, a long one goes on behind its reply; where that cannot be, the client asks again for what was not
/// managed in one go.
pub fn copy(context: &Context, args: &CopyArgs) -> Step<CopyRes> {
    // [RFC7862 15.2.3]
    if !args.source_server.0.is_empty() {
        return Err(NfsStat::Notsupp.into());
    }
    let source = context.saved(NfsStat::Isdir)?;
    let target = context.object(NfsStat::Isdir)?;
    source.regular(context.minor)?;
    target.regular(context.minor)?;
    if source.export.identity != target.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let meant = |stateid: &StateId, saved: StateId| match *stateid {
        // [RFC7862 15.2.3] The source's current stateid is the saved one.
        StateId::CURRENT if saved != StateId::INVALID => saved,
        stateid => stateid,
    };
    let saved = context.saved.as_ref().map_or(StateId::INVALID, |(_, stateid)| *stateid);
    let read_by = meant(&args.source, saved);
    let _read = may_read(context, source, &read_by)?;
    let _write = may_write(context, target, &args.target)?;
    let size = source.inode.size();
    // [RFC7862 15.2.3]
    let behind = size.checked_sub(args.source_offset).ok_or(NfsStat::Inval)?;
    let length = if args.count == 0 { behind } else { args.count };
    if length > behind {
        return Err(NfsStat::Inval.into());
    }
    let end = end_of(args.target_offset, length)?;
    let (from, to) = (&source.inode, &target.inode);
    // [RFC7862 15.2.3] Seen as a whole: its parts may be apart.
    let apart = args.source_offset + length <= args.target_offset || end <= args.source_offset;
    if from.ino == to.ino && length > 0 && !apart {
        return Err(NfsStat::Inval.into());
    }
    let verifier = target.export.filesystem.verifier();
    let cred = target.writer()?;
    if !args.synchronous && length > context.service.bounds.copy_at_once {
        let order = CopyOrder {
            source: source.clone(),
            read_by: context.meant(&read_by)?,
            source_offset: args.source_offset,
            target: target.clone(),
            write_by: context.meant(&args.target)?,
            target_offset: args.target_offset,
            length,
            cred: cred.clone(),
            verifier,
        };
        if let Some(stateid) = context.service.clients.copy(context, order)? {
            let callback = List(vec![stateid]);
            return Ok(copied(callback, 0, verifier));
        }
    }
    let length = length.min(context.service.bounds.copy_bytes);
    let count = match length {
        0 => 0,
        _ => target.vfs().copy_range(cred, from, args.source_offset, to, args.target_offset, length).nfs()?,
    };
    Ok(copied(List(Vec::new()), count, verifier))
}

/// With whom is to be told when it is done: then it goes on.
fn copied(callback: List<StateId, 1>, count: u64, verifier: Verifier) -> CopyRes {
    let synchronous = callback.0.is_empty();
    CopyRes::Ok(CopyOk {
        response: WriteResponse { callback, count, committed: StableHow::Unstable, verifier },
        requirements: CopyRequirements { consecutive: true, synchronous },
    })
}

/// IO_ADVISE: it is a hint, and none is followed.
pub fn io_advise(context: &Context, args: &IoAdviseArgs) -> Step<Bitmap> {
    let object = context.object(NfsStat::Isdir)?;
    let _leave = may_read(context, object, &args.stateid)?;
    Ok(Bitmap::default())
}
