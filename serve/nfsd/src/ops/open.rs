//! The part of OPEN that works on files: finding or creating the file.

use ivers_nfs4::attr::{self, Fattr};
use ivers_nfs4::ops::v40::{OpenArgs, OpenClaim, share};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, ChangeInfo, CreateHow, OpenHow, Verifier};
use ivers_vfs::access::{EXECUTE, READ, WRITE};
use ivers_vfs::{CreateSpec, Error, FileType, InodeRef, NameError, SetAttr, TimeSet, Timestamp};

use super::attr::acl_to_posix::NewAcl;
use super::attr::set::default_mode;
use super::durability::commit_now;
use super::{component, filehandle, namespace};
use crate::compound::status::{OrStatus, status};
use crate::compound::{Context, CurrentFh, Object};
use crate::state::FileId;

/// The file that an OPEN refers to.
pub(crate) enum OpenTarget {
    /// The file exists.
    Existing(ExistingFile),
    /// The file does not exist; OPEN creates it.
    Missing(NewFile),
}

/// A file that exists.
pub(crate) struct ExistingFile {
    /// The file.
    pub file: Object,
    /// The directory and the name by which it was found.
    by: Option<(Object, Vec<u8>)>,
    /// Whether OPEN truncates it to size 0.
    pub truncates: bool,
    attrset: Bitmap,
}

/// A file to create.
pub(crate) struct NewFile {
    dir: Object,
    name: Vec<u8>,
    creation: Creation,
}

/// The result of OPEN on the file.
pub(crate) struct OpenedFile {
    /// The file.
    pub file: Object,
    /// The change info of the directory.
    pub cinfo: ChangeInfo,
    /// Attributes that were set.
    pub attrset: Bitmap,
}

/// The times in which an exclusive creation stores its verifier. The client sets the times afterwards, so no
/// other space is required.
fn verifier_times(verifier: &Verifier) -> (i64, i64) {
    let half = |at: usize| {
        let bytes = [verifier[at] & 0x7f, verifier[at + 1], verifier[at + 2], verifier[at + 3]];
        i64::from(u32::from_be_bytes(bytes))
    };
    (half(0), half(4))
}

fn has_verifier(file: &Object, verifier: &Verifier) -> bool {
    file.inode.with_attr(|attr| (attr.atime.sec, attr.mtime.sec)) == verifier_times(verifier)
        && file.inode.size() == 0
}

/// The properties of a new file.
struct Creation {
    spec: CreateSpec,
    acl: Option<NewAcl>,
    /// Attributes that are set at creation.
    attrset: Bitmap,
}

fn creation(context: &Context, dir: &Object, given: &Fattr) -> Res<Creation> {
    let new_attrs = super::attr::parse_new_attrs(
        context,
        &CurrentFh::Object(dir.clone()),
        given,
        Some(FileType::Regular),
    )?;
    let spec = new_attrs.create_spec(CreateSpec::file(default_mode(FileType::Regular)));
    Ok(Creation { spec, acl: new_attrs.acl, attrset: new_attrs.mask })
}

/// The properties of a file that is created exclusively. A repeated OPEN reports the same attributes.
fn exclusive_creation(
    context: &Context,
    dir: &Object,
    verifier: &Verifier,
    given: Option<&Fattr>,
) -> Res<Creation> {
    let times = [attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET];
    let mut creation = match given {
        // [RFC8881 18.16.3]
        Some(given) if times.iter().any(|time| given.mask.contains(*time)) => return Err(NfsStat::Inval),
        Some(given) => creation(context, dir, given)?,
        // Without permissions until the client sets them.
        None => {
            let spec = CreateSpec { perm: 0, ..CreateSpec::file(default_mode(FileType::Regular)) };
            Creation { spec, acl: None, attrset: Bitmap::default() }
        }
    };
    let (atime, mtime) = verifier_times(verifier);
    creation.spec.atime = Some(TimeSet::At(Timestamp { sec: atime, nsec: 0 }));
    creation.spec.mtime = Some(TimeSet::At(Timestamp { sec: mtime, nsec: 0 }));
    // [RFC8881 18.16.3] The client learns that the times contain no valid values.
    creation.attrset.insert(attr::TIME_ACCESS);
    creation.attrset.insert(attr::TIME_MODIFY);
    Ok(creation)
}

