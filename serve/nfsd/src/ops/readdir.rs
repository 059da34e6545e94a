//! READDIR.

use std::ops::ControlFlow;

use ivers_nfs4::attr::{self, Attrs, is_write_only};
use ivers_nfs4::ops::v40::{Entry, ReadDirArgs};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, Verifier};
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_vfs::access::{EXECUTE, READ};
use ivers_vfs::{FileType, InodeRef, Listed};

use super::attr::gather_current;
use super::component;
use crate::compound::status::OrStatus;
use crate::compound::{Context, CurrentFh, Object};
use crate::state::{Step, Stop};

/// The first cookie: 0 is the start of the directory, 1 and 2 are reserved (RFC 8881 section 18.23.3). A
/// cookie is the cursor of the VFS plus this.
const FIRST_COOKIE: u64 = 3;
/// Bytes of the verifier, and of the two flags after the entries: no more entries, end of the directory.
const FRAME_BYTES: usize = 8 + 4 + 4;
/// Entries that one call to the VFS returns.
const BATCH_ENTRIES: usize = 64;

struct DirEntry {
    name: Vec<u8>,
    cookie: u64,
    inode: EntryInode,
}

enum EntryInode {
    Number(u64),
    Object(Res<InodeRef>),
}

/// Appends entries while there is space.
struct Listing<'a> {
    out: &'a mut Encoder,
    start: usize,
    /// The limit of the whole result.
    bytes_max: usize,
    /// The limit of names and cookies.
    name_bytes_max: usize,
    name_bytes: usize,
    entries: usize,
}

impl Listing<'_> {
    /// Appends an entry. Returns false if there is no space for it.
    fn put(&mut self, cookie: u64, name: Vec<u8>, attrs: &Attrs) -> bool {
        let name_bytes = self.name_bytes + 8 + 4 + name.len().next_multiple_of(4);
        // The limit of names is a hint: the first entry is sent in any case.
        if self.entries > 0 && name_bytes > self.name_bytes_max {
            return false;
        }
        let before = self.out.len();
        true.put(self.out);
        Entry { cookie, name, attrs: attrs.encode() }.put(self.out);
        // [RFC8881 18.23.3]
        if self.out.len() - self.start + FRAME_BYTES - 8 > self.bytes_max {
            self.out.truncate(before);
            return false;
        }
        self.name_bytes = name_bytes;
        self.entries += 1;
        true
    }
}

/// READDIR.
pub fn read_dir(context: &mut Context, args: &ReadDirArgs, out: &mut Encoder) -> Step<()> {
    let fh = context.current_fh()?.clone();
    // [RFC8881 18.23.3]
    if args.attrs.iter().any(is_write_only) {
        return Err(NfsStat::Inval.into());
    }
    if args.cookie == 1 || args.cookie == 2 {
        return Err(NfsStat::BadCookie.into());
    }
    let verifier = verifier(context, &fh)?;
    // [RFC8881 18.23.3] Some clients always send zero, for example libnfs. The cookies of a directory are
    // valid without a verifier. Those of the pseudo-root are positions in a table that may have changed.
    let unchecked = args.verifier == Verifier::default() && matches!(fh, CurrentFh::Object(_));
    if args.cookie != 0 && args.verifier != verifier && !unchecked {
        return Err(NfsStat::NotSame.into());
    }
    NfsStat::Ok.put(out);
    let start = out.len();
    verifier.put(out);
    let reply_bytes_max = context.result_bytes_max.saturating_sub(8);
    let bytes_max = (args.maxcount as usize).min(reply_bytes_max);
    // [RFC8881 18.23.3] 0 means no limit.
    let name_bytes_max = if args.dircount == 0 { usize::MAX } else { args.dircount as usize };
    let mut listing = Listing { out, start, bytes_max, name_bytes_max, name_bytes: 0, entries: 0 };
    if bytes_max < FRAME_BYTES {
        return Err(NfsStat::Toosmall.into());
    }
    let eof = match &fh {
        CurrentFh::Pseudo(number) => pseudo(context, *number, args, &mut listing)?,
        CurrentFh::Object(dir) => directory(context, dir, args, &mut listing)?,
    };
    // [RFC8881 18.23.3]
    if listing.entries == 0 && !eof {
        let limited_by_client = (args.maxcount as usize) <= reply_bytes_max;
        return Err(if limited_by_client { NfsStat::Toosmall } else { NfsStat::RepTooBig }.into());
    }
    false.put(out);
    eof.put(out);
    Ok(())
}

/// The cookie verifier. Cursors of the VFS are valid as long as the directory exists; cookies of the
/// pseudo-root as long as the table of exports.
fn verifier(context: &Context, fh: &CurrentFh) -> Step<Verifier> {
    match fh {
        CurrentFh::Pseudo(_) => Ok(context.exports.change().to_be_bytes()),
        CurrentFh::Object(dir) => {
            let cred = dir.read_cred()?;
            if dir.inode.kind != FileType::Directory {
                return Err(NfsStat::Notdir.into());
            }
            dir.vfs().access(cred, &dir.inode, READ).nfs()?;
            Ok((u64::from(dir.export.identity) << 32 | u64::from(dir.inode.generation)).to_be_bytes())
        }
    }
}

