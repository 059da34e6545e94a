//! Finding the exported directory, and the facts of its filesystem.

use std::sync::Arc;
use std::time::Duration;

use ivers_content_cache::ContentCache;
use ivers_nfs4::attr::{self, Attrs, ChangeAttrType};
use ivers_nfs4::ops::Op;
use ivers_nfs4::types::{Bitmap, FileHandle, Fsid};
use ivers_vfs::{ChangeSemantics, Cred, Error, FileType, FsInfo, NameError, Result};

use crate::attributes::{self, FileAttributes};
use crate::client::{Client, Patience};
use crate::identity::Identity;
use crate::owners::Owners;
use crate::reply::take;
use crate::tls::Tls;

/// How a server is used.
#[derive(Clone)]
pub struct NfsOptions {
    /// Which credentials requests carry.
    pub identity: Identity,
    /// How long requests wait.
    pub patience: Patience,
    /// The minor version of NFSv4. `None`: 2, or 1 if the server lacks 2.
    pub minor_version: Option<u32>,
    /// The most connections that carry requests.
    pub connections: usize,
    /// How connections use TLS. `None`: they do not.
    pub tls: Option<Tls>,
    /// The persistent cache.
    pub contents: Option<Arc<ContentCache>>,
    /// How long attributes count as current.
    pub attribute_timeout: Duration,
    /// The longest READ and WRITE in bytes, if the server takes them.
    pub transfer_bytes_max: (u64, u64),
    /// The numbers of owners that the server sends as names. Others are nobody.
    pub owners: Owners,
    /// Whether opens for reading ask for delegations.
    pub delegations: bool,
    /// Whether opens for writing do, too.
    pub write_delegations: bool,
    /// The directory that becomes the root, from the root of the server.
    pub root: Vec<u8>,
    /// A path from the root whose filesystem decides what [`FsInfo`] says: the root of a server is often a
    /// filesystem of its own. What is missing of the path does not matter.
    pub facts_of: Vec<u8>,
}

impl NfsOptions {
    /// The options of a patient mount of the server's root.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            patience: Patience::default(),
            minor_version: None,
            connections: 1,
            contents: None,
            tls: None,
            attribute_timeout: Duration::from_secs(3),
            transfer_bytes_max: (u64::MAX, u64::MAX),
            owners: Owners::default(),
            delegations: false,
            write_delegations: false,
            root: b"/".to_vec(),
            facts_of: Vec::new(),
        }
    }
}

/// The directory that becomes the root.
pub struct Root {
    /// Its filehandle.
    pub handle: FileHandle,
    /// Its number, as the server has it.
    pub fileid: Option<u64>,
    /// What the driver says of the filesystem.
    pub facts: Facts,
    /// A file of this filesystem.
    pub facts_at: FileHandle,
}

/// What the server says of a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The type of the change attribute, if the server says it.
    pub change_attr_type: Option<u32>,
    /// The lease in seconds.
    pub lease_seconds: u32,
    /// The longest READ in bytes.
    pub read_bytes_max: u64,
    /// The longest WRITE in bytes.
    pub write_bytes_max: u64,
    fsid: Option<Fsid>,
    name_max: u32,
    max_file_size: u64,
    max_links: u32,
    time_granularity_ns: u32,
    case_insensitive: bool,
    xattr_support: bool,
    lasting_handles: bool,
    /// The free space in bytes, when the filesystem was mounted.
    pub space_avail: Option<u64>,
}

/// The `fh_expire_type` of persistent filehandles (RFC 8881, 5.8.1.7).
const FH4_PERSISTENT: u32 = 0;

/// The attributes that [`Facts`] are made of.
const FACTS: [u32; 14] = [
    attr::FH_EXPIRE_TYPE,
    attr::FSID,
    attr::LEASE_TIME,
    attr::CASE_INSENSITIVE,
    attr::FILEID,
    attr::MAXFILESIZE,
    attr::MAXLINK,
    attr::MAXNAME,
    attr::MAXREAD,
    attr::MAXWRITE,
    attr::SPACE_AVAIL,
    attr::TIME_DELTA,
    attr::CHANGE_ATTR_TYPE,
    attr::XATTR_SUPPORT,
];

/// Returns those of [`FACTS`] that the server has. It should omit others, but some refuse the request.
fn facts_bitmap(client: &Client, root: &FileHandle) -> Result<Bitmap> {
    let minor = client.minor_version();
    let known = Bitmap::of(FACTS.into_iter().filter(|attribute| attr::since(*attribute) <= minor));
    let ops = [Op::PutFh(root.clone()), Op::GetAttr(Bitmap::of([attr::SUPPORTED_ATTRS]))];
    let (mut results, _) = client.call(&Cred::system(), &ops)?.ok(client.name())?;
    results.skip();
    let attrs = attributes::decode(&take!(results, GetAttr)?, client.name())?;
    Ok(attrs.supported_attrs.map_or(known.clone(), |supported| known.and(&supported)))
}

