//! SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, COPY, IO_ADVISE (RFC 7862).

use ivers_nfs4::ops::v40::ReadArgs;
use ivers_nfs4::ops::v42::{
    CloneArgs, Content, CopyArgs, CopyOk, CopyRequirements, CopyRes, Data, DataContent, Hole, IoAdviseArgs,
    RangeArgs, ReadPlusOk, SeekArgs, SeekOk, WriteResponse,
};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, StableHow, StateId, Verifier};
use ivers_nfs4::xdr::List;
use ivers_vfs::{Error, FallocateMode, NameError, Piece};

use super::durability::commit_now;
use super::file_io::{begin_read, begin_write, range_end};
use crate::compound::status::{OrStatus, status};
use crate::compound::{Context, CopyJob, Object};
use crate::state::Step;

const DATA: u32 = DataContent::Data as u32;
const HOLE: u32 = DataContent::Hole as u32;
/// Bytes of a READ_PLUS result without its pieces, and of each piece without its data.
const HEAD_BYTES: usize = 4 + 4 + 4 + 4;
const PIECE_BYTES: usize = 4 + 8 + 4 + 3;
/// The largest number of pieces in one READ_PLUS result.
const PIECES_MAX: usize = 64;

/// The start of the next data or hole, or `None` if there is none before the end of the file.
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
    let _guard = begin_read(context, object, &args.stateid)?;
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
    let _guard = begin_write(context, object, &args.stateid)?;
    // [RFC7862 15.1.3]
    range_end(args.offset, args.length)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    vfs.fallocate(object.write_cred()?, inode, mode, args.offset, args.length).nfs()?;
    Ok(commit_now(object, &[inode])?)
}

/// ALLOCATE.
pub fn allocate(context: &Context, args: &RangeArgs) -> Step<()> {
    change_range(context, args, FallocateMode::empty())
}

/// DEALLOCATE. The size of the file stays.
pub fn deallocate(context: &Context, args: &RangeArgs) -> Step<()> {
    change_range(context, args, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE)
}

/// READ_PLUS. All pieces show the file at one moment.
pub fn read_plus(context: &Context, args: &ReadArgs) -> Step<ReadPlusOk> {
    let object = context.object(NfsStat::Isdir)?;
    let _guard = begin_read(context, object, &args.stateid)?;
    let bytes_max = context.result_bytes_max.saturating_sub(HEAD_BYTES);
    // The headers of the pieces may take at most half of the space.
    let pieces = (bytes_max / (2 * PIECE_BYTES)).clamp(usize::from(bytes_max > PIECE_BYTES), PIECES_MAX);
    let end = args.offset.saturating_add(args.count.min(context.service.limits.data_bytes_max).into());
    let bytes = bytes_max - pieces * PIECE_BYTES;
    let (pieces, size) = object
        .vfs()
        .read_pieces(object.read_cred()?, &object.inode, args.offset..end, pieces, bytes)
        .nfs()?;
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

/// The stateid of the source of COPY and CLONE.
fn source_stateid(context: &Context, given: &StateId) -> StateId {
    let saved = context.saved_fh.as_ref().map_or(StateId::INVALID, |(_, stateid)| *stateid);
    match *given {
        // [RFC7862 15.2.3] The current stateid of the source is the saved one.
        StateId::CURRENT if saved != StateId::INVALID => saved,
        stateid => stateid,
    }
}

/// CLONE. NFS4ERR_NOTSUPP where the format shares no blocks.
pub fn clone(context: &Context, args: &CloneArgs) -> Step<()> {
    let source = context.saved_object(NfsStat::Isdir)?;
    let target = context.object(NfsStat::Isdir)?;
    source.regular(context.minor)?;
    target.regular(context.minor)?;
    if source.export.identity != target.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let _read = begin_read(context, source, &source_stateid(context, &args.source))?;
    let _write = begin_write(context, target, &args.target)?;
    // [RFC7862 15.13.3]
    range_end(args.target_offset, args.count)?;
    let (vfs, cred) = (target.vfs(), target.write_cred()?);
    let (from, to) = (&source.inode, &target.inode);
    vfs.clone_range(cred, from, args.source_offset, to, args.target_offset, args.count).nfs()?;
    Ok(commit_now(target, &[to])?)
}

/// COPY, in ascending order. A short copy completes before the reply. A long one continues after the reply if
/// the client supports that; otherwise the result is short and the client asks for the rest.
pub fn copy(context: &Context, args: &CopyArgs) -> Step<CopyRes> {
    // [RFC7862 15.2.3]
    if !args.source_server.0.is_empty() {
        return Err(NfsStat::Notsupp.into());
    }
    let source = context.saved_object(NfsStat::Isdir)?;
    let target = context.object(NfsStat::Isdir)?;
    source.regular(context.minor)?;
    target.regular(context.minor)?;
    if source.export.identity != target.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let source_stateid = source_stateid(context, &args.source);
    let _read = begin_read(context, source, &source_stateid)?;
    let _write = begin_write(context, target, &args.target)?;
    let size = source.inode.size();
    // [RFC7862 15.2.3]
    let available = size.checked_sub(args.source_offset).ok_or(NfsStat::Inval)?;
    let length = if args.count == 0 { available } else { args.count };
    if length > available {
        return Err(NfsStat::Inval.into());
    }
    let end = range_end(args.target_offset, length)?;
    let (from, to) = (&source.inode, &target.inode);
    // [RFC7862 15.2.3] The whole ranges must not overlap, even if the parts that are copied now do not.
    let apart = args.source_offset + length <= args.target_offset || end <= args.source_offset;
    if from.ino == to.ino && length > 0 && !apart {
        return Err(NfsStat::Inval.into());
    }
    let verifier = target.export.filesystem.verifier();
    let cred = target.write_cred()?;
    if !args.synchronous && length > context.service.limits.copy_sync_bytes_max {
        let job = CopyJob {
            source: source.clone(),
            source_stateid: context.resolve_stateid(&source_stateid)?,
            source_offset: args.source_offset,
            target: target.clone(),
            target_stateid: context.resolve_stateid(&args.target)?,
            target_offset: args.target_offset,
            length,
            cred: cred.clone(),
            verifier,
        };
        if let Some(stateid) =
            context.service.clients.begin_copy(context.caller, context.session.as_ref(), job)?
        {
            let callback = List(vec![stateid]);
            return Ok(copied(callback, 0, verifier));
        }
    }
    let length = context.copy_bytes(length);
    let count = match length {
        0 => 0,
        _ => target.vfs().copy_range(cred, from, args.source_offset, to, args.target_offset, length).nfs()?,
    };
    Ok(copied(List(Vec::new()), count, verifier))
}

/// The result of COPY. A callback stateid means that the copy continues after the reply.
fn copied(callback: List<StateId, 1>, count: u64, verifier: Verifier) -> CopyRes {
    let synchronous = callback.0.is_empty();
    CopyRes::Ok(CopyOk {
        response: WriteResponse { callback, count, committed: StableHow::Unstable, verifier },
        requirements: CopyRequirements { consecutive: true, synchronous },
    })
}

/// IO_ADVISE. The server follows no hints.
pub fn io_advise(context: &Context, args: &IoAdviseArgs) -> Step<Bitmap> {
    let object = context.object(NfsStat::Isdir)?;
    let _guard = begin_read(context, object, &args.stateid)?;
    Ok(Bitmap::default())
}
