//! NFSv4 ACLs as POSIX ACLs (RFC 7530 section 6.2.1).
//!
//! A POSIX ACL cannot express every NFSv4 ACL. The stored ACL never grants a user or a group more than the
//! given one: a class is denied what an earlier entry denies to a group that its members may also be in. An
//! ACL that [`super::acl_from_posix`] produced comes back unchanged.

use std::collections::BTreeSet;

use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::Ace;
use ivers_vfs::acl::{self, Acl, Entry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs, XattrMode};

use super::acl_from_posix::{
    ALLOW, APPEND_DATA, DELETE_CHILD, DENY, DIRECTORY_INHERIT, EXECUTE, FILE_INHERIT, IDENTIFIER_GROUP,
    INHERIT_ONLY, READ_DATA, WRITE_DATA,
};
use crate::compound::IdMap;
use crate::compound::status::status;

/// More entries than any format can store, and few enough for a quadratic comparison.
const ENTRIES_MAX: usize = 1024;
const KNOWN_FLAGS: u32 = FILE_INHERIT | DIRECTORY_INHERIT | INHERIT_ONLY | IDENTIFIER_GROUP;

/// The user or group of an entry: tag and number.
type Who = (u16, u32);

struct ParsedAce {
    allow: bool,
    mask: u32,
    who_id: Who,
    /// Whether the entry applies to the object and to its children.
    for_itself: bool,
    for_children: bool,
}

/// The ACL of an object and, for a directory, the default ACL of its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAcl {
    access: Acl,
    default: Option<Acl>,
}

impl NewAcl {
    /// Converts NFSv4 entries. Errors: NFS4ERR_ATTRNOTSUPP, NFS4ERR_BADOWNER.
    pub fn of(names: &dyn IdMap, kind: FileType, aces: &[Ace]) -> Res<Self> {
        if aces.len() > ENTRIES_MAX || kind == FileType::Symlink {
            return Err(NfsStat::Attrnotsupp);
        }
        let directory = kind == FileType::Directory;
        let given =
            aces.iter().map(|ace| ParsedAce::of(names, directory, ace)).collect::<Res<Vec<ParsedAce>>>()?;
        let posix = |for_it: fn(&ParsedAce) -> bool| {
            posix(&given.iter().filter(|ace| for_it(ace)).collect::<Vec<_>>(), directory)
        };
        let inherited = given.iter().any(|ace| ace.for_children);
        Ok(Self {
            access: posix(|ace| ace.for_itself)?,
            default: inherited.then(|| posix(|ace| ace.for_children)).transpose()?,
        })
    }

    /// Stores the ACL. Error: NFS4ERR_NOSPC if it is too large.
    pub fn set(&self, vfs: &Vfs, cred: &Cred, inode: &InodeRef) -> Res<()> {
        let stored = |error: Error| match error {
            // NFS4ERR_XATTR2BIG exists in NFSv4.2 only.
            Error::Name(NameError::AttributeTooLarge) => NfsStat::Nospc,
            error => status(&error),
        };
        let set = |name, value: &Acl| vfs.set_xattr(cred, inode, name, &value.encode(), XattrMode::Any);
        set(acl::ACCESS, &self.access).map_err(stored)?;
        if inode.kind != FileType::Directory {
            return Ok(());
        }
        match &self.default {
            Some(default) => set(acl::DEFAULT, default).map_err(stored),
            None => match vfs.remove_xattr(cred, inode, acl::DEFAULT) {
                Ok(()) | Err(Error::Name(NameError::NoAttribute)) => Ok(()),
                Err(error) => Err(status(&error)),
            },
        }
    }
}