fn pseudo(context: &mut Context, number: u64, args: &ReadDirArgs, listing: &mut Listing<'_>) -> Step<bool> {
    let exports = context.exports.clone();
    let from = args.cookie.saturating_sub(FIRST_COOKIE - 1);
    for (at, (name, node)) in (0u64..).zip(exports.entries(number, context.origin.address)) {
        if args.cookie != 0 && at < from {
            continue;
        }
        let attrs = match context.resolve_node(&node) {
            Ok(fh) => attributes(context, &fh, &args.attrs),
            Err(status) => failed(status, &args.attrs),
        }?;
        if !listing.put(at + FIRST_COOKIE, name.as_bytes().to_vec(), &attrs) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The attributes of an entry, or its error if the client asks for errors (RFC 8881 section 18.23.3).
fn attributes(context: &mut Context, fh: &CurrentFh, want: &Bitmap) -> Step<Attrs> {
    match gather_current(context, fh, want) {
        Ok(attrs) => Ok(attrs),
        Err(Stop::Fail(NfsStat::Wrongsec)) => wrong_security(fh, want),
        Err(Stop::Fail(status)) => failed(status, want),
        Err(stop) => Err(stop),
    }
}

fn failed(status: NfsStat, want: &Bitmap) -> Step<Attrs> {
    // [RFC8881 18.23.3]
    if want.contains(attr::RDATTR_ERROR) {
        return Ok(Attrs { rdattr_error: Some(status.number()), ..Attrs::default() });
    }
    Err(Stop::Fail(status))
}

/// Attributes of an export that requires another security flavor: those that reveal nothing about it. So the
/// client sees the name and can ask for the flavors.
fn wrong_security(fh: &CurrentFh, want: &Bitmap) -> Step<Attrs> {
    if want.contains(attr::RDATTR_ERROR) {
        return failed(NfsStat::Wrongsec, want);
    }
    // [RFC8881 2.6.3.1.1]
    let harmless = Bitmap::of([attr::MOUNTED_ON_FILEID, attr::FSID]);
    match fh {
        CurrentFh::Object(object) if want.iter().all(|bit| harmless.contains(bit)) => Ok(Attrs {
            fsid: want.contains(attr::FSID).then(|| object.export.fsid()),
            mounted_on_fileid: want.contains(attr::MOUNTED_ON_FILEID).then_some(object.export.mounted_on),
            ..Attrs::default()
        }),
        _ => Err(Stop::Fail(NfsStat::Wrongsec)),
    }
}

/// The entries from a cursor on. `numbers_only`: without the inodes, as the directory itself contains the
/// inode numbers.
fn batch(dir: &Object, cursor: u64, numbers_only: bool) -> Res<Vec<DirEntry>> {
    let (vfs, mut found) = (dir.vfs(), Vec::new());
    if !numbers_only {
        let of = |entry: Listed| DirEntry {
            name: entry.name,
            cookie: entry.next + FIRST_COOKIE,
            inode: EntryInode::Object(entry.inode.nfs()),
        };
        let listed = vfs.list(dir.read_cred()?, &dir.inode, cursor, BATCH_ENTRIES).nfs()?;
        return Ok(listed.into_iter().map(of).collect());
    }
    let read = vfs.readdir(dir.read_cred()?, &dir.inode, cursor, &mut |entry| {
        found.push(DirEntry {
            name: entry.name.to_vec(),
            cookie: entry.next + FIRST_COOKIE,
            inode: EntryInode::Number(entry.ino.0),
        });
        if found.len() == BATCH_ENTRIES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    read.nfs()?;
    Ok(found)
}

fn directory(
    context: &mut Context,
    dir: &Object,
    args: &ReadDirArgs,
    listing: &mut Listing<'_>,
) -> Step<bool> {
    // Attributes that the directory itself contains.
    let own = Bitmap::of([attr::FILEID, attr::MOUNTED_ON_FILEID, attr::RDATTR_ERROR]);
    let numbers_only = args.attrs.iter().all(|bit| own.contains(bit));
    // Reading names requires read permission; reading their attributes requires search permission.
    let search_right = dir.vfs().access(dir.read_cred()?, &dir.inode, EXECUTE).nfs();
    let mut cursor = args.cookie.saturating_sub(FIRST_COOKIE);
    loop {
        let entries = batch(dir, cursor, numbers_only)?;
        let Some(last) = entries.last() else { return Ok(true) };
        cursor = last.cookie - FIRST_COOKIE;
        for DirEntry { name, cookie, inode } in entries {
            // [RFC8881 14.5] Skips names that are not UTF-8, `.` and `..`.
            if component::check(&name).is_err() {
                continue;
            }
            let attrs = match inode {
                EntryInode::Number(number) => {
                    let fileid = |bit: u32| args.attrs.contains(bit).then_some(number);
                    Ok(Attrs {
                        fileid: fileid(attr::FILEID),
                        mounted_on_fileid: fileid(attr::MOUNTED_ON_FILEID),
                        rdattr_error: args.attrs.contains(attr::RDATTR_ERROR).then_some(0),
                        ..Attrs::default()
                    })
                }
                EntryInode::Object(inode) => match search_right.and(inode) {
                    Ok(inode) => attributes(context, &CurrentFh::Object(dir.with_inode(inode)), &args.attrs),
                    Err(status) => failed(status, &args.attrs),
                },
            };
            let attrs = match attrs {
                Ok(attrs) => attrs,
                // Return the entries before this one; the client asks for the rest.
                Err(_) if listing.entries > 0 => return Ok(false),
                Err(stop) => return Err(stop),
            };
            if !listing.put(cookie, name, &attrs) {
                return Ok(false);
            }
        }
    }
}
