//! READDIR.

use std::ops::ControlFlow;

use ivers_nfs4::attr::{self, Attrs, is_write_only};
use ivers_nfs4::ops::v40::{Entry, ReadDirArgs};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, Verifier};
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_vfs::access::{EXECUTE, READ};
use ivers_vfs::{FileType, InodeRef, Listed};

use super::attr::of_place;
use super::name;
use super::status::OrStatus;
use crate::compound::{Context, Object, Place};
use crate::state::{Step, Stop};

/// 0 is the start; 1 and 2 are for nobody (RFC 8881 section 18.23.3). A place in a directory is its cursor behind these.
const FIRST_COOKIE: u64 = 3;
/// The verifier before the entries, and behind them that there are no more, and whether these were the last.
const FRAME: usize = 8 + 4 + 4;
/// Entries that are looked at under one question to the VFS.
const BATCH: usize = 64;

struct Found {
    name: Vec<u8>,
    cookie: u64,
    shows: Shows,
}

enum Shows {
    Number(u64),
    Object(Res<InodeRef>),
}

/// Puts entries down as long as there is room.
struct Listing<'a> {
    out: &'a mut Encoder,
    start: usize,
    /// Bytes of all.
    most: usize,
    /// Bytes of names and cookies.
    most_names: usize,
    names: usize,
    entries: usize,
}

impl Listing<'_> {
    /// Put an entry down; false: there is no room for it.
    fn put(&mut self, cookie: u64, name: Vec<u8>, attrs: &Attrs) -> bool {
        let names = self.names + 8 + 4 + name.len().next_multiple_of(4);
        // As a bound of the names alone it is a hint: the first entry goes out in any case.
        if self.entries > 0 && names > self.most_names {
            return false;
        }
        let before = self.out.len();
        true.put(self.out);
        Entry { cookie, name, attrs: attrs.encode() }.put(self.out);
        // [RFC8881 18.23.3]
        if self.out.len() - self.start + FRAME - 8 > self.most {
            self.out.truncate(before);
            return false;
        }
        self.names = names;
        self.entries += 1;
        true
    }
}

/// READDIR.
pub fn read_dir(context: &mut Context, args: &ReadDirArgs, out: &mut Encoder) -> Step<()> {
    let place = context.current()?.clone();
    // [RFC8881 18.23.3]
    if args.attrs.iter().any(is_write_only) {
        return Err(NfsStat::Inval.into());
    }
    if args.cookie == 1 || args.cookie == 2 {
        return Err(NfsStat::BadCookie.into());
    }
    let verifier = verifier(context, &place)?;
    // [RFC8881 18.23.3]
    if args.cookie != 0 && args.verifier != verifier {
        return Err(NfsStat::NotSame.into());
    }
    NfsStat::Ok.put(out);
    let start = out.len();
    verifier.put(out);
    let room = context.room.saturating_sub(8);
    let most = (args.maxcount as usize).min(room);
    // [RFC8881 18.23.3] 0: there is no such bound.
    let most_names = if args.dircount == 0 { usize::MAX } else { args.dircount as usize };
    let mut listing = Listing { out, start, most, most_names, names: 0, entries: 0 };
    if most < FRAME {
        return Err(NfsStat::Toosmall.into());
    }
    let eof = match &place {
        Place::Pseudo(number) => pseudo(context, *number, args, &mut listing)?,
        Place::Object(dir) => directory(context, dir, args, &mut listing)?,
    };
    // [RFC8881 18.23.3]
    if listing.entries == 0 && !eof {
        let own_fault = (args.maxcount as usize) <= room;
        return Err(if own_fault { NfsStat::Toosmall } else { NfsStat::RepTooBig }.into());
    }
    false.put(out);
    eof.put(out);
    Ok(())
}