impl ParsedAce {
    fn of(names: &dyn IdMap, directory: bool, ace: &Ace) -> Res<Self> {
        // [RFC7530 6.2.1.1] [RFC8881 6.2.1.1]
        if (ace.kind != ALLOW && ace.kind != DENY) || ace.flags & !KNOWN_FLAGS != 0 {
            return Err(NfsStat::Attrnotsupp);
        }
        let group = ace.flags & IDENTIFIER_GROUP != 0;
        let who_id = match &ace.who[..] {
            b"OWNER@" => (USER_OBJ, 0),
            b"GROUP@" => (GROUP_OBJ, 0),
            b"EVERYONE@" => (OTHER, 0),
            who if group => (GROUP, names.gid(who).ok_or(NfsStat::Badowner)?),
            who => (USER, names.uid(who).ok_or(NfsStat::Badowner)?),
        };
        let for_children = ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT) != 0;
        if for_children && !directory {
            // [RFC8881 6.2.1.4.1]
            return Err(NfsStat::Attrnotsupp);
        }
        let for_itself = ace.flags & INHERIT_ONLY == 0;
        Ok(Self { allow: ace.kind == ALLOW, mask: ace.mask, who_id, for_itself, for_children })
    }
}

/// The permissions of one class: for each, the first entry that mentions it decides.
fn allowed(given: &[&ParsedAce], who_id: Who) -> u32 {
    let (mut allow, mut deny) = (0, 0);
    for ace in given {
        let named = ace.who_id == who_id || ace.who_id.0 == OTHER;
        // Members of this class may also be in that group. Members of the class of others are in none.
        let perhaps = matches!(ace.who_id.0, GROUP | GROUP_OBJ) && who_id.0 != OTHER;
        if named && ace.allow {
            allow |= ace.mask & !deny;
        } else if !ace.allow && (named || perhaps) {
            deny |= ace.mask & !allow;
        }
    }
    allow
}

fn perm(allowed: u32, directory: bool) -> u16 {
    let write = WRITE_DATA | APPEND_DATA | if directory { DELETE_CHILD } else { 0 };
    let bit = |needs: u32, bit: u16| if allowed & needs == needs { bit } else { 0 };
    bit(READ_DATA, 4) | bit(write, 2) | bit(EXECUTE, 1)
}

