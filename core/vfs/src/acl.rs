//! POSIX access control lists: the `system.posix_acl_*` attributes (version 2: a 32-bit version, then tag,
//! permissions and id of each entry, all little-endian), and their meaning (POSIX.1e draft 17, acl(5)).

use crate::error::{NameError, Result};
use crate::requests::Cred;

/// The attribute with a file's ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the ACL that a directory's children inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// Tag of the owner's entry.
pub const USER_OBJ: u16 = 0x01;
/// Tag of a named user's entry.
pub const USER: u16 = 0x02;
/// Tag of the group's entry.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of a named group's entry.
pub const GROUP: u16 = 0x08;
/// Tag of the entry that limits all others except those of the owner and of others.
pub const MASK: u16 = 0x10;
/// Tag of the entry for everyone else.
pub const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// Permissions of one class of callers, or of one named user or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// One of the tags above.
    pub tag: u16,
    /// Permissions: R4 W2 X1.
    pub perm: u16,
    /// The named user or group; unused with other tags.
    pub id: u32,
}

/// A validated ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Parses and validates a value: entries in order of tag and id, each named id once, exactly one entry of
    /// owner, group and others, and a mask if anyone is named. An empty list is `None`.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        let (head, body) = value.split_at_checked(4).ok_or(NameError::Invalid)?;
        if head != VERSION.to_le_bytes() {
            return Err(NameError::NotSupported.into());
        }
        if body.len() % 8 != 0 {
            return Err(NameError::Invalid.into());
        }
        let entries: Vec<Entry> = body
            .chunks_exact(8)
            .map(|raw| Entry {
                tag: u16::from_le_bytes([raw[0], raw[1]]),
                perm: u16::from_le_bytes([raw[2], raw[3]]),
                id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            })
            .collect();
        if entries.is_empty() { Ok(None) } else { Self::new(entries).map(Some) }
    }

    /// Validates entries as [`Acl::parse`] does. An empty list is `None`.
    pub fn new(entries: Vec<Entry>) -> Result<Self> {
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = |entry: &Entry| {
            matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
                && entry.perm <= 7
                && (!matches!(entry.tag, USER | GROUP) || entry.id != NO_ID)
        };
        let ordered = entries.windows(2).all(|pair| {
            let key =
                |entry: &Entry| (entry.tag, if matches!(entry.tag, USER | GROUP) { entry.id } else { 0 });
            key(&pair[0]) < key(&pair[1])
        });
        let masks = count(MASK);
        let complete = count(USER_OBJ) == 1 && count(GROUP_OBJ) == 1 && count(OTHER) == 1 && masks <= 1;
        if !entries.iter().all(known) || !ordered || !complete || (named > 0 && masks == 0) {
            return Err(NameError::Invalid.into());
        }
        Ok(Self(entries))
    }

    /// The ACL that equals the permission bits of a mode.
    pub fn of_mode(mode: u32) -> Self {
        let entry = |tag, shift: u32| Entry { tag, perm: (mode >> shift & 7) as u16, id: NO_ID };
        Self(vec![entry(USER_OBJ, 6), entry(GROUP_OBJ, 3), entry(OTHER, 0)])
    }

    /// The entries, in order of tag and id.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Encodes the attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            let id = if matches!(entry.tag, USER | GROUP) { entry.id } else { NO_ID };
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn perm_of(&self, tag: u16) -> Option<u32> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.perm))
    }

    /// Whether permission bits express all of it.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The nine permission bits of a file with this ACL. The group bits are those of the mask, if there is
    /// one.
    pub fn mode(&self) -> u32 {
        let group = self.perm_of(MASK).or(self.perm_of(GROUP_OBJ)).unwrap_or(0);
        self.perm_of(USER_OBJ).unwrap_or(0) << 6 | group << 3 | self.perm_of(OTHER).unwrap_or(0)
    }

    /// Applies a chmod.
    pub fn set_mode(&mut self, mode: u32) {
        let has_mask = self.perm_of(MASK).is_some();
        for entry in &mut self.0 {
            match entry.tag {
                USER_OBJ => entry.perm = (mode >> 6 & 7) as u16,
                GROUP_OBJ if !has_mask => entry.perm = (mode >> 3 & 7) as u16,
                MASK => entry.perm = (mode >> 3 & 7) as u16,
                OTHER => entry.perm = (mode & 7) as u16,
                _ => {}
            }
        }
    }

    /// The ACL of a new child under this default ACL, and its nine permission bits: both allow what the
    /// default and the requested mode allow.
    pub fn inherit(&self, mode: u32) -> (Self, u32) {
        let mut acl = self.clone();
        let allowed = acl.mode() & mode & 0o777;
        acl.set_mode(allowed);
        (acl, allowed)
    }

    /// Whether a caller may do all of `want` (R4 W2 X1) to an object with this owner and group.
    pub fn permits(&self, cred: &Cred, uid: u32, gid: u32, want: u32) -> bool {
        let mask = self.perm_of(MASK).unwrap_or(7);
        let grants = |perm: u32| perm & want == want;
        if cred.uid == uid {
            return grants(self.perm_of(USER_OBJ).unwrap_or(0));
        }
        if let Some(entry) = self.0.iter().find(|entry| entry.tag == USER && entry.id == cred.uid) {
            return grants(u32::from(entry.perm) & mask);
        }
        let mut in_any = false;
        for entry in &self.0 {
            let mine = match entry.tag {
                GROUP_OBJ => cred.in_group(gid),
                GROUP => cred.in_group(entry.id),
                _ => false,
            };
            if mine {
                in_any = true;
                if grants(u32::from(entry.perm) & mask) {
                    return true;
                }
            }
        }
        !in_any && grants(self.perm_of(OTHER).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect()).encode()
    }

    fn sample() -> Acl {
        let raw = value(&[
            (USER_OBJ, 7, 0),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, 0),
            (GROUP, 7, 50),
            (MASK, 5, 0),
            (OTHER, 0, 0),
        ]);
        Acl::parse(&raw).unwrap().unwrap()
    }

    #[test]
    fn encoded_lists_parse() {
        assert_eq!(Acl::parse(&sample().encode()).unwrap(), Some(sample()));
        assert_eq!(Acl::parse(&VERSION.to_le_bytes()).unwrap(), None);
    }

    #[test]
    fn invalid_lists_are_refused() {
        let bad = [
            vec![],
            vec![2, 0, 0],
            vec![1, 0, 0, 0],
            vec![2, 0, 0, 0, 1],
            value(&[(USER_OBJ, 7, 0)]),
            value(&[(USER_OBJ, 7, 0), (USER, 6, 5), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]),
            value(&[(USER_OBJ, 8, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]),
            value(&[(GROUP_OBJ, 7, 0), (USER_OBJ, 5, 0), (OTHER, 0, 0)]),
            value(&[
                (USER_OBJ, 7, 0),
                (USER, 6, 5),
                (USER, 4, 5),
                (GROUP_OBJ, 5, 0),
                (MASK, 7, 0),
                (OTHER, 0, 0),
            ]),
            value(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0), (0x40, 0, 0)]),
        ];
        for raw in bad {
            assert!(Acl::parse(&raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn the_mask_bounds_named_users_and_groups() {
        let acl = sample();
        assert!(acl.permits(&Cred::user(1000, 9), 1, 1, 4));
        assert!(!acl.permits(&Cred::user(1000, 9), 1, 1, 2), "6 & mask 5 is 4");
        assert!(acl.permits(&Cred::user(7, 50), 1, 1, 5));
        assert!(!acl.permits(&Cred::user(7, 50), 1, 1, 2));
        assert!(acl.permits(&Cred::user(1, 9), 1, 1, 7), "the owner is not masked");
        assert!(!acl.permits(&Cred::user(7, 9), 1, 1, 1));
    }

    #[test]
    fn mode_and_inheritance_keep_in_step() {
        let mut acl = sample();
        assert_eq!(acl.mode(), 0o750);
        acl.set_mode(0o640);
        assert_eq!(acl.mode(), 0o640);
        let (child, perm) = sample().inherit(0o666);
        assert_eq!((perm, child.mode()), (0o640, 0o640));
    }
}
