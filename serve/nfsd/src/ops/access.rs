//! ACCESS.

use ivers_nfs4::ops::v40::{AccessOk, access as bit};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_vfs::access::{EXECUTE, READ, WRITE};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs};

use super::status::status;
use crate::compound::{Context, Place};

const XATTRS: u32 = bit::XAREAD | bit::XAWRITE | bit::XALIST;
const CHANGES: u32 = bit::MODIFY | bit::EXTEND | bit::DELETE | bit::XAWRITE;

/// Whether the VFS lets him. That he may not is an answer, not an error.
fn may(vfs: &Vfs, cred: &Cred, inode: &InodeRef, mask: u32) -> Res<bool> {
    match vfs.access(cred, inode, mask) {
        Ok(()) => Ok(true),
        Err(Error::Name(NameError::Access | NameError::NotPermitted | NameError::ReadOnly)) => Ok(false),
        Err(error) => Err(status(&error)),
    }
}

/// ACCESS.
pub fn access(context: &Context, want: u32) -> Res<AccessOk> {
    let in_version = if context.minor >= 2 { 0x3f | XATTRS } else { 0x3f };
    if want & !in_version != 0 {
        // [RFC8881 18.1.3]
        return Err(NfsStat::Inval);
    }
    let object = match context.current()? {
        Place::Pseudo(_) => {
            let supported = want & (bit::READ | bit::LOOKUP | bit::MODIFY | bit::EXTEND | bit::DELETE);
            return Ok(AccessOk { supported, access: supported & (bit::READ | bit::LOOKUP) });
        }
        Place::Object(object) => object,
    };
    let cred = object.reader()?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let xattrs = vfs.info().xattr_value_max > 0;
    // Each bit that means something for this kind of file, and what it needs.
    let needs: &[(u32, u32)] = match inode.kind {
        FileType::Directory => &[
            (bit::READ, READ),
            (bit::LOOKUP, EXECUTE),
            (bit::MODIFY, WRITE | EXECUTE),
            (bit::EXTEND, WRITE | EXECUTE),
            (bit::DELETE, WRITE | EXECUTE),
            (bit::XAREAD, READ),
            (bit::XAWRITE, WRITE),
            (bit::XALIST, 0),
        ],
        FileType::Regular => &[
            (bit::READ, READ),
            (bit::MODIFY, WRITE),
            (bit::EXTEND, WRITE),
            (bit::EXECUTE, EXECUTE),
            (bit::XAREAD, READ),
            (bit::XAWRITE, WRITE),
            (bit::XALIST, 0),
        ],
        _ => &[(bit::READ, READ), (bit::MODIFY, WRITE), (bit::EXTEND, WRITE)],
    };
    let mut ok = AccessOk { supported: 0, access: 0 };
    // One question of the VFS for each mask, whatever the number of bits.
    let mut known: [Option<bool>; 8] = [None; 8];
    for &(bit, mask) in needs {
        if want & bit == 0 || (XATTRS & bit != 0 && !xattrs) {
            continue;
        }
        // [RFC8881 18.1.3]
        ok.supported |= bit;
        if CHANGES & bit != 0 && object.is_read_only() {
            continue;
        }
        let slot = &mut known[mask as usize & 7];
        let granted = match *slot {
            Some(granted) => granted,
            None => *slot.insert(may(vfs, cred, inode, mask)?),
        };
        if granted {
            ok.access |= bit;
        }
    }
    Ok(ok)
}
