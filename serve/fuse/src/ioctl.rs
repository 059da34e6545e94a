//! The ioctls: inode flags, project ids, the change attribute, and ioctls of the format.

use crate::change_attr::{self, IVERS_IOC_CHANGE};
use crate::connection::Connection;
use crate::errno::errno;
use fuser::{Errno, INodeNo, ReplyIoctl, Request};
use ivers_vfs::{Cred, InodeFlags, SetAttr};
use std::sync::Arc;

// `<linux/fs.h>`. The flags are a C int although the number encodes long; the 32-bit numbers encode int.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC32_GETVERSION: u32 = 0x8004_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// `struct fsxattr`: xflags, extsize, nextents, projid, cowextsize, 8 bytes of padding.
const FSXATTR_BYTES: usize = 28;

/// Bits of `fsx_xflags`, with the inode flags that they mean.
const XFLAGS: [(u32, InodeFlags); 6] = [
    (0x0008, InodeFlags::IMMUTABLE),
    (0x0010, InodeFlags::APPEND),
    (0x0020, InodeFlags::SYNC),
    (0x0040, InodeFlags::NOATIME),
    (0x0080, InodeFlags::NODUMP),
    (0x0200, InodeFlags::PROJINHERIT),
];

/// An ioctl of the format.
pub(crate) struct Argument {
    pub(crate) number: u32,
    pub(crate) input: Vec<u8>,
    /// The largest output in bytes that the caller takes.
    pub(crate) output_bytes: u32,
}

pub(crate) fn serve(
    connection: &Arc<Connection>,
    request: &Request,
    ino: INodeNo,
    command: u32,
    input: &[u8],
    output_bytes: u32,
    reply: ReplyIoctl,
) {
    if command == IVERS_IOC_CHANGE {
        connection.heard(request);
        let node = match connection.node(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let vfs = connection.vfs.clone();
        return connection.query(node.clone(), move |change| {
            reply.ioctl(0, &change_attr::ioctl_reply(&vfs, &node.inode, change));
        });
    }
    if connection.vfs.has_ioctl(command) {
        return match connection.node(ino) {
            Ok(node) => {
                connection.changes(request, None, &[&node]);
                let argument = Argument { number: command, input: input.to_vec(), output_bytes };
                connection.format_ioctl(connection.cred(request), node, argument, reply)
            }
            Err(error) => reply.error(error),
        };
    }
    connection.heard(request);
    match answer(connection, request, ino, command, input) {
        Ok(mut output) => {
            // Some numbers encode long where the value is an int: the bytes after it are the caller's.
            output.truncate(output_bytes as usize);
            reply.ioctl(0, &output);
        }
        Err(error) => reply.error(error),
    }
}

fn answer(
    connection: &Connection,
    request: &Request,
    ino: INodeNo,
    command: u32,
    input: &[u8],
) -> Result<Vec<u8>, Errno> {
    let node = connection.node(ino)?;
    let vfs = &connection.vfs;
    let attr = vfs.stat(&node.inode);
    let set = |set: SetAttr| {
        // The kernel checks only the ioctls that it knows: not the 32-bit numbers, and none before 5.13.
        let cred = Cred { access_checked: false, ..connection.cred(request) };
        vfs.set_attr(&cred, &node.inode, &set).map_err(errno)?;
        Ok(Vec::new())
    };
    match command {
        FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => Ok(attr.flags.bits().to_ne_bytes().into()),
        FS_IOC_GETVERSION | FS_IOC32_GETVERSION => Ok(node.inode.generation.to_ne_bytes().into()),
        FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => {
            let flags = InodeFlags::from_bits(word(input, 0)?).ok_or(Errno::EOPNOTSUPP)?;
            set(SetAttr { flags: Some(flags), ..SetAttr::default() })
        }
        FS_IOC_FSGETXATTR => {
            let xflags = XFLAGS
                .iter()
                .filter(|(_, flag)| attr.flags.contains(*flag))
                .fold(0, |all, (bit, _)| all | bit);
            let mut out = vec![0; FSXATTR_BYTES];
            out[0..4].copy_from_slice(&xflags.to_ne_bytes());
            out[12..16].copy_from_slice(&attr.project.to_ne_bytes());
            Ok(out)
        }
        FS_IOC_FSSETXATTR => {
            let xflags = word(input, 0)?;
            if XFLAGS.iter().fold(xflags, |rest, (bit, _)| rest & !bit) != 0 || word(input, 4)? != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            let mut flags = attr.flags;
            for (bit, flag) in XFLAGS {
                flags.set(flag, xflags & bit != 0);
            }
            let project = word(input, 12)?;
            set(SetAttr {
                flags: (flags != attr.flags).then_some(flags),
                project: (project != attr.project).then_some(project),
                ..SetAttr::default()
            })
        }
        // Any other ioctl is not for this file.
        _ => Err(Errno::ENOTTY),
    }
}

fn word(input: &[u8], at: usize) -> Result<u32, Errno> {
    let bytes = input.get(at..at + 4).ok_or(Errno::EINVAL)?;
    bytes.try_into().map(u32::from_ne_bytes).map_err(|_| Errno::EINVAL)
}