impl Facts {
    fn of(attrs: &Attrs) -> Self {
        // Times of NFS have nanoseconds. A server that stores coarser ones says so.
        let delta = attrs.time_delta.map_or(1, |time| match time.seconds {
            0 => time.nseconds.clamp(1, 1_000_000_000),
            _ => 1_000_000_000,
        });
        Self {
            change_attr_type: attrs.change_attr_type,
            lease_seconds: attrs.lease_time.unwrap_or(90),
            read_bytes_max: attrs.maxread.unwrap_or(u64::MAX).max(4096),
            write_bytes_max: attrs.maxwrite.unwrap_or(u64::MAX).max(4096),
            fsid: attrs.fsid,
            name_max: attrs.maxname.unwrap_or(255).clamp(1, 255),
            max_file_size: attrs.maxfilesize.unwrap_or(u64::MAX).min(i64::MAX as u64),
            max_links: attrs.maxlink.unwrap_or(u32::MAX),
            time_granularity_ns: delta,
            case_insensitive: attrs.case_insensitive.unwrap_or(false),
            xattr_support: attrs.xattr_support.unwrap_or(false),
            lasting_handles: attrs.fh_expire_type == Some(FH4_PERSISTENT),
            space_avail: attrs.space_avail,
        }
    }

    /// Returns the longest name in bytes.
    pub fn name_max(&self) -> u32 {
        self.name_max
    }

    /// Returns whether times are so fine that random nanoseconds in one are unique.
    pub fn has_fine_times(&self) -> bool {
        self.time_granularity_ns <= 1000
    }

    /// Returns the filesystem.
    pub fn fsid(&self) -> Option<Fsid> {
        self.fsid
    }

    /// Returns why the filesystem must not have a persistent cache (P2). `None` if it may have one.
    pub fn cannot_keep(&self) -> Option<&'static str> {
        if !self.counts_changes() {
            return Some(
                "the server does not promise that each change raises the change attribute (change_attr_type)",
            );
        }
        (!self.lasting_handles).then_some("the server's filehandles are not persistent (fh_expire_type)")
    }

    fn counts_changes(&self) -> bool {
        self.change_attr_type.is_some_and(|kind| kind < ChangeAttrType::TimeMetadata as u32)
    }

    /// Returns whether files have extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.xattr_support
    }

    /// Returns why the change attribute must not be served, if so: the server does not say what it promises.
    pub fn no_change_attribute(&self) -> Option<String> {
        let known = self.change_attr_type.is_some_and(|kind| kind < ChangeAttrType::Undefined as u32);
        (!known).then(|| "the server does not say what its change attribute means (change_attr_type)".into())
    }

    /// Returns the promises of the change attribute (RFC 7862, 12.2.3). No type says anything of a crash of
    /// the server.
    fn semantics(&self) -> ChangeSemantics {
        let counts = self.counts_changes();
        ChangeSemantics {
            // One made of a time is the same for two changes within a tick.
            data: counts,
            metadata: counts,
            monotonic: counts,
            persistent: self.no_change_attribute().is_none(),
            crash_safe: false,
        }
    }

    /// Returns what the VFS must know of the filesystem. `name` names the server.
    pub fn info(&self, root: ivers_vfs::Ino, name: &str) -> FsInfo {
        let Fsid { major, minor } = self.fsid.unwrap_or(Fsid { major: 0, minor: 0 });
        FsInfo {
            label: name.to_owned(),
            uuid: (u128::from(major) << 64 | u128::from(minor)).to_be_bytes(),
            root,
            name_max: self.name_max,
            max_file_size: self.max_file_size,
            max_links: self.max_links,
            time_granularity_ns: self.time_granularity_ns,
            semantics: self.semantics(),
            names_alias: self.case_insensitive,
            ..FsInfo::usual("nfs", 4096)
        }
    }
}

/// Returns the names in a path. `..` is refused: the server has no names for it.
fn components(path: &[u8], place: &str) -> Result<Vec<Vec<u8>>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names
        .map(|name| match name {
            b".." => Err(Error::Incompatible(format!("{place}: a path of an export cannot contain `..`"))),
            name => Ok(name.to_vec()),
        })
        .collect()
}

