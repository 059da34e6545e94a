//! Formatting of times, modes, file types and names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ivers_vfs::FileType;
use serde_json::Value;
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

/// Returns the name of several files of a type, in a sentence. `None` for files and directories.
pub fn special_files(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::Regular | FileType::Directory => None,
        FileType::Symlink => Some("symbolic links"),
        FileType::CharDevice | FileType::BlockDevice => Some("device nodes"),
        FileType::Fifo => Some("FIFOs"),
        FileType::Socket => Some("sockets"),
    }
}

/// Formats a file name for a terminal: control characters and bytes that are not UTF-8 are escaped.
pub fn name(bytes: &[u8]) -> String {
    ivers_block::printable(bytes)
}

/// A file name or path, as messages show it.
pub trait Shown {
    /// Formats it as [`name`] does.
    fn shown(&self) -> String;
}

impl<T: AsRef<OsStr> + ?Sized> Shown for T {
    fn shown(&self) -> String {
        name(self.as_ref().as_bytes())
    }
}

/// Puts `text` on one line, with a space for each control character: it can contain names from an image.
pub fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Removes the numbers that the standard library adds to errors of the system: ` (os error 2)`. Their texts
/// say the same in words.
pub fn without_error_numbers(text: &str) -> String {
    const START: &str = " (os error ";
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(START) {
        let number = &rest[at + START.len()..];
        let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let is_number = digits > 0 && number[digits..].starts_with(')');
        let end = at + START.len() + if is_number { digits + 1 } else { 0 };
        kept += if is_number { &rest[..at] } else { &rest[..end] };
        rest = &rest[end..];
    }
    kept + rest
}

/// Formats a count of things: `1 file`, `2 files`. The plural of `one` ends in `s` or, after a `y`, in `ies`.
pub fn count(count: u64, one: &str) -> String {
    match one.strip_suffix('y') {
        _ if count == 1 => format!("1 {one}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {one}s"),
    }
}

/// Formats a size for people in three or four characters, as `ls -h` does: `512`, `1.5K`, `64M`. Rounded up.
pub fn human_size(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let bytes = u128::from(bytes);
    let mut unit = 1024_u128;
    for letter in ["K", "M", "G", "T", "P", "E"] {
        let tenths = (bytes * 10).div_ceil(unit);
        let whole = bytes.div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        if whole < 1024 || letter == "E" {
            return format!("{whole}{letter}");
        }
        unit *= 1024;
    }
    unreachable!("the last letter returns")
}

/// Adds paths of the host to a JSON object as [`with_names`] does.
pub fn with_paths<'a>(object: Value, paths: impl IntoIterator<Item = (&'static str, &'a Path)>) -> Value {
    with_names(object, paths.into_iter().map(|(key, path)| (key, Some(path.as_os_str().as_bytes()))))
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds file names to a JSON object: each under its key, with U+FFFD in place of bytes that are not UTF-8. If
/// there are such bytes, the key with the suffix `_hex` has the name in hexadecimal.
pub fn with_names<'a>(
    mut object: Value,
    names: impl IntoIterator<Item = (&'static str, Option<&'a [u8]>)>,
) -> Value {
    for (key, name) in names {
        object[key] = name.map(String::from_utf8_lossy).into();
        if let Some(name) = name.filter(|name| std::str::from_utf8(name).is_err()) {
            object[format!("{key}_hex")] = hex(name).into();
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_text_and_bytes() {
        let names = [("path", Some(&b"a\xFF"[..])), ("name", Some(b"b")), ("from", None)];
        let object = with_names(serde_json::json!({ "ino": 1 }), names);
        let expected = serde_json::json!({
            "ino": 1, "path": "a\u{FFFD}", "path_hex": "61ff", "name": "b", "from": null,
        });
        assert_eq!(object, expected);
    }

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

    #[test]
    fn error_numbers_are_removed_and_nothing_else() {
        let missing = std::io::Error::from_raw_os_error(2).to_string();
        assert!(missing.ends_with(" (os error 2)"));
        assert_eq!(without_error_numbers(&format!("x: {missing}; y")), "x: No such file or directory; y");
        for text in ["", "a (os error )", "a (os error 2", "(os error 2)"] {
            assert_eq!(without_error_numbers(text), text);
        }
    }

    #[test]
    fn counts_and_sizes_are_for_people() {
        let counts = [count(0, "file"), count(1, "file"), count(2, "directory"), count(1, "directory")];
        assert_eq!(counts, ["0 files", "1 file", "2 directories", "1 directory"]);
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024 - 1, "10K"),
            (64 << 20, "64M"),
            ((1 << 20) - 1, "1.0M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }
}
