//! Formatting of times, modes, file types and names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use ivers_vfs::FileType;
use time::UtcDateTime;

/// Formats a time in UTC, given in seconds since 1970: `2017-12-13 14:19:58`. Outside years -9999 to 9999:
/// `@` and the seconds.
pub fn time(sec: i64) -> String {
    UtcDateTime::from_unix_timestamp(sec).map_or_else(
        |_| format!("@{sec}"),
        |at| {
            let (date, hour, minute, second) = (at.date(), at.hour(), at.minute(), at.second());
            format!("{date} {hour:02}:{minute:02}:{second:02}")
        },
    )
}

/// Formats the type and permissions of a file as `ls -l` shows them: `drwxr-xr-x`.
pub fn mode(kind: FileType, perm: u32) -> String {
    let mut text = String::from(match kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    });
    for (shift, special, on, off) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => on,
            (true, false) => off,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns the name of a file type in JSON.
pub fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "char_device",
        FileType::BlockDevice => "block_device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Returns the name of a file type in a sentence.
pub fn kind_in_words(file: FileType) -> String {
    kind(file).replace('_', " ")
}

/// Formats a file name for a terminal: control characters and bytes that are not UTF-8 are escaped.
pub fn name(bytes: &[u8]) -> String {
    let text = OsStr::from_bytes(bytes).to_string_lossy();
    if text.chars().any(char::is_control) || std::str::from_utf8(bytes).is_err() {
        bytes.escape_ascii().to_string()
    } else {
        text.into_owned()
    }
}

/// Puts `text` on one line, with a space for each control character: it can contain names from an image.
pub fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Converts a file name to JSON. Bytes that are not UTF-8 become U+FFFD.
pub fn json_name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_modes_and_names_are_formatted() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(1_513_174_798), "2017-12-13 14:19:58");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(time(-1), "1969-12-31 23:59:59");
        assert_eq!(time(253_402_300_799), "9999-12-31 23:59:59");
        assert_eq!(time(253_402_300_800), "@253402300800");
        assert_eq!(mode(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileType::Regular, 0o4640), "-rwSr-----");
        assert_eq!(name(b"a\x1b[1m"), "a\\x1b[1m");
    }
}
