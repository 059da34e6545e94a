//! Operations that NFSv4.2 added (RFC 7862, RFC 7863), and extended attributes (RFC 8276).

use super::Outcome;
use crate::status::NfsStat;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, xdr_enum, xdr_struct, xdr_union};

xdr_enum! {
    /// `setxattr_option4`.
    enum SetXattrOption {
        /// New or not.
        Either = 0,
        /// It must be new.
        Create = 1,
        /// It must be there.
        Replace = 2,
    }

    /// `data_content4`.
    enum DataContent {
        /// Data.
        Data = 0,
        /// A hole.
        Hole = 1,
    }
}

xdr_struct! {
    /// `ALLOCATE4args`, `DEALLOCATE4args`.
    struct RangeArgs {
        /// By what right.
        stateid: StateId,
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
    }

    /// `COPY4args`.
    struct CopyArgs {
        /// By what right it is read.
        source: StateId,
        /// By what right it is written.
        target: StateId,
        /// From here.
        source_offset: u64,
        /// To here.
        target_offset: u64,
        /// So many bytes; 0: to the end.
        count: u64,
        /// From the first byte to the last.
        consecutive: bool,
        /// The reply comes when it is done.
        synchronous: bool,
        /// Another server's file; none: this one's.
        source_server: List<NetLoc>,
    }

    /// `copy_requirements4`.
    struct CopyRequirements {
        /// From the first byte to the last.
        consecutive: bool,
        /// The reply comes when it is done.
        synchronous: bool,
    }

    /// `write_response4`.
    struct WriteResponse {
        /// Who is told when it is done; none: it is done.
        callback: List<StateId, 1>,
        /// Bytes.
        count: u64,
        /// How durable they are.
        committed: StableHow,
        /// Changes when unstable data may have been lost.
        verifier: Verifier,
    }

    /// `COPY4resok`.
    struct CopyOk {
        /// What was written.
        response: WriteResponse,
        /// How.
        requirements: CopyRequirements,
    }

    /// `IO_ADVISE4args`.
    struct IoAdviseArgs {
        /// By what right.
        stateid: StateId,
        /// From here.
        offset: u64,
        /// So many bytes.
        count: u64,
        /// What to expect.
        hints: Bitmap,
    }

    /// `OFFLOAD_STATUS4resok`.
    struct OffloadStatusOk {
        /// Bytes so far.
        count: u64,
        /// How it ended; none: it goes on.
        complete: List<NfsStat, 1>,
    }

    /// `data4`.
    struct Data {
        /// From here.
        offset: u64,
        /// The data.
        bytes: Vec<u8>,
    }

    /// `data_info4`.
    struct Hole {
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
    }

    /// `read_plus_res4`.
    struct ReadPlusOk {
        /// The end of the file was reached.
        eof: bool,
        /// Pieces, one behind the other.
        contents: List<Content>,
    }

    /// `SEEK4args`.
    struct SeekArgs {
        /// By what right.
        stateid: StateId,
        /// From here.
        offset: u64,
        /// What to find: a [`DataContent`]. Others are the server's to refuse (NFS4ERR_UNION_NOTSUPP).
        what: u32,
    }

    /// `seek_res4`.
    struct SeekOk {
        /// There is none up to the end.
        eof: bool,
        /// Here.
        offset: u64,
    }

    /// `CLONE4args`.
    struct CloneArgs {
        /// By what right it is read.
        source: StateId,
        /// By what right it is written.
        target: StateId,
        /// From here.
        source_offset: u64,
        /// To here.
        target_offset: u64,
        /// So many bytes; 0: to the end.
        count: u64,
    }

    /// `SETXATTR4args`.
    struct SetXattrArgs {
        /// New or not.
        option: SetXattrOption,
        /// Without `user.` before it.
        name: Utf8,
        /// The value.
        value: Vec<u8>,
    }

    /// `LISTXATTRS4args`.
    struct ListXattrsArgs {
        /// Behind this one; 0: from the start.
        cookie: u64,
        /// Bytes of the whole result.
        maxcount: u32,
    }

    /// `LISTXATTRS4resok`.
    struct ListXattrsOk {
        /// To go on.
        cookie: u64,
        /// Names.
        names: List<Utf8>,
        /// There are no more.
        eof: bool,
    }
}

xdr_union! {
    /// `netloc4`.
    union NetLoc {
        /// By name.
        1 => Name(Utf8),
        /// By URL.
        2 => Url(Utf8),
        /// By address.
        3 => Addr(NetAddr),
    }

    /// `read_plus_content`.
    union Content {
        /// Data.
        0 => Data(Data),
        /// A hole.
        1 => Hole(Hole),
    }
}

/// `COPY4res`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyRes {
    /// It is done, or it is going on.
    Ok(CopyOk),
    /// Not like that, but like this.
    NoReqs(CopyRequirements),
    /// Neither.
    Failed(NfsStat),
}

impl Outcome for CopyRes {
    fn status(&self) -> NfsStat {
        match self {
            Self::Ok(_) => NfsStat::Ok,
            Self::NoReqs(_) => NfsStat::OffloadNoReqs,
            Self::Failed(status) => *status,
        }
    }

    fn failure(status: NfsStat) -> Self {
        debug_assert!(status != NfsStat::OffloadNoReqs, "say how");
        Self::Failed(status)
    }
}

impl Xdr for CopyRes {
    fn put(&self, to: &mut Encoder) {
        self.status().put(to);
        match self {
            Self::Ok(copied) => copied.put(to),
            Self::NoReqs(requirements) => requirements.put(to),
            Self::Failed(_) => {}
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match NfsStat::take(from)? {
            NfsStat::Ok => Self::Ok(Xdr::take(from)?),
            NfsStat::OffloadNoReqs => Self::NoReqs(Xdr::take(from)?),
            status => Self::Failed(status),
        })
    }
}