/// The verifier and the attributes of an exclusive creation.
fn exclusive_args(how: &OpenHow) -> Option<(&Verifier, Option<&Fattr>)> {
    match how {
        OpenHow::Create(CreateHow::Exclusive(verifier)) => Some((verifier, None)),
        OpenHow::Create(CreateHow::Exclusive41(how)) => Some((&how.verifier, Some(&how.attrs))),
        OpenHow::Create(CreateHow::Unchecked(_) | CreateHow::Guarded(_)) | OpenHow::NoCreate => None,
    }
}

/// Finds the file that an OPEN refers to.
pub(crate) fn find(context: &Context, args: &OpenArgs) -> Res<OpenTarget> {
    let (dir, name) = match &args.claim {
        OpenClaim::Null(name) => (directory(context)?, name),
        OpenClaim::DelegateCur(claim) => (directory(context)?, &claim.name),
        OpenClaim::Previous(_) | OpenClaim::Fh | OpenClaim::DelegCurFh(_) => {
            // [RFC8881 18.16.3]
            if !matches!(args.how, OpenHow::NoCreate) {
                return Err(NfsStat::Inval);
            }
            let file = context.object(NfsStat::Isdir)?.clone();
            return check_existing(context, args, file, None);
        }
        OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => return Err(NfsStat::Notsupp),
    };
    let name = component::check(name)?;
    match filehandle::child(&dir, name) {
        Ok(file) => check_existing(context, args, file, Some((dir, name.to_vec()))),
        Err(NfsStat::Noent) if !matches!(args.how, OpenHow::NoCreate) => {
            plan_creation(context, args, dir, name)
        }
        Err(status) => Err(status),
    }
}

fn directory(context: &Context) -> Res<Object> {
    // The pseudo-root contains no files.
    let dir = context.object(NfsStat::Noent)?;
    match dir.inode.kind {
        FileType::Directory => Ok(dir.clone()),
        // [RFC8881 18.16.3]
        FileType::Symlink => Err(NfsStat::Symlink),
        _ => Err(NfsStat::Notdir),
    }
}

fn check_existing(
    context: &Context,
    args: &OpenArgs,
    file: Object,
    by: Option<(Object, Vec<u8>)>,
) -> Res<OpenTarget> {
    let mut found = ExistingFile { file, by, truncates: false, attrset: Bitmap::default() };
    let mut made_by_this = false;
    match &args.how {
        OpenHow::NoCreate | OpenHow::Create(CreateHow::Exclusive(_) | CreateHow::Exclusive41(_)) => {}
        OpenHow::Create(CreateHow::Guarded(_)) => return Err(NfsStat::Exist),
        OpenHow::Create(CreateHow::Unchecked(given)) => {
            let new_attrs = super::attr::parse_new_attrs(
                context,
                &CurrentFh::Object(found.file.clone()),
                given,
                Some(FileType::Regular),
            )?;
            // [RFC8881 18.16.3] Of an existing file only the size can be set, and only to 0.
            found.truncates = new_attrs.set.size == Some(0);
            if found.truncates {
                found.attrset.insert(attr::SIZE);
            }
        }
    }
    if let (Some((verifier, given)), Some((dir, _))) = (exclusive_args(&args.how), &found.by) {
        if !has_verifier(&found.file, verifier) {
            return Err(NfsStat::Exist);
        }
        made_by_this = true;
        found.attrset = exclusive_creation(context, dir, verifier, given)?.attrset;
    }
    let file = match found.file.regular(context.minor) {
        Ok(file) => file,
        // [RFC7530 16.16.5] NFSv4.0 has one error for everything that is neither a file nor a directory.
        Err(status) if context.minor == 0 && status != NfsStat::Isdir => return Err(NfsStat::Symlink),
        Err(status) => return Err(status),
    };
    let cred = file.read_cred()?;
    let (vfs, inode) = (file.vfs(), &file.inode);
    let writes = args.share_access & share::WRITE != 0 || found.truncates;
    if writes {
        file.write_cred()?;
    }
    // A reclaimed open was checked before the restart. The creator of a file may have removed its own
    // permissions.
    let checked = made_by_this || matches!(args.claim, OpenClaim::Previous(_));
    if !checked || inode.with_attr(|attr| attr.uid) != cred.uid {
        if writes {
            vfs.access(cred, inode, WRITE).nfs()?;
        }
        if args.share_access & share::READ != 0 {
            // A client must read a program to run it, so execute permission suffices.
            vfs.access(cred, inode, READ)
                .or_else(|error| vfs.access(cred, inode, EXECUTE).map_err(|_| error))
                .nfs()?;
        }
    }
    Ok(OpenTarget::Existing(found))
}

