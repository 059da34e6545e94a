//! Operations added by NFSv4.2 (RFC 7862, RFC 7863), and extended attributes (RFC 8276).

use super::Outcome;
use crate::status::NfsStat;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, List, Result, Xdr, xdr_enum, xdr_struct, xdr_union};

xdr_enum! {
    /// `setxattr_option4` (RFC 8276 section 8.4.2).
    enum SetXattrOption {
        /// Create or replace.
        Either = 0,
        /// Fail if it exists.
        Create = 1,
        /// Fail if it does not exist.
        Replace = 2,
    }

    /// `data_content4` (RFC 7862 section 15.10).
    enum DataContent {
        /// Data.
        Data = 0,
        /// A hole.
        Hole = 1,
    }
}

xdr_struct! {
    /// `ALLOCATE4args`, `DEALLOCATE4args` (RFC 7862 sections 15.1 and 15.4).
    struct RangeArgs {
        /// Stateid of an open, lock or delegation.
        stateid: StateId,
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    }

    /// `COPY4args` (RFC 7862 section 15.2).
    struct CopyArgs {
        /// Stateid for reading the source.
        source: StateId,
        /// Stateid for writing the destination.
        target: StateId,
        /// Start offset in bytes.
        source_offset: u64,
        /// Destination offset in bytes.
        target_offset: u64,
        /// Length in bytes; 0 means up to the end of the file.
        count: u64,
        /// Whether bytes are copied in ascending order.
        consecutive: bool,
        /// Whether the reply comes after the copy is complete.
        synchronous: bool,
        /// Source servers; empty if the source is on this server.
        source_server: List<NetLoc>,
    }

    /// `copy_requirements4` (RFC 7862 section 15.2).
    struct CopyRequirements {
        /// Whether bytes are copied in ascending order.
        consecutive: bool,
        /// Whether the reply comes after the copy is complete.
        synchronous: bool,
    }

    /// `write_response4` (RFC 7862 section 15.2).
    struct WriteResponse {
        /// Stateid for CB_OFFLOAD; empty if the copy is complete.
        callback: List<StateId, 1>,
        /// Number of bytes written.
        count: u64,
        /// Durability of the written bytes.
        committed: StableHow,
        /// Write verifier: changes when unstable data may have been lost.
        verifier: Verifier,
    }

    /// `COPY4resok` (RFC 7862 section 15.2).
    struct CopyOk {
        /// Written bytes.
        response: WriteResponse,
        /// How the copy was done.
        requirements: CopyRequirements,
    }

    /// `IO_ADVISE4args` (RFC 7862 section 15.5).
    struct IoAdviseArgs {
        /// Stateid of an open, lock or delegation.
        stateid: StateId,
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes.
        count: u64,
        /// Expected access pattern.
        hints: Bitmap,
    }

    /// `OFFLOAD_STATUS4resok` (RFC 7862 section 15.9).
    struct OffloadStatusOk {
        /// Number of bytes copied so far.
        count: u64,
        /// Final status; empty while the copy is running.
        complete: List<NfsStat, 1>,
    }

    /// `data4` (RFC 7862 section 15.10).
    struct Data {
        /// Start offset in bytes.
        offset: u64,
        /// The data.
        bytes: Vec<u8>,
    }

    /// `data_info4` (RFC 7862 section 15.10).
    struct Hole {
        /// Start offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    }

    /// `read_plus_res4` (RFC 7862 section 15.10).
    struct ReadPlusOk {
        /// Whether the end of the file was reached.
        eof: bool,
        /// Segments in order.
        contents: List<Content>,
    }

    /// `SEEK4args` (RFC 7862 section 15.11).
    struct SeekArgs {
        /// Stateid of an open, lock or delegation.
        stateid: StateId,
        /// Start offset in bytes.
        offset: u64,
        /// What to seek: a [`DataContent`]. The server refuses other values (NFS4ERR_UNION_NOTSUPP).
        what: u32,
    }

    /// `seek_res4` (RFC 7862 section 15.11).
    struct SeekOk {
        /// Whether nothing was found before the end of the file.
        eof: bool,
        /// Offset of the match in bytes.
        offset: u64,
    }

    /// `CLONE4args` (RFC 7862 section 15.13).
    struct CloneArgs {
        /// Stateid for reading the source.
        source: StateId,
        /// Stateid for writing the destination.
        target: StateId,
        /// Start offset in bytes.
        source_offset: u64,
        /// Destination offset in bytes.
        target_offset: u64,
        /// Length in bytes; 0 means up to the end of the file.
        count: u64,
    }

    /// `SETXATTR4args` (RFC 8276 section 8.4.2).
    struct SetXattrArgs {
        /// Create or replace.
        option: SetXattrOption,
        /// Name without the prefix `user.`.
        name: Utf8,
        /// Value.
        value: Vec<u8>,
    }

    /// `LISTXATTRS4args` (RFC 8276 section 8.4.3).
    struct ListXattrsArgs {
        /// Cookie to continue after; 0 means from the start.
        cookie: u64,
        /// Maximum size of the result in bytes.
        maxcount: u32,
    }

    /// `LISTXATTRS4resok` (RFC 8276 section 8.4.3).
    struct ListXattrsOk {
        /// Cookie for continuing.
        cookie: u64,
        /// Names.
        names: List<Utf8>,
        /// Whether the listing is complete.
        eof: bool,
    }
}

xdr_union! {
    /// `netloc4` (RFC 7862 section 15.2).
    union NetLoc {
        /// Server name.
        1 => Name(Utf8),
        /// URL.
        2 => Url(Utf8),
        /// Network address.
        3 => Addr(NetAddr),
    }

    /// `read_plus_content` (RFC 7862 section 15.10).
    union Content {
        /// Data.
        0 => Data(Data),
        /// A hole.
        1 => Hole(Hole),
    }
}

/// `COPY4res` (RFC 7862 section 15.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyRes {
    /// The copy is complete or running.
    Ok(CopyOk),
    /// Requirements not met; these can be.
    NoReqs(CopyRequirements),
    /// Another error.
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
