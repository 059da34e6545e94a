//! The kernel's table of mounts (proc_pid_mountinfo(5)).

use crate::mounting::device_of;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The whole line: a later mount of the same number on the same directory has another one.
    pub line: String,
    /// The directory.
    pub dir: PathBuf,
}

/// Where the filesystem with this device number is mounted, as this process sees it.
pub fn mounts_of(device: (u32, u32)) -> Vec<MountEntry> {
    let number = format!("{}:{}", device.0, device.1);
    table(Some(&number))
}

/// All that is mounted, as this process sees it.
pub fn all_mounts() -> Vec<MountEntry> {
    table(None)
}

fn table(number: Option<&str>) -> Vec<MountEntry> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(|line| entry(line, number)).collect()
}

/// What a line says, of the device with this number if one is given.
fn entry(line: &[u8], number: Option<&str>) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let of = fields.nth(2)?;
    if number.is_some_and(|number| number.as_bytes() != of) {
        return None;
    }
    let dir = unescaped(fields.nth(1)?);
    Some(MountEntry { line: String::from_utf8_lossy(line).into_owned(), dir: OsString::from_vec(dir).into() })
}

/// Blanks, line ends and backslashes stand there as three octal digits.
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

/// The directory that shows a mount: where it was put, or where that has gone since.
pub(crate) fn find(hint: &Path, device: (u32, u32)) -> Option<PathBuf> {
    let shows = |dir: &Path| device_of(dir) == Some(device);
    if shows(hint) {
        return Some(hint.into());
    }
    // Another mount may lie over it: then that directory is not ours to unmount.
    mounts_of(device).into_iter().map(|entry| entry.dir).find(|dir| shows(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line = br"36 35 0:47 / /mnt/a\040b\134c rw,relatime shared:1 - fuse.ivers x rw";
        assert_eq!(entry(line, Some("0:47")).unwrap().dir, Path::new(r"/mnt/a b\c"));
        assert_eq!(entry(line, Some("0:4")), None);
        assert_eq!(entry(b"36 35", Some("35")), None);
        assert_eq!(unescaped(br"\9\04\777"), br"\9\04\777");
    }
}