/// Tells cookies of one directory's life from others. Cursors of the VFS hold as long as the directory lives; entries above the exports, as long as the table.
fn verifier(context: &Context, place: &Place) -> Step<Verifier> {
    match place {
        Place::Pseudo(_) => Ok(context.exports.change().to_be_bytes()),
        Place::Object(dir) => {
            let cred = dir.reader()?;
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
        let attrs = match context.node(&node) {
            Ok(place) => attributes(context, &place, &args.attrs),
            Err(status) => failed(status, &args.attrs),
        }?;
        if !listing.put(at + FIRST_COOKIE, name.as_bytes().to_vec(), &attrs) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The attributes of an entry, or why there are none, if that may be said (RFC 8881 section 18.23.3).
fn attributes(context: &mut Context, place: &Place, want: &Bitmap) -> Step<Attrs> {
    match of_place(context, place, want) {
        Ok(attrs) => Ok(attrs),
        Err(Stop::Fail(NfsStat::Wrongsec)) => wrong_security(place, want),
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

/// An export that this caller may not enter like that: what the server says of every export he is told, so that its name is there to be asked about.
fn wrong_security(place: &Place, want: &Bitmap) -> Step<Attrs> {
    if want.contains(attr::RDATTR_ERROR) {
        return failed(NfsStat::Wrongsec, want);
    }
    // [RFC8881 2.6.3.1.1]
    let harmless = Bitmap::of([attr::MOUNTED_ON_FILEID, attr::FSID]);
    match place {
        Place::Object(object) if want.iter().all(|bit| harmless.contains(bit)) => Ok(Attrs {
            fsid: want.contains(attr::FSID).then(|| object.export.fsid()),
            mounted_on_fileid: want.contains(attr::MOUNTED_ON_FILEID).then_some(object.export.mounted_on),
            ..Attrs::default()
        }),
        _ => Err(Stop::Fail(NfsStat::Wrongsec)),
    }
}

/// Entries from a cursor on; `alone`: with no more than the directory knows by itself.
fn batch(dir: &Object, cursor: u64, alone: bool) -> Res<Vec<Found>> {
    let (vfs, mut found) = (dir.vfs(), Vec::new());
    if !alone {
        let of = |entry: Listed| Found {
            name: entry.name,
            cookie: entry.next + FIRST_COOKIE,
            shows: Shows::Object(entry.inode.nfs()),
        };
        return Ok(vfs.list(&dir.inode, cursor, BATCH).nfs()?.into_iter().map(of).collect());
    }
    let read = vfs.readdir(&dir.inode, cursor, &mut |entry| {
        found.push(Found {
            name: entry.name.to_vec(),
            cookie: entry.next + FIRST_COOKIE,
            shows: Shows::Number(entry.ino.0),
        });
        if found.len() == BATCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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
    // What the directory knows by itself.
    let own = Bitmap::of([attr::FILEID, attr::MOUNTED_ON_FILEID, attr::RDATTR_ERROR]);
    let alone = args.attrs.iter().all(|bit| own.contains(bit));
    // To see what a name stands for is more than to read it.
    let searches = dir.vfs().access(dir.reader()?, &dir.inode, EXECUTE).nfs();
    let mut cursor = args.cookie.saturating_sub(FIRST_COOKIE);
    loop {
        let entries = batch(dir, cursor, alone)?;
        let Some(last) = entries.last() else { return Ok(true) };
        cursor = last.cookie - FIRST_COOKIE;
        for Found { name, cookie, shows } in entries {
            // [RFC8881 14.5] Names that cannot be said are left out; the directory's own two are nobody's.
            if name::component(&name).is_err() {
                continue;
            }
            let attrs = match shows {
                Shows::Number(number) => {
                    let fileid = |bit: u32| args.attrs.contains(bit).then_some(number);
                    Ok(Attrs {
                        fileid: fileid(attr::FILEID),
                        mounted_on_fileid: fileid(attr::MOUNTED_ON_FILEID),
                        rdattr_error: args.attrs.contains(attr::RDATTR_ERROR).then_some(0),
                        ..Attrs::default()
                    })
                }
                Shows::Object(inode) => match searches.and(inode) {
                    Ok(inode) => attributes(context, &Place::Object(dir.beside(inode)), &args.attrs),
                    Err(status) => failed(status, &args.attrs),
                },
            };
            let attrs = match attrs {
                Ok(attrs) => attrs,
                // Those before it can be told at once; the client comes again for the rest.
                Err(_) if listing.entries > 0 => return Ok(false),
                Err(stop) => return Err(stop),
            };
            if !listing.put(cookie, name, &attrs) {
                return Ok(false);
            }
        }
    }
}
