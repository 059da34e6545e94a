//! Attributes and their names.

use crate::layout::attribute::{ACL_NAMES, flags, is_acl_name};
use ivers_block::FileBlock;

/// Prefixes of names and their namespaces.
const PREFIXES: [(&[u8], u8); 3] = [(b"user.", 0), (b"trusted.", flags::ROOT), (b"security.", flags::SECURE)];
/// The names of access control lists that users see, in the order of `ACL_NAMES`.
const SHOWN_ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Whether a name that users see is that of an access control list.
pub(crate) fn is_shown_acl(name: &[u8]) -> bool {
    SHOWN_ACLS.contains(&name)
}

/// Where the value of an attribute is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Here(Vec<u8>),
    /// In blocks of the attribute fork.
    Remote {
        block: FileBlock,
        len: u32,
    },
}

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub flags: u8,
    pub name: Vec<u8>,
    pub value: Value,
}

impl Attribute {
    pub(crate) fn is(&self, namespace: u8, name: &[u8]) -> bool {
        self.flags & (flags::NAMESPACES | flags::INCOMPLETE) == namespace && self.name == name
    }

    /// The name that users see; `None` for parent pointers and for attributes that an interrupted change
    /// left.
    pub(super) fn full_name(&self) -> Option<Vec<u8>> {
        if self.flags & flags::INCOMPLETE != 0 {
            return None;
        }
        let namespace = self.flags & flags::NAMESPACES;
        if is_acl_name(namespace, &self.name) {
            let nth = ACL_NAMES.iter().position(|stored| self.name == *stored)?;
            return Some(SHOWN_ACLS[nth].to_vec());
        }
        let (prefix, _) = PREFIXES.iter().find(|(_, of)| *of == namespace)?;
        Some([*prefix, &self.name].concat())
    }
}

/// Splits a name into namespace and stored name.
pub(crate) fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    if let Some(nth) = SHOWN_ACLS.iter().position(|shown| *shown == name) {
        return Some((flags::ROOT, ACL_NAMES[nth]));
    }
    let stored = |(prefix, namespace): &(&'static [u8], u8)| Some((*namespace, name.strip_prefix(*prefix)?));
    PREFIXES.iter().find_map(stored).filter(|(_, rest)| !rest.is_empty())
}

/// A name must be usable as one.
pub(super) fn check_name(name: &[u8], namespace: u8) -> std::result::Result<(), String> {
    // The names of parent pointers are those of directory entries.
    if name.is_empty() || (namespace & flags::PARENT == 0 && name.contains(&0)) {
        return Err("an extended attribute has an invalid name".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(flags: u8, name: &[u8]) -> Attribute {
        Attribute { flags, name: name.to_vec(), value: Value::Here(Vec::new()) }
    }

    #[test]
    fn names_have_namespaces() {
        for (name, namespace, stored) in [
            (&b"user.a.b"[..], 0, &b"a.b"[..]),
            (b"trusted.x", flags::ROOT, b"x"),
            (b"security.selinux", flags::SECURE, b"selinux"),
            (b"system.posix_acl_default", flags::ROOT, b"SGI_ACL_DEFAULT"),
        ] {
            assert_eq!(split_name(name), Some((namespace, stored)));
            assert_eq!(attribute(namespace | flags::LOCAL, stored).full_name().as_deref(), Some(name));
        }
        assert!(split_name(b"system.other").is_none() && split_name(b"user.").is_none());
    }

    #[test]
    fn parent_pointers_and_interrupted_changes_are_hidden() {
        assert_eq!(attribute(flags::PARENT | flags::LOCAL, b"file").full_name(), None);
        assert_eq!(attribute(flags::INCOMPLETE, b"file").full_name(), None);
        assert!(
            !attribute(flags::INCOMPLETE, b"file").is(0, b"file") && attribute(1, b"file").is(0, b"file")
        );
        assert!(!attribute(flags::PARENT, b"file").is(0, b"file"));
    }
}
