//! NFSv4 ACLs that clients set, as POSIX ACLs (RFC 7530 section 6.2.1).
//!
//! A POSIX ACL cannot say everything that an NFSv4 ACL can. What is stored never allows a user or a group more than the given list does: a class that
//! might have been refused something by an earlier entry, because its members may be in another group as well, is refused it. What [`super::acl`] has
//! told comes back as it was.

use std::collections::BTreeSet;

use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::Ace;
use ivers_vfs::acl::{self, Acl, Entry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs, XattrMode};

use super::acl::{
    ALLOW, APPEND_DATA, DELETE_CHILD, DENY, DIRECTORY_INHERIT, EXECUTE, FILE_INHERIT, IDENTIFIER_GROUP,
    INHERIT_ONLY, READ_DATA, WRITE_DATA,
};
use crate::compound::Names;
use crate::ops::status::status;

/// More entries than any of our filesystems could store, and few enough to compare each with each.
const ENTRIES_MAX: usize = 1024;
const KNOWN_FLAGS: u32 = FILE_INHERIT | DIRECTORY_INHERIT | INHERIT_ONLY | IDENTIFIER_GROUP;

/// For whom an entry is: a tag, and the number of who is named.
type Whom = (u16, u32);

struct Given {
    allow: bool,
    mask: u32,
    whom: Whom,
    /// For the object itself; for its children.
    for_itself: bool,
    for_children: bool,
}

/// What is to be set: the object's own ACL and, of a directory, the one its children get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAcl {
    access: Acl,
    default: Option<Acl>,
}

impl NewAcl {
    /// What the entries say, as far as POSIX can say it.
    pub fn of(names: &dyn Names, kind: FileType, aces: &[Ace]) -> Res<Self> {
        if aces.len() > ENTRIES_MAX || kind == FileType::Symlink {
            return Err(NfsStat::Attrnotsupp);
        }
        let directory = kind == FileType::Directory;
        let given = aces.iter().map(|ace| Given::of(names, directory, ace)).collect::<Res<Vec<Given>>>()?;
        let posix = |for_it: fn(&Given) -> bool| {
            posix(&given.iter().filter(|ace| for_it(ace)).collect::<Vec<_>>(), directory)
        };
        let inherited = given.iter().any(|ace| ace.for_children);
        Ok(Self {
            access: posix(|ace| ace.for_itself)?,
            default: inherited.then(|| posix(|ace| ace.for_children)).transpose()?,
        })
    }

    /// Store it.
    pub fn set(&self, vfs: &Vfs, cred: &Cred, inode: &InodeRef) -> Res<()> {
        let stored = |error: Error| match error {
            // It is too long, and no version but the last has the other word for that.
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

impl Given {
    fn of(names: &dyn Names, directory: bool, ace: &Ace) -> Res<Self> {
        // [RFC7530 6.2.1.1] [RFC8881 6.2.1.1]
        if (ace.kind != ALLOW && ace.kind != DENY) || ace.flags & !KNOWN_FLAGS != 0 {
            return Err(NfsStat::Attrnotsupp);
        }
        let group = ace.flags & IDENTIFIER_GROUP != 0;
        let whom = match &ace.who[..] {
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
        Ok(Self { allow: ace.kind == ALLOW, mask: ace.mask, whom, for_itself, for_children })
    }
}

/// What one class may do: the first entry that speaks of a permission decides.
fn allowed(given: &[&Given], whom: Whom) -> u32 {
    let (mut allow, mut deny) = (0, 0);
    for ace in given {
        let named = ace.whom == whom || ace.whom.0 == OTHER;
        // Who is of this class may be of that group, too. Nobody of the others is.
        let perhaps = matches!(ace.whom.0, GROUP | GROUP_OBJ) && whom.0 != OTHER;
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

fn posix(given: &[&Given], directory: bool) -> Res<Acl> {
    let named: BTreeSet<Whom> =
        given.iter().map(|ace| ace.whom).filter(|whom| matches!(whom.0, USER | GROUP)).collect();
    let everyone = [(USER_OBJ, 0), (GROUP_OBJ, 0), (OTHER, 0)];
    let whoms: BTreeSet<Whom> = named.iter().copied().chain(everyone).collect();
    let entry = |&(tag, id): &Whom| Entry { tag, perm: perm(allowed(given, (tag, id)), directory), id };
    let mut entries: Vec<Entry> = whoms.iter().map(entry).collect();
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
    use crate::compound::Numeric;

    fn ace(kind: u32, flags: u32, mask: u32, who: &str) -> Ace {
        Ace { kind, flags, mask, who: who.as_bytes().to_vec() }
    }

    fn of(kind: FileType, aces: &[Ace]) -> Res<NewAcl> {
        NewAcl::of(&Numeric, kind, aces)
    }

    fn entries(acl: &Acl) -> Vec<(u16, u32, u16)> {
        acl.entries().iter().map(|entry| (entry.tag, entry.id, entry.perm)).collect()
    }

    #[test]
    fn the_first_entry_that_speaks_of_a_permission_decides() {
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
        // The owner and user 7 may be of group 50.
        let expected =
            [(USER_OBJ, 0, 0), (USER, 7, 4), (GROUP_OBJ, 0, 0), (GROUP, 50, 1), (MASK, 0, 5), (OTHER, 0, 6)];
        assert_eq!(entries(&got.access), expected);
        assert_eq!(got.default, None);
    }

    #[test]
    fn writing_needs_all_that_it_means() {
        let write = |kind, mask| entries(&of(kind, &[ace(ALLOW, 0, mask, "EVERYONE@")]).unwrap().access)[2].2;
        assert_eq!(write(FileType::Regular, WRITE_DATA), 0);
        assert_eq!(write(FileType::Regular, WRITE_DATA | APPEND_DATA), 2);
        assert_eq!(write(FileType::Directory, WRITE_DATA | APPEND_DATA), 0);
        assert_eq!(write(FileType::Directory, WRITE_DATA | APPEND_DATA | DELETE_CHILD), 2);
    }

    #[test]
    fn what_children_inherit_is_an_acl_of_its_own() {
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
    fn what_cannot_be_kept_is_refused() {
        let refused = |ace: Ace| of(FileType::Directory, &[ace]).unwrap_err();
        assert_eq!(refused(ace(2, 0, READ_DATA, "OWNER@")), NfsStat::Attrnotsupp, "audit");
        assert_eq!(refused(ace(3, 0, READ_DATA, "OWNER@")), NfsStat::Attrnotsupp, "alarm");
        assert_eq!(refused(ace(ALLOW, 0x4, READ_DATA, "OWNER@")), NfsStat::Attrnotsupp, "no propagation");
        assert_eq!(refused(ace(ALLOW, 0, READ_DATA, "INTERACTIVE@")), NfsStat::Badowner);
        let many = vec![ace(ALLOW, 0, READ_DATA, "OWNER@"); ENTRIES_MAX + 1];
        assert_eq!(of(FileType::Directory, &many), Err(NfsStat::Attrnotsupp));
    }
}
