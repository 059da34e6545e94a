//! The kernel's table of mounts (proc_pid_mountinfo(5)).

use crate::mount::device_of;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The whole line. It differs from that of a later mount with the same number on the same directory.
    pub line: String,
    /// The directory.
    pub dir: PathBuf,
}

/// Returns where the filesystem with this device number is mounted, as this process sees it.
pub fn mounts_of(device: (u32, u32)) -> Vec<MountEntry> {
    let number = format!("{}:{}", device.0, device.1);
    table(Some(&number))
}

/// Returns all mounts that this process sees.
pub fn all_mounts() -> Vec<MountEntry> {
    table(None)
}

fn table(number: Option<&str>) -> Vec<MountEntry> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(|line| entry(line, number)).collect()
}

/// Parses a line, if it is of this device number or none is given.
fn entry(line: &[u8], number: Option<&str>) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let of = fields.nth(2)?;
    if number.is_some_and(|number| number.as_bytes() != of) {
        return None;
    }
    let dir = unescaped(fields.nth(1)?);
    Some(MountEntry { line: String::from_utf8_lossy(line).into_owned(), dir: OsString::from_vec(dir).into() })
}

/// Decodes blanks, line ends and backslashes, which are three octal digits in the table.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let digit =
            |at: usize| rest.get(at).filter(|byte| (b'0'..=b'7').contains(byte)).map(|byte| byte - b'0');
        text = match (first, digit(0), digit(1), digit(2)) {
            (b'\\', Some(a @ 0..=3), Some(b), Some(c)) => {
                out.push(a << 6 | b << 3 | c);
                &rest[3..]
            }
            _ => {
                out.push(*first);
                rest
            }
        };
    }
    out
}

/// Returns the directory of a mount: `dir`, or the directory that it was moved to.
pub(crate) fn find(hint: &Path, device: (u32, u32)) -> Option<PathBuf> {
    let shows = |dir: &Path| device_of(dir) == Some(device);
    if shows(hint) {
        return Some(hint.into());
    }
    // Another mount may cover it. Then the mount at that directory is not ours to unmount.
    mounts_of(device).into_iter().map(|entry| entry.dir).find(|dir| shows(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = br"36 35 0:47 / /mnt/a\040b\134c rw,relatime shared:1 - fuse.ivers x rw";
        assert_eq!(entry(line, Some("0:47")).unwrap().dir, Path::new(r"/mnt/a b\c"));
        assert_eq!(entry(line, Some("0:4")), None);
        assert_eq!(entry(b"36 35", Some("35")), None);
        assert_eq!(unescaped(br"\9\04\777"), br"\9\04\777");
    }
}