/// Finds the root.
pub fn find_root(client: &Client, options: &NfsOptions) -> Result<Root> {
    let cred = Cred::system();
    let names = components(&options.root, client.name())?;
    let mut at: Option<FileHandle> = None;
    // PUTFH before the names of a request; GETFH and GETATTR after them; SEQUENCE.
    let most = client.session()?.operations_max.saturating_sub(4).max(1);
    let mut parts = names.chunks(most).collect::<Vec<_>>();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let mut attrs = None;
    for part in parts {
        let mut ops = vec![at.take().map_or(Op::PutRootFh(()), Op::PutFh)];
        ops.extend(part.iter().map(|name| Op::Lookup(name.clone())));
        ops.extend([Op::GetFh(()), Op::GetAttr(attributes::of_file())]);
        let outcome = client.call(&cred, &ops)?;
        let failed = outcome.results.len().saturating_sub(1);
        let (mut results, _) = outcome.ok(client.name()).map_err(|error| {
            let name = failed.checked_sub(1).and_then(|nth| part.get(nth));
            at_name(error, name.map(Vec::as_slice), client.name())
        })?;
        (0..=part.len()).for_each(|_| results.skip());
        at = Some(take!(results, GetFh)?);
        attrs = Some(FileAttributes::take(&take!(results, GetAttr)?, client.name())?);
    }
    let (Some(handle), Some(found)) = (at, attrs) else { return Err(crate::reply::unexpected()) };
    if found.attr.kind != FileType::Directory {
        return Err(at_name(NameError::NotDirectory.into(), names.last().map(Vec::as_slice), client.name()));
    }
    let facts_of_path = components(&options.facts_of, client.name()).unwrap_or_default();
    let (mut facts, facts_at) = facts_of(client, &handle, &facts_of_path)?;
    let (read, write) = options.transfer_bytes_max;
    facts.read_bytes_max = facts.read_bytes_max.min(read);
    facts.write_bytes_max = facts.write_bytes_max.min(write);
    Ok(Root { handle, fileid: found.fileid, facts, facts_at })
}

/// Returns the error for a name in the path of the root.
fn at_name(error: Error, name: Option<&[u8]>, place: &str) -> Error {
    match (name, error) {
        (Some(name), Error::Name(why)) => {
            let name = String::from_utf8_lossy(name);
            Error::Io(format!("{place}: {name:?} in the path of the export: {why}").into())
        }
        (_, error) => error,
    }
}

/// Returns the facts of the filesystem that a path leads to, as far as it leads, and a file of it.
fn facts_of(client: &Client, root: &FileHandle, path: &[Vec<u8>]) -> Result<(Facts, FileHandle)> {
    let wanted = facts_bitmap(client, root)?;
    let ask = |at: &FileHandle, name: Option<&Vec<u8>>| -> Result<(FileHandle, Attrs)> {
        let mut ops = vec![Op::PutFh(at.clone())];
        ops.extend(name.map(|name| Op::Lookup(name.clone())));
        ops.extend([Op::GetFh(()), Op::GetAttr(wanted.clone())]);
        let (mut results, _) = client.call(&Cred::system(), &ops)?.ok(client.name())?;
        (0..ops.len() - 2).for_each(|_| results.skip());
        let handle = take!(results, GetFh)?;
        Ok((handle, attributes::decode(&take!(results, GetAttr)?, client.name())?))
    };
    let (mut at, mut attrs) = ask(root, None)?;
    for name in path {
        let Ok((below, found)) = ask(&at, Some(name)) else { break };
        (at, attrs) = (below, found);
    }
    Ok((Facts::of(&attrs), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_type(change_attr_type: Option<u32>) -> ChangeSemantics {
        Facts::of(&Attrs { change_attr_type, ..Attrs::default() }).semantics()
    }

    #[test]
    fn promises_are_those_of_the_servers_type() {
        for kind in 0..3 {
            let all = ChangeSemantics {
                data: true,
                metadata: true,
                monotonic: true,
                persistent: true,
                crash_safe: false,
            };
            assert_eq!(of_type(Some(kind)), all);
        }
        let time = of_type(Some(ChangeAttrType::TimeMetadata as u32));
        assert!(!time.data && !time.metadata && !time.monotonic && time.persistent);
        for unknown in [None, Some(ChangeAttrType::Undefined as u32), Some(77)] {
            let semantics = of_type(unknown);
            assert!(!semantics.data && !semantics.monotonic && !semantics.persistent);
            let facts = Facts::of(&Attrs { change_attr_type: unknown, ..Attrs::default() });
            assert!(facts.no_change_attribute().is_some());
        }
    }

    #[test]
    fn limits_that_lie_are_cut() {
        let lies = Attrs {
            maxname: Some(u32::MAX),
            maxread: Some(0),
            maxfilesize: Some(u64::MAX),
            ..Attrs::default()
        };
        let facts = Facts::of(&lies);
        let info = facts.info(ivers_vfs::Ino(1), "nfs://h");
        assert_eq!((info.name_max, facts.read_bytes_max, info.max_file_size), (255, 4096, i64::MAX as u64));
        assert_eq!(Facts::of(&Attrs { maxname: Some(0), ..Attrs::default() }).name_max(), 1);
    }

    #[test]
    fn paths_of_exports_have_no_dots() {
        assert_eq!(components(b"//a/./b/", "").unwrap(), [b"a".to_vec(), b"b".to_vec()]);
        assert!(components(b"/a/../b", "").is_err() && components(b"/", "").unwrap().is_empty());
    }
}
