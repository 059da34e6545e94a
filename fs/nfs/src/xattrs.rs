//! Extended attributes (RFC 8276): `user.*` only. On the wire their names lack this prefix.

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v42::{ListXattrsArgs, SetXattrArgs, SetXattrOption};
use ivers_vfs::*;

use crate::attributes;
use crate::driver::Nfs;
use crate::nodes::Node;
use crate::reply::{Results, take};

const PREFIX: &[u8] = b"user.";
/// Longest value that is sent or taken; Linux has no longer ones.
const VALUE_MAX: usize = 64 << 10;
/// Longest name with its prefix.
const NAME_MAX: usize = 255;
/// Bytes of a reply with names, and the most names of a file in bytes.
const LIST_BYTES: (u32, usize) = (32 << 10, 1 << 20);

/// Returns whether a file has attributes of users: as on Linux, no links and devices.
fn has_attributes(inode: &Inode) -> bool {
    matches!(inode.kind, FileType::Regular | FileType::Directory)
}

/// Returns the name on the wire.
fn on_wire(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(PREFIX).filter(|rest| !rest.is_empty())
}

impl Nfs {
    fn value(&self, caller: &Cred, node: &Node, wire: &[u8]) -> Result<Vec<u8>> {
        let (mut results, _) = self.on_file(caller, node, &[Op::GetXattr(wire.to_vec())])?;
        let value = take!(results, GetXattr)?;
        if value.len() > VALUE_MAX {
            return Err(Error::corrupt("the server sent an attribute that is too long", self.place(node)));
        }
        Ok(value)
    }

    /// Returns whether a change that is in doubt was executed. `false`: it may be sent again.
    fn xattr_was_set(
        &self,
        caller: &Cred,
        node: &Node,
        wire: &[u8],
        (value, mode): (Option<&[u8]>, XattrMode),
    ) -> Result<bool> {
        match (value, self.value(caller, node, wire)) {
            (Some(value), Ok(found)) => Ok(mode == XattrMode::Create && found == value),
            (None, Err(Error::Name(NameError::NoAttribute))) => Ok(true),
            (_, Ok(_) | Err(Error::Name(NameError::NoAttribute))) => Ok(false),
            (_, Err(error)) => Err(error),
        }
    }

    fn change_xattr(
        &self,
        caller: &Cred,
        node: &Node,
        wire: &[u8],
        (value, mode): (Option<&[u8]>, XattrMode),
    ) -> Result<()> {
        let option = match mode {
            XattrMode::Any => SetXattrOption::Either,
            XattrMode::Create => SetXattrOption::Create,
            XattrMode::Replace => SetXattrOption::Replace,
        };
        let change = match value {
            Some(value) => Op::SetXattr(SetXattrArgs { option, name: wire.to_vec(), value: value.to_vec() }),
            None => Op::RemoveXattr(wire.to_vec()),
        };
        let ops = [Op::PutFh(node.handle.clone()), change, Op::GetAttr(attributes::of_file())];
        let changing = self.changing(node);
        let (mut results, sent): (Results, u64) = loop {
            if let Some(outcome) = self.client.call_once(caller, &ops)? {
                break outcome.up_to(2, self.client.name())?;
            }
            if self.xattr_was_set(caller, node, wire, (value, mode))? {
                node.expire(self.client.requests() + 1);
                return Ok(());
            }
        };
        (0..2).for_each(|_| results.skip());
        changing.learn_or_expire(&mut results, sent)
    }
}

impl XattrOps for Nfs {
    fn value_max(&self) -> u32 {
        VALUE_MAX as u32
    }

    fn get_xattr(&self, caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let wire = on_wire(name).filter(|_| has_attributes(inode)).ok_or(NameError::NoAttribute)?;
        match self.value(caller, self.node(inode), wire) {
            // This filesystem of the server has none.
            Err(Error::Name(NameError::NotSupported)) => Err(NameError::NoAttribute.into()),
            other => other,
        }
    }

    fn list_xattr(&self, caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        if !has_attributes(inode) {
            return Ok(Vec::new());
        }
        let node = self.node(inode);
        let corrupt = |what: &str| Err(Error::corrupt(format!("the server listed {what}"), self.place(node)));
        let (mut names, mut bytes, mut cookie) = (Vec::new(), 0, 0);
        loop {
            let args = ListXattrsArgs { cookie, maxcount: LIST_BYTES.0 };
            let (mut results, _) = match self.on_file(caller, node, &[Op::ListXattrs(args)]) {
                Err(Error::Name(NameError::NotSupported)) => return Ok(names),
                other => other?,
            };
            let part = take!(results, ListXattrs)?;
            if part.names.0.is_empty() && !part.eof {
                return corrupt("no attribute, and did not end the list");
            }
            for name in part.names.0 {
                let full = [PREFIX, &name].concat();
                bytes += full.len();
                if name.is_empty() || name.contains(&0) || full.len() > NAME_MAX {
                    return corrupt("a name of an attribute that is none");
                }
                if bytes > LIST_BYTES.1 {
                    return corrupt("attributes without end");
                }
                names.push(full);
            }
            if part.eof {
                return Ok(names);
            }
            cookie = part.cookie;
        }
    }

    fn set_xattr(
        &self,
        caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let Some(wire) = on_wire(name) else {
            return Err(if value.is_some() { NameError::NotSupported } else { NameError::NoAttribute }.into());
        };
        self.change(self.change_xattr(caller, self.node(inode), wire, (value, mode)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_of_users_are_sent() {
        assert_eq!(on_wire(b"user.a"), Some(&b"a"[..]));
        assert!(on_wire(b"user.").is_none() && on_wire(b"security.capability").is_none());
    }
}
