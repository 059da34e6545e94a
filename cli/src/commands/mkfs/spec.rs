//! The file of `--spec`: a device table, as `genext2fs -D` and Buildroot read it. It sets owners and
//! permissions, and creates directories, device nodes and FIFOs.
//!
//! A line has the fields `path type mode uid gid major minor start increment count`, with `-` for one that is
//! not used; fields at the end may be missing. Type is f (file that exists), d, c, b or p. With a count, a
//! line makes nodes with a number after their name.

use anyhow::{Context, Result};
use ivers_vfs::FileType;

use crate::output::failure::usage;

/// Longest spec file in bytes.
pub const SPEC_MAX: u64 = 16 << 20;
/// Most nodes of one line.
const COUNT_MAX: u32 = 65_536;

/// What a line says of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path.
    pub path: Vec<u8>,
    /// The type. A regular file must exist.
    pub kind: FileType,
    /// Permission bits, unless they stay.
    pub perm: Option<u32>,
    /// Owner, unless it stays.
    pub uid: Option<u32>,
    /// Group, unless it stays.
    pub gid: Option<u32>,
    /// The numbers of a device node, in the kernel's 32-bit encoding.
    pub rdev: u32,
}

/// Parses a spec file.
pub fn parse(text: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let fields: Vec<_> = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
        if fields.first().is_none_or(|first| first.starts_with(b"#")) {
            continue;
        }
        entry(&fields, &mut entries).with_context(|| usage(format!("spec file, line {}", index + 1)))?;
    }
    Ok(entries)
}

fn entry(fields: &[&[u8]], entries: &mut Vec<Entry>) -> Result<()> {
    let field = |at: usize| fields.get(at).filter(|field| **field != b"-" && **field != b"-1");
    let number = |at: usize, radix: u32, what: &str| -> Result<Option<u32>> {
        let Some(field) = field(at) else { return Ok(None) };
        let text = std::str::from_utf8(field).unwrap_or_default();
        let number = u32::from_str_radix(text, radix);
        number.map(Some).map_err(|_| usage(format!("{what} {text:?} is no number")))
    };
    let kind = match field(1).copied() {
        Some(b"f") => FileType::Regular,
        Some(b"d") => FileType::Directory,
        Some(b"c") => FileType::CharDevice,
        Some(b"b") => FileType::BlockDevice,
        Some(b"p") => FileType::Fifo,
        _ => return Err(usage("the type must be f, d, c, b or p")),
    };
    if fields.len() > 10 {
        return Err(usage("more than ten fields"));
    }
    let perm = number(2, 8, "the mode")?;
    let (uid, gid) = (number(3, 10, "the user")?, number(4, 10, "the group")?);
    let (major, minor) =
        (number(5, 10, "the major number")?.unwrap_or(0), number(6, 10, "the minor number")?.unwrap_or(0));
    let start = number(7, 10, "the start")?.unwrap_or(0);
    let increment = number(8, 10, "the increment")?.unwrap_or(1);
    let count = number(9, 10, "the count")?.unwrap_or(0);
    if perm.is_some_and(|perm| perm > 0o7777) || count > COUNT_MAX {
        return Err(usage(format!("the mode is above 7777, or the count above {COUNT_MAX}")));
    }
    let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
    for nth in 0..count.max(1) {
        let minor = u64::from(minor) + u64::from(nth) * u64::from(increment);
        if is_device && (major > 0xFFF || minor > 0xF_FFFF) {
            return Err(usage(format!("the device {major}, {minor} does not fit 32 bits")));
        }
        let minor = minor as u32;
        let rdev = if is_device { minor & 0xFF | major << 8 | (minor & !0xFF) << 12 } else { 0 };
        let mut path = fields[0].to_vec();
        if count > 0 {
            path.extend_from_slice((u64::from(start) + u64::from(nth)).to_string().as_bytes());
        }
        entries.push(Entry { path, kind, perm, uid, gid, rdev });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_tables_parse() {
        let text = "# name type mode uid gid major minor start inc count\n\
                    /dev\td 755 0 0 - - - - -\n\n\
                    /dev/tty c 620 0 5 4 0 1 1 2\n\
                    /etc/shadow f 600 -1 - \n";
        let entries = parse(text.as_bytes()).unwrap();
        let paths: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(&entry.path)).collect();
        assert_eq!(paths, ["/dev", "/dev/tty1", "/dev/tty2", "/etc/shadow"]);
        assert_eq!((entries[1].rdev, entries[2].rdev), (0x400, 0x401));
        assert_eq!((entries[3].perm, entries[3].uid, entries[3].gid), (Some(0o600), None, None));
        for (bad, why) in [
            ("/a x 755", "line 1"),
            ("\n/a d 9 0 0", "line 2"),
            ("/a c 600 0 0 4096 0", "32 bits"),
            ("/a d 77777 0 0", "7777"),
            ("/a p 600 0 0 0 0 0 1 99999", "count"),
            ("/a", "type"),
            ("/a d 755 0 0 0 0 0 0 0 0", "ten"),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err();
            assert!(crate::output::failure::line(&error).contains(why), "{bad}: {error:#}");
        }
    }
}
