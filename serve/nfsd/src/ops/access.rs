//! ACCESS.

use ivers_nfs4::ops::v40::{AccessOk, access as bit};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_vfs::FileType;
use ivers_vfs::access::{EXECUTE, READ, WRITE};

use crate::compound::status::OrStatus;
use crate::compound::{Context, CurrentFh};

const XATTRS: u32 = bit::XAREAD | bit::XAWRITE | bit::XALIST;
const CHANGES: u32 = bit::MODIFY | bit::EXTEND | bit::DELETE | bit::XAWRITE;

/// ACCESS.
pub fn access(context: &Context, want: u32) -> Res<AccessOk> {
    let in_version = if context.minor >= 2 { 0x3f | XATTRS } else { 0x3f };
    if want & !in_version != 0 {
        // [RFC8881 18.1.3]
        return Err(NfsStat::Inval);
    }
    let object = match context.current_fh()? {
        CurrentFh::Pseudo(_) => {
            let supported = want & (bit::READ | bit::LOOKUP | bit::MODIFY | bit::EXTEND | bit::DELETE);
            return Ok(AccessOk { supported, access: supported & (bit::READ | bit::LOOKUP) });
        }
        CurrentFh::Object(object) => object,
    };
    let cred = object.read_cred()?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let xattrs = vfs.xattr_value_max() > 0;
    // The bits that apply to this type of file, and the permissions that each requires.
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
    // One call to the VFS, so that all bits are consistent.
    let rights = vfs.rights(cred, inode).nfs()?;
    for &(bit, mask) in needs {
        if want & bit == 0 || (XATTRS & bit != 0 && !xattrs) {
            continue;
        }
        // [RFC8881 18.1.3]
        ok.supported |= bit;
        if CHANGES & bit != 0 && object.is_read_only() {
            continue;
        }
        if rights.allow(mask) {
            ok.access |= bit;
        }
    }
    Ok(ok)
}