fn plan_creation(context: &Context, args: &OpenArgs, dir: Object, name: &[u8]) -> Res<OpenTarget> {
    dir.write_cred()?;
    let creation = match (&args.how, exclusive_args(&args.how)) {
        (OpenHow::Create(CreateHow::Unchecked(given) | CreateHow::Guarded(given)), _) => {
            creation(context, &dir, given)?
        }
        (_, Some((verifier, given))) => exclusive_creation(context, &dir, verifier, given)?,
        (_, None) => return Err(NfsStat::Noent),
    };
    Ok(OpenTarget::Missing(NewFile { dir, name: name.to_vec(), creation }))
}

impl ExistingFile {
    /// Completes the open after the file was claimed: truncates it if requested. `None` if the name changed
    /// concurrently.
    pub fn open(self, context: &Context) -> Res<Option<OpenedFile>> {
        let (vfs, inode) = (self.file.vfs(), &self.file.inode);
        let info = match &self.by {
            Some((dir, name)) => match vfs.revalidate_name(dir.read_cred()?, &dir.inode, name, inode) {
                Err(Error::Name(NameError::Changed)) => return Ok(None),
                confirmed => confirmed.nfs()?,
            },
            // The file was opened by its filehandle, without a directory.
            None => vfs.change(inode).map(|value| ivers_vfs::ChangeInfo { before: value, after: value }),
        };
        if self.truncates {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            vfs.set_attr(self.file.write_cred()?, inode, &set).nfs()?;
            commit_now(&self.file, &[inode])?;
        }
        let cinfo = match info {
            Some(info) => ChangeInfo { atomic: true, before: info.before, after: info.after },
            None => {
                let change = context.service.unique_change();
                ChangeInfo { atomic: false, before: change, after: change }
            }
        };
        Ok(Some(OpenedFile { file: self.file, cinfo, attrset: self.attrset }))
    }
}

impl NewFile {
    /// Creates the file. `claim` runs before another request can find it. `None` if the name exists
    /// meanwhile.
    pub fn create(&self, context: &Context, claim: &mut dyn FnMut(FileId)) -> Res<Option<OpenedFile>> {
        let dir = &self.dir;
        let mut claimed = |inode: &InodeRef| claim(dir.with_inode(inode.clone()).file());
        match namespace::create_object(
            dir,
            &self.name,
            &self.creation.spec,
            self.creation.acl.as_ref(),
            &mut claimed,
        ) {
            Ok((inode, info)) => Ok(Some(OpenedFile {
                file: dir.with_inode(inode),
                cinfo: context.service.change_info(info),
                attrset: self.creation.attrset.clone(),
            })),
            Err(NfsStat::Exist) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Removes the file if it cannot be opened after all.
    pub fn undo(&self, made: &OpenedFile) {
        namespace::undo_create(&self.dir, &self.name, &made.file.inode);
    }
}

/// Whether an error means that the file no longer exists.
pub(crate) fn is_stale(error: &Error) -> bool {
    matches!(error, Error::Name(NameError::Stale | NameError::NotFound)) || status(error) == NfsStat::Stale
}