fn posix(given: &[&ParsedAce], directory: bool) -> Res<Acl> {
    let named: BTreeSet<Who> =
        given.iter().map(|ace| ace.who_id).filter(|who_id| matches!(who_id.0, USER | GROUP)).collect();
    let everyone = [(USER_OBJ, 0), (GROUP_OBJ, 0), (OTHER, 0)];
    let who_ids: BTreeSet<Who> = named.iter().copied().chain(everyone).collect();
    let entry = |&(tag, id): &Who| Entry { tag, perm: perm(allowed(given, (tag, id)), directory), id };
    let mut entries: Vec<Entry> = who_ids.iter().map(entry).collect();
    if !named.is_empty() {
        let masked = entries.iter().filter(|entry| matches!(entry.tag, USER | GROUP | GROUP_OBJ));
        let perm = masked.fold(0, |all, entry| all | entry.perm);
        let at = entries.partition_point(|entry| entry.tag < MASK);
        entries.insert(at, Entry { tag: MASK, perm, id: 0 });
    }
    Acl::new(entries).map_err(|error| status(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compound::NumericIds;

    fn ace(kind: u32, flags: u32, mask: u32, who: &str) -> Ace {
        Ace { kind, flags, mask, who: who.as_bytes().to_vec() }
    }

    fn of(kind: FileType, aces: &[Ace]) -> Res<NewAcl> {
        NewAcl::of(&NumericIds, kind, aces)
    }

    fn entries(acl: &Acl) -> Vec<(u16, u32, u16)> {
        acl.entries().iter().map(|entry| (entry.tag, entry.id, entry.perm)).collect()
    }

    #[test]
    fn first_entry_that_mentions_a_permission_decides() {
        let write = WRITE_DATA | APPEND_DATA;
        let aces = [
            ace(ALLOW, 0, READ_DATA, "7"),
            ace(DENY, IDENTIFIER_GROUP, write | READ_DATA, "50"),
            ace(ALLOW, 0, READ_DATA | write, "OWNER@"),
            ace(ALLOW, IDENTIFIER_GROUP, READ_DATA | EXECUTE, "50"),
            ace(ALLOW, 0, READ_DATA | write, "EVERYONE@"),
            ace(DENY, 0, READ_DATA, "EVERYONE@"),
        ];
        let got = of(FileType::Regular, &aces).unwrap();
        // The owner and user 7 may be in group 50.
        let expected =
            [(USER_OBJ, 0, 0), (USER, 7, 4), (GROUP_OBJ, 0, 0), (GROUP, 50, 1), (MASK, 0, 5), (OTHER, 0, 6)];
        assert_eq!(entries(&got.access), expected);
        assert_eq!(got.default, None);
    }

    #[test]
    fn write_permission_requires_all_its_bits() {
        let write = |kind, mask| entries(&of(kind, &[ace(ALLOW, 0, mask, "EVERYONE@")]).unwrap().access)[2].2;
        assert_eq!(write(FileType::Regular, WRITE_DATA), 0);
        assert_eq!(write(FileType::Regular, WRITE_DATA | APPEND_DATA), 2);
        assert_eq!(write(FileType::Directory, WRITE_DATA | APPEND_DATA), 0);
        assert_eq!(write(FileType::Directory, WRITE_DATA | APPEND_DATA | DELETE_CHILD), 2);
    }

    /// [RFC8881 6.2.1.4.1]
    #[test]
    fn only_directories_have_inherited_entries() {
        for flag in [FILE_INHERIT, DIRECTORY_INHERIT] {
            let aces = [ace(ALLOW, flag, READ_DATA, "OWNER@")];
            assert_eq!(of(FileType::Regular, &aces).err(), Some(NfsStat::Attrnotsupp));
            assert!(of(FileType::Directory, &aces).is_ok());
        }
    }

    #[test]
    fn inherited_entries_become_the_default_acl() {
        let inherit = FILE_INHERIT | DIRECTORY_INHERIT;
        let aces = [
            ace(ALLOW, 0, READ_DATA, "OWNER@"),
            ace(ALLOW, inherit, EXECUTE, "OWNER@"),
            ace(ALLOW, inherit | INHERIT_ONLY, READ_DATA, "EVERYONE@"),
        ];
        let got = of(FileType::Directory, &aces).unwrap();
        assert_eq!(entries(&got.access), [(USER_OBJ, 0, 5), (GROUP_OBJ, 0, 0), (OTHER, 0, 0)]);
        let default = got.default.unwrap();
        assert_eq!(entries(&default), [(USER_OBJ, 0, 5), (GROUP_OBJ, 0, 4), (OTHER, 0, 4)]);
        assert_eq!(of(FileType::Regular, &aces), Err(NfsStat::Attrnotsupp));
    }

    /// [RFC7530 6.2.1.1] [RFC8881 6.2.1.1]
    #[test]
    fn unsupported_entries_are_refused() {
        let refused = |ace: Ace| of(FileType::Directory, &[ace]).unwrap_err();
        assert_eq!(refused(ace(2, 0, READ_DATA, "OWNER@")), NfsStat::Attrnotsupp, "audit");
        assert_eq!(refused(ace(3, 0, READ_DATA, "OWNER@")), NfsStat::Attrnotsupp, "alarm");
        assert_eq!(refused(ace(ALLOW, 0x4, READ_DATA, "OWNER@")), NfsStat::Attrnotsupp, "no propagation");
        assert_eq!(refused(ace(ALLOW, 0, READ_DATA, "INTERACTIVE@")), NfsStat::Badowner);
        let many = vec![ace(ALLOW, 0, READ_DATA, "OWNER@"); ENTRIES_MAX + 1];
        assert_eq!(of(FileType::Directory, &many), Err(NfsStat::Attrnotsupp));
    }
}
