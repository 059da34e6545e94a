//! POSIX ACLs as NFSv4 ACLs (RFC 7530 section 6). The reverse is [`NewAcl`](super::acl_to_posix::NewAcl).
//!
//! In an NFSv4 ACL, the first entry that mentions a permission decides. POSIX selects one class for a caller
//! and ignores the others. Therefore a class that lacks a permission which a later class grants is followed
//! by an entry that denies it. A caller may be in several groups, and any of them may grant a permission: all
//! denials of groups follow all grants of groups.

use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::Ace;
use ivers_nfs4::xdr::List;
use ivers_vfs::acl::{self, Acl, Entry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};
use ivers_vfs::{Attr, Cred, Error, FileType, NameError};

use crate::compound::status::status;
use crate::compound::{Context, IdMap, Object};

pub(super) const ALLOW: u32 = 0;
pub(super) const DENY: u32 = 1;

pub(super) const FILE_INHERIT: u32 = 0x1;
pub(super) const DIRECTORY_INHERIT: u32 = 0x2;
pub(super) const INHERIT_ONLY: u32 = 0x8;
pub(super) const IDENTIFIER_GROUP: u32 = 0x40;

pub(super) const READ_DATA: u32 = 0x1;
pub(super) const WRITE_DATA: u32 = 0x2;
pub(super) const APPEND_DATA: u32 = 0x4;
const READ_NAMED_ATTRS: u32 = 0x8;
const WRITE_NAMED_ATTRS: u32 = 0x10;
pub(super) const EXECUTE: u32 = 0x20;
pub(super) const DELETE_CHILD: u32 = 0x40;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_ATTRIBUTES: u32 = 0x100;
const READ_ACL: u32 = 0x2_0000;
const WRITE_ACL: u32 = 0x4_0000;
const WRITE_OWNER: u32 = 0x8_0000;
const SYNCHRONIZE: u32 = 0x10_0000;

/// Granted to everybody, whatever the mode says.
const EVERYONE_MAY: u32 = READ_ATTRIBUTES | READ_ACL | SYNCHRONIZE;
/// Granted to the owner, whatever the mode says.
const OWNER_MAY: u32 = WRITE_ATTRIBUTES | WRITE_ACL | WRITE_OWNER;

fn stored(object: &Object, name: &[u8]) -> Res<Option<Acl>> {
    let value = match object.vfs().get_xattr(&Cred::trusted(), &object.inode, name) {
        Ok(value) => value,
        Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => return Ok(None),
        Err(error) => return Err(status(&error)),
    };
    Acl::parse(&value).map_err(|_| NfsStat::Io)
}

/// The ACL of an object: the stored one, or one derived from the mode. For a directory, the entries that
/// children inherit follow.
pub fn nfs4_acl(context: &Context, object: &Object, stat: &Attr) -> Res<List<Ace>> {
    let directory = stat.kind == FileType::Directory;
    let own = stored(object, acl::ACCESS)?.unwrap_or_else(|| Acl::of_mode(stat.perm));
    let mut aces = Mapping { context, directory, flags: 0 }.aces(own.entries());
    if directory && let Some(default) = stored(object, acl::DEFAULT)? {
        let flags = FILE_INHERIT | DIRECTORY_INHERIT | INHERIT_ONLY;
        aces.extend(Mapping { context, directory, flags }.aces(default.entries()));
    }
    Ok(List(aces))
}

struct Mapping<'a> {
    context: &'a Context,
    directory: bool,
    flags: u32,
}

impl Mapping<'_> {
    fn bits(&self, perm: u16) -> u32 {
        let mut mask = 0;
        if perm & 4 != 0 {
            mask |= READ_DATA | READ_NAMED_ATTRS;
        }
        if perm & 2 != 0 {
            mask |= WRITE_DATA | APPEND_DATA | WRITE_NAMED_ATTRS;
            mask |= if self.directory { DELETE_CHILD } else { 0 };
        }
        if perm & 1 != 0 {
            mask |= EXECUTE;
        }
        mask
    }

    fn who(&self, entry: &Entry) -> (Vec<u8>, u32) {
        let names = self.context.id_map();
        match entry.tag {
            USER_OBJ => (b"OWNER@".to_vec(), 0),
            USER => (names.user(entry.id), 0),
            GROUP_OBJ => (b"GROUP@".to_vec(), 0),
            GROUP => (names.group(entry.id), IDENTIFIER_GROUP),
            _ => (b"EVERYONE@".to_vec(), 0),
        }
    }

    fn allow(&self, entry: &Entry, perm: u16) -> Ace {
        let (who, flag) = self.who(entry);
        let more = if entry.tag == USER_OBJ { EVERYONE_MAY | OWNER_MAY } else { EVERYONE_MAY };
        Ace { kind: ALLOW, flags: self.flags | flag, mask: self.bits(perm) | more, who }
    }

    fn deny(&self, entry: &Entry, perm: u16) -> Option<Ace> {
        let (who, flag) = self.who(entry);
        (perm != 0).then(|| Ace { kind: DENY, flags: self.flags | flag, mask: self.bits(perm), who })
    }

    fn aces(&self, entries: &[Entry]) -> Vec<Ace> {
        let with = |tag: u16| entries.iter().filter(move |entry| entry.tag == tag);
        let mask = with(MASK).map(|entry| entry.perm).next().unwrap_or(7);
        // The mask limits all entries but those of the owner and of others.
        let effective = |entry: &Entry| match entry.tag {
            USER | GROUP | GROUP_OBJ => entry.perm & mask,
            _ => entry.perm,
        };
        let others = with(OTHER).fold(0, |all, entry| all | entry.perm);
        let groups = with(GROUP_OBJ).chain(with(GROUP));
        let after_users = groups.clone().fold(others, |all, entry| all | effective(entry));
        let after_owner = with(USER).fold(after_users, |all, entry| all | effective(entry));
        let mut aces = Vec::new();
        for (class, later) in [(USER_OBJ, after_owner), (USER, after_users)] {
            for entry in with(class) {
                let perm = effective(entry);
                aces.push(self.allow(entry, perm));
                aces.extend(self.deny(entry, later & !perm));
            }
        }
        aces.extend(groups.clone().map(|entry| self.allow(entry, effective(entry))));
        aces.extend(groups.filter_map(|entry| self.deny(entry, others & !effective(entry))));
        aces.extend(with(OTHER).map(|entry| self.allow(entry, entry.perm)));
        aces
    }
}
