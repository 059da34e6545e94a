//! Of OPEN, what it does to files: the one that it means is found, or made. Who may have it open is for [`State`](crate::state::State).

use ivers_nfs4::attr::{self, Fattr};
use ivers_nfs4::ops::v40::{OpenArgs, OpenClaim, share};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, ChangeInfo, CreateHow, OpenHow, Verifier};
use ivers_vfs::access::{EXECUTE, READ, WRITE};
use ivers_vfs::{CreateSpec, Error, FileType, InodeRef, NameError, SetAttr, TimeSet, Timestamp};

use super::attr::acl_given::NewAcl;
use super::attr::set::default_mode;
use super::status::{OrStatus, status};
use super::{handle, name, names, settle};
use crate::compound::{Context, Object, Place};
use crate::state::File;

/// A file that is there, or what would have to be made.
pub(crate) enum Found {
    /// It is there.
    There(There),
    /// It is not, and is to be made like this.
    Missing(Missing),
}

/// A file that is there.
pub(crate) struct There {
    /// The file.
    pub file: Object,
    /// The directory in which it was looked up, and the name.
    by: Option<(Object, Vec<u8>)>,
    /// It is to be emptied.
    pub truncates: bool,
    attrset: Bitmap,
}

/// A file that is to be made.
pub(crate) struct Missing {
    dir: Object,
    name: Vec<u8>,
    birth: Birth,
}

/// What the operation has come to.
pub(crate) struct Done {
    /// The file.
    pub file: Object,
    /// What it meant for the directory.
    pub cinfo: ChangeInfo,
    /// Attributes that were set.
    pub attrset: Bitmap,
}

/// Where an exclusive creation keeps its verifier: in the times, which its maker sets afterwards. They are there from the start, and take no room.
fn kept(verifier: &Verifier) -> (i64, i64) {
    let half = |at: usize| {
        let bytes = [verifier[at] & 0x7f, verifier[at + 1], verifier[at + 2], verifier[at + 3]];
        i64::from(u32::from_be_bytes(bytes))
    };
    (half(0), half(4))
}

fn is_of(file: &Object, verifier: &Verifier) -> bool {
    file.inode.with_attr(|attr| (attr.atime.sec, attr.mtime.sec)) == kept(verifier) && file.inode.size() == 0
}

/// How a file is born.
struct Birth {
    spec: CreateSpec,
    acl: Option<NewAcl>,
    /// Attributes that are set.
    attrset: Bitmap,
}

fn born(context: &Context, dir: &Object, given: &Fattr) -> Res<Birth> {
    let wanted = super::attr::wanted(context, &Place::Object(dir.clone()), given, Some(FileType::Regular))?;
    let spec = wanted.born(CreateSpec::file(default_mode(FileType::Regular)));
    Ok(Birth { spec, acl: wanted.acl, attrset: wanted.mask })
}

/// An exclusive creation: whoever asks again is told what was set when it made the file.
fn born_once(context: &Context, dir: &Object, verifier: &Verifier, given: Option<&Fattr>) -> Res<Birth> {
    let times = [attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET];
    let mut birth = match given {
        // [RFC8881 18.16.3]
        Some(given) if times.iter().any(|time| given.mask.contains(*time)) => return Err(NfsStat::Inval),
        Some(given) => born(context, dir, given)?,
        // Nobody else comes in until its maker has said who may.
        None => {
            let spec = CreateSpec { perm: 0, ..CreateSpec::file(default_mode(FileType::Regular)) };
            Birth { spec, acl: None, attrset: Bitmap::default() }
        }
    };
    let (atime, mtime) = kept(verifier);
    birth.spec.atime = Some(TimeSet::At(Timestamp { sec: atime, nsec: 0 }));
    birth.spec.mtime = Some(TimeSet::At(Timestamp { sec: mtime, nsec: 0 }));
    // [RFC8881 18.16.3] So the maker knows that they say nothing.
    birth.attrset.insert(attr::TIME_ACCESS);
    birth.attrset.insert(attr::TIME_MODIFY);
    Ok(birth)
}

/// The verifier of an exclusive creation, and what attributes come with it.
fn once(how: &OpenHow) -> Option<(&Verifier, Option<&Fattr>)> {
    match how {
        OpenHow::Create(CreateHow::Exclusive(verifier)) => Some((verifier, None)),
        OpenHow::Create(CreateHow::Exclusive41(how)) => Some((&how.verifier, Some(&how.attrs))),
        OpenHow::Create(CreateHow::Unchecked(_) | CreateHow::Guarded(_)) | OpenHow::NoCreate => None,
    }
}

/// Which file is meant.
pub(crate) fn find(context: &Context, args: &OpenArgs) -> Res<Found> {
    let (dir, name) = match &args.claim {
        OpenClaim::Null(name) => (directory(context)?, name),
        OpenClaim::DelegateCur(claim) => (directory(context)?, &claim.name),
        OpenClaim::Previous(_) | OpenClaim::Fh | OpenClaim::DelegCurFh(_) => {
            // [RFC8881 18.16.3]
            if !matches!(args.how, OpenHow::NoCreate) {
                return Err(NfsStat::Inval);
            }
            let file = context.object(NfsStat::Isdir)?.clone();
            return there(context, args, file, None);
        }
        OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => return Err(NfsStat::Notsupp),
    };
    let name = name::component(name)?;
    match handle::child(&dir, name) {
        Ok(file) => there(context, args, file, Some((dir, name.to_vec()))),
        Err(NfsStat::Noent) if !matches!(args.how, OpenHow::NoCreate) => missing(context, args, dir, name),
        Err(status) => Err(status),
    }
}

