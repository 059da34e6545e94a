//! Words for people: times, modes, sizes, names.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;

use crate::failure::Output;
use ivers_vfs::FileType;
use ivers_vfs::calendar::date_of;

/// `2017-12-13 14:19:58` in UTC.
pub fn time(sec: i64) -> String {
    let (days, second) = (sec.div_euclid(86_400), sec.rem_euclid(86_400));
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// `drwxr-xr-x`.
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

/// The word for a type in JSON.
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

/// The same in a sentence.
pub fn kind_in_words(file: FileType) -> String {
    kind(file).replace('_', " ")
}

/// A name, with what a terminal must not see escaped.
pub fn name(bytes: &[u8]) -> String {
    let text = OsStr::from_bytes(bytes).to_string_lossy();
    if text.chars().any(char::is_control) || std::str::from_utf8(bytes).is_err() {
        bytes.escape_ascii().to_string()
    } else {
        text.into_owned()
    }
}

/// A text on one line, with spaces for what a terminal must not see: names come from images too.
pub fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A name in JSON: text, with bytes that are none as U+FFFD.
pub fn json_name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `64M`, `1G`, `4096`.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(['b', 'B']).trim_end_matches('i');
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A line of JSON on standard output.
pub fn json_line(value: &serde_json::Value) -> Result<()> {
    line(value)
}

/// A line, or some, on standard output.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    // What comes from an image is escaped where it is put in; what was forgotten there must not reach a terminal either.
    let text = text.to_string().replace(|c: char| c.is_control() && c != '\n', " ");
    writeln!(std::io::stdout().lock(), "{text}").map_err(|error| Output(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_modes_and_sizes() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(1_513_174_798), "2017-12-13 14:19:58");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(time(-1), "1969-12-31 23:59:59");
        assert_eq!(mode(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileType::Regular, 0o4640), "-rwSr-----");
        assert_eq!(
            (parse_size("64M"), parse_size("1GiB"), parse_size("7")),
            (Some(64 << 20), Some(1 << 30), Some(7))
        );
        assert_eq!((parse_size(""), parse_size("x"), parse_size("99999999T")), (None, None, None));
        assert_eq!(name(b"a\x1b[1m"), "a\\x1b[1m");
    }
}