fn directory(context: &Context) -> Res<Object> {
    // There are no files above the exports.
    let dir = context.object(NfsStat::Noent)?;
    match dir.inode.kind {
        FileType::Directory => Ok(dir.clone()),
        // [RFC8881 18.16.3]
        FileType::Symlink => Err(NfsStat::Symlink),
        _ => Err(NfsStat::Notdir),
    }
}

fn there(context: &Context, args: &OpenArgs, file: Object, by: Option<(Object, Vec<u8>)>) -> Res<Found> {
    let mut found = There { file, by, truncates: false, attrset: Bitmap::default() };
    let mut made_by_this = false;
    match &args.how {
        OpenHow::NoCreate | OpenHow::Create(CreateHow::Exclusive(_) | CreateHow::Exclusive41(_)) => {}
        OpenHow::Create(CreateHow::Guarded(_)) => return Err(NfsStat::Exist),
        OpenHow::Create(CreateHow::Unchecked(given)) => {
            let wanted = super::attr::wanted(
                context,
                &Place::Object(found.file.clone()),
                given,
                Some(FileType::Regular),
            )?;
            // [RFC8881 18.16.3] Of what is there only the size can be set, and only to nothing.
            found.truncates = wanted.set.size == Some(0);
            if found.truncates {
                found.attrset.insert(attr::SIZE);
            }
        }
    }
    if let (Some((verifier, given)), Some((dir, _))) = (once(&args.how), &found.by) {
        if !is_of(&found.file, verifier) {
            return Err(NfsStat::Exist);
        }
        made_by_this = true;
        found.attrset = born_once(context, dir, verifier, given)?.attrset;
    }
    let file = match found.file.regular(context.minor) {
        Ok(file) => file,
        // [RFC7530 16.16.5] The first version has this one word for whatever is neither a file nor a directory.
        Err(status) if context.minor == 0 && status != NfsStat::Isdir => return Err(NfsStat::Symlink),
        Err(status) => return Err(status),
    };
    let cred = file.reader()?;
    let (vfs, inode) = (file.vfs(), &file.inode);
    let writes = args.share_access & share::WRITE != 0 || found.truncates;
    if writes {
        file.writer()?;
    }
    // What was open before a restart was checked then; who has just made a file may have taken away his own rights.
    let checked = made_by_this || matches!(args.claim, OpenClaim::Previous(_));
    if !checked || inode.with_attr(|attr| attr.uid) != cred.uid {
        if writes {
            vfs.access(cred, inode, WRITE).nfs()?;
        }
        if args.share_access & share::READ != 0 {
            // What may be run must be read by the client that runs it.
            vfs.access(cred, inode, READ)
                .or_else(|error| vfs.access(cred, inode, EXECUTE).map_err(|_| error))
                .nfs()?;
        }
    }
    Ok(Found::There(found))
}

fn missing(context: &Context, args: &OpenArgs, dir: Object, name: &[u8]) -> Res<Found> {
    dir.writer()?;
    let birth = match (&args.how, once(&args.how)) {
        (OpenHow::Create(CreateHow::Unchecked(given) | CreateHow::Guarded(given)), _) => {
            born(context, &dir, given)?
        }
        (_, Some((verifier, given))) => born_once(context, &dir, verifier, given)?,
        (_, None) => return Err(NfsStat::Noent),
    };
    Ok(Found::Missing(Missing { dir, name: name.to_vec(), birth }))
}

impl There {
    /// It is claimed: empty it, if that was asked for. Nothing, if the name means another one by now.
    pub fn open(self, context: &Context) -> Res<Option<Done>> {
        let (vfs, inode) = (self.file.vfs(), &self.file.inode);
        let info = match &self.by {
            Some((dir, name)) => match vfs.confirm(dir.reader()?, &dir.inode, name, inode) {
                Err(Error::Name(NameError::Changed)) => return Ok(None),
                confirmed => confirmed.nfs()?,
            },
            // No name was looked up: the file speaks for itself.
            None => vfs.change(inode).map(|value| ivers_vfs::ChangeInfo { before: value, after: value }),
        };
        if self.truncates {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            vfs.set_attr(self.file.writer()?, inode, &set).nfs()?;
            settle(&self.file, &[inode])?;
        }
        let cinfo = match info {
            Some(info) => ChangeInfo { atomic: true, before: info.before, after: info.after },
            None => {
                let change = context.service.unvouched();
                ChangeInfo { atomic: false, before: change, after: change }
            }
        };
        Ok(Some(Done { file: self.file, cinfo, attrset: self.attrset }))
    }
}

impl Missing {
    /// Make it, and have it claimed before anybody else can find it. Nothing, if somebody else was faster.
    pub fn make(&self, context: &Context, claim: &mut dyn FnMut(File)) -> Res<Option<Done>> {
        let dir = &self.dir;
        let mut claimed = |inode: &InodeRef| claim(dir.beside(inode.clone()).file());
        match names::make(dir, &self.name, &self.birth.spec, self.birth.acl.as_ref(), &mut claimed) {
            Ok((inode, info)) => Ok(Some(Done {
                file: dir.beside(inode),
                cinfo: context.service.change_info(info),
                attrset: self.birth.attrset.clone(),
            })),
            Err(NfsStat::Exist) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// It cannot be opened after all.
    pub fn unmake(&self, made: &Done) {
        names::undo(&self.dir, &self.name, &made.file.inode);
    }
}

/// Whether an error of the VFS says that a file is gone.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Name(NameError::Stale | NameError::NotFound)) || status(error) == NfsStat::Stale
}
