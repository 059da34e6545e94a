//! Names: short ones in a code page, long ones in UTF-16, and comparison of names.
//!
//! Sources: fatgen103, "FAT Long Directory Entries" and its name rules. Which names are refused, what is
//! stripped from them, and how short names are generated follows Linux's vfat (its documentation in
//! `filesystems/vfat.rst`, and experiments), so that both drivers give a file the same names.

use crate::layout::{FREE, KANJI, RawLong};
use ivers_vfs::{Error, NameError, Result};
use zerocopy::little_endian::U16;

/// Code page 437 from 0x80 on (Unicode's mapping table CP437.TXT).
const CP437: &str = concat!(
    "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐",
    "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■ ",
);
/// UTF-16 units in one entry of a long name.
const UNITS_PER_ENTRY: usize = 13;
/// UTF-16 units of the longest name.
const MAX_UNITS: usize = 255;
/// The bit of `LDIR_Ord` that marks the last part of a name, which is stored first.
const LAST_PART: u8 = 0x40;
/// The bit of `DIR_NTRes` that says that the base name is in lower case.
const LOWER_BASE: u8 = 0x08;
/// The bit of `DIR_NTRes` that says that the extension is in lower case.
const LOWER_EXTENSION: u8 = 0x10;

fn from_cp437(byte: u8) -> char {
    if byte < 0x80 { byte as char } else { CP437.chars().nth(usize::from(byte) - 0x80).unwrap_or('_') }
}

fn to_cp437(c: char) -> Option<u8> {
    match c {
        ' '..='~' => Some(c as u8),
        _ => CP437.chars().position(|other| other == c).map(|at| at as u8 + 0x80),
    }
}

/// Returns a name without trailing dots, which do not count.
pub(crate) fn without_trailing_dots(name: &[u8]) -> &[u8] {
    let len = name.iter().rposition(|byte| *byte != b'.').map_or(0, |at| at + 1);
    &name[..len]
}

/// Returns the folded form of a name, which is the same for all its spellings, or `None` if it is not UTF-8.
pub(crate) fn folded(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(without_trailing_dots(name)).ok()?;
    Some(name.chars().map(upper).collect())
}

/// Returns the upper-case letter with which names are compared. Letters whose upper case is several
/// characters stay as they are.
fn upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(single), None) => single,
        _ => c,
    }
}

/// Returns whether a name is longer than the format allows.
pub(crate) fn is_too_long(name: &[u8]) -> bool {
    let name = without_trailing_dots(name);
    name.len() > MAX_UNITS
        && std::str::from_utf8(name).is_ok_and(|text| text.encode_utf16().count() > MAX_UNITS)
}

/// Checks that a file may be created with a name. Returns it in UTF-16, without trailing dots.
pub(crate) fn validate(name: &[u8]) -> Result<Vec<u16>> {
    let name = without_trailing_dots(name);
    if name.is_empty() {
        return Err(NameError::NotFound.into());
    }
    let text = std::str::from_utf8(name).map_err(|_| NameError::Invalid)?;
    let forbidden = |c: char| c < ' ' || "*?<>|\":/\\".contains(c);
    if text.chars().any(forbidden) || text.ends_with(' ') {
        return Err(NameError::Invalid.into());
    }
    if is_too_long(name) {
        return Err(NameError::NameTooLong.into());
    }
    Ok(text.encode_utf16().collect())
}

/// Returns the checksum of a short name (`LDIR_Chksum`).
pub(crate) fn checksum(short: &[u8; 11]) -> u8 {
    short.iter().fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}

/// Decodes a short name.
pub(crate) fn decode_short(short: &[u8; 11], nt_res: u8) -> String {
    let part = |bytes: &[u8], lower: bool| -> String {
        let used = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1);
        let chars = bytes[..used].iter().map(|byte| match from_cp437(*byte) {
            // A file name cannot contain them.
            c if c < ' ' || c == '/' => '_',
            c if lower => c.to_lowercase().next().unwrap_or(c),
            c => c,
        });
        chars.collect()
    };
    let mut bytes = *short;
    if bytes[0] == KANJI {
        bytes[0] = FREE;
    }
    let mut name = part(&bytes[..8], nt_res & LOWER_BASE != 0);
    let extension = part(&bytes[8..], nt_res & LOWER_EXTENSION != 0);
    if !extension.is_empty() {
        name.push('.');
        name += &extension;
    }
    name
}

/// The label in the boot sector of a volume that has none.
pub(crate) const NO_LABEL: &str = "NO NAME";

/// Encodes a volume label: at most 11 characters of code page 437, in upper case. An empty one is
/// [`NO_LABEL`].
pub(crate) fn encode_label(label: &str) -> Result<[u8; 11]> {
    let refuse = |why: &str| Error::Incompatible(format!("label {label:?}: {why}"));
    let label = if label.is_empty() { NO_LABEL } else { label };
    let mut bytes = [b' '; 11];
    if label.chars().count() > bytes.len() {
        return Err(refuse("a FAT label has at most 11 characters"));
    }
    if label.starts_with(' ') {
        return Err(refuse("a FAT label cannot start with a space"));
    }
    for (byte, c) in bytes.iter_mut().zip(label.chars()) {
        if c < ' ' || "*?.,;:/\\|+=<>[]\"".contains(c) {
            return Err(refuse(&format!("a FAT label cannot contain {c:?}")));
        }
        *byte = to_cp437(upper(c)).ok_or_else(|| refuse(&format!("{c:?} is not in code page 437")))?;
    }
    if bytes[0] == FREE {
        bytes[0] = KANJI;
    }
    Ok(bytes)
}

/// Decodes a volume label.
pub(crate) fn decode_label(bytes: &[u8; 11]) -> String {
    let mut bytes = *bytes;
    if bytes[0] == KANJI {
        bytes[0] = FREE;
    }
    let text: String = bytes.iter().map(|byte| from_cp437(*byte)).collect();
    text.trim_end_matches([' ', '\0']).to_owned()
}

/// The short name that follows from a long one.
struct ShortName {
    base: Vec<u8>,
    extension: Vec<u8>,
    /// The short name is equal to the long one, which need not be stored.
    exact: bool,
    /// The short name differs from the long one in case only, so it needs no number.
    fits: bool,
}

impl ShortName {
    fn of(units: &[u16]) -> Self {
        let text = String::from_utf16_lossy(units);
        // A leading dot does not start an extension.
        let body = text.trim_start_matches('.');
        let leading_dot = body.len() < text.len();
        let (base, extension) = body.rsplit_once('.').unwrap_or((body, ""));
        let (mut exact, mut fits) = (!leading_dot, !leading_dot);
        let mut part = |part: &str, max: usize| {
            let mut bytes = Vec::new();
            for c in part.chars() {
                let byte = match c {
                    ' ' | '.' => None,
                    '+' | ',' | ';' | '=' | '[' | ']' => Some((b'_', false)),
                    c => Some(to_cp437(upper(c)).map_or((b'_', false), |byte| (byte, true))),
                };
                let (Some((byte, true)), true) = (byte, bytes.len() < max) else {
                    (exact, fits) = (false, false);
                    bytes.extend(byte.filter(|_| bytes.len() < max).map(|(byte, _)| byte));
                    continue;
                };
                exact &= upper(c) == c;
                bytes.push(byte);
            }
            bytes
        };
        let (base, extension) = (part(base, 8), part(extension, 3));
        let has_base = !base.is_empty();
        Self { base, extension, exact: exact && has_base, fits: fits && has_base }
    }

    fn bytes(&self, base: &[u8]) -> [u8; 11] {
        let mut bytes = [b' '; 11];
        bytes[..base.len()].copy_from_slice(base);
        bytes[8..8 + self.extension.len()].copy_from_slice(&self.extension);
        if bytes[0] == FREE {
            bytes[0] = KANJI;
        }
        bytes
    }
}

/// Encodes a name for a directory. Returns the short name, and the entries of the long name in the order on
/// disk; none if the short name is equal. `taken` returns whether a folded name exists in the directory.
/// Returns `NoSpace` if all possible short names are taken.
pub(crate) fn encode(units: &[u16], taken: impl Fn(&str) -> bool) -> Result<([u8; 11], Vec<RawLong>)> {
    let short = ShortName::of(units);
    let free = |bytes: &[u8; 11]| folded(decode_short(bytes, 0).as_bytes()).is_some_and(|name| !taken(&name));
    if short.fits {
        let bytes = short.bytes(&short.base);
        if free(&bytes) {
            let long = if short.exact { Vec::new() } else { long_entries(units, checksum(&bytes)) };
            return Ok((bytes, long));
        }
    }
    // Up to six characters and a number from 1 to 9. If all are taken: two characters, four hexadecimal
    // digits that depend on the name, and a number.
    let stem = if short.base.is_empty() { &b"_"[..] } else { &short.base };
    let few = (1..=9u32).map(|nth| [&stem[..stem.len().min(6)], format!("~{nth}").as_bytes()].concat());
    let seed = units.iter().fold(0u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(*unit)));
    let many = (0..0x10000u32 * 9).map(|nth| {
        let number = seed.wrapping_add(nth / 9) & 0xFFFF;
        [&stem[..stem.len().min(2)], format!("{number:04X}~{}", nth % 9 + 1).as_bytes()].concat()
    });
    for base in few.chain(many) {
        let bytes = short.bytes(&base);
        if free(&bytes) {
            return Ok((bytes, long_entries(units, checksum(&bytes))));
        }
    }
    Err(NameError::NoSpace.into())
}

/// Returns the entries of a long name, in the order on disk.
fn long_entries(units: &[u16], sum: u8) -> Vec<RawLong> {
    let parts = units.len().div_ceil(UNITS_PER_ENTRY);
    let part = |nth: usize| {
        let unit = |at: usize| {
            U16::new(match nth * UNITS_PER_ENTRY + at {
                at if at < units.len() => units[at],
                at if at == units.len() => 0,
                _ => 0xFFFF,
            })
        };
        RawLong {
            ldir_ord: (nth + 1) as u8 | if nth + 1 == parts { LAST_PART } else { 0 },
            ldir_name1: std::array::from_fn(unit),
            ldir_attr: crate::layout::attr::LONG_NAME,
            ldir_type: 0,
            ldir_chksum: sum,
            ldir_name2: std::array::from_fn(|at| unit(5 + at)),
            ldir_fst_clus_lo: U16::new(0),
            ldir_name3: std::array::from_fn(|at| unit(11 + at)),
        }
    };
    (0..parts).rev().map(part).collect()
}

/// Collects the parts of a long name in the order on disk. Parts that do not belong together are discarded.
#[derive(Default)]
pub(crate) struct LongName {
    units: Vec<u16>,
    /// The number of the next part; 0 if the short entry is next.
    next: u8,
    /// The checksum in all parts.
    sum: u8,
    /// The slot of the first part.
    first: u32,
}

impl LongName {
    /// Adds the part that is in `slot`. A part that does not continue the name discards it.
    pub fn add(&mut self, slot: u32, part: &RawLong) {
        let nth = part.ldir_ord & !LAST_PART;
        if part.ldir_ord & LAST_PART != 0 {
            let parts = usize::from(nth);
            let valid = (1..=MAX_UNITS.div_ceil(UNITS_PER_ENTRY)).contains(&parts);
            let len = if valid { parts * UNITS_PER_ENTRY } else { 0 };
            *self = Self { units: vec![0xFFFF; len], next: nth, sum: part.ldir_chksum, first: slot };
        }
        if self.units.is_empty() || nth == 0 || nth != self.next || part.ldir_chksum != self.sum {
            *self = Self::default();
            return;
        }
        let values = part.ldir_name1.iter().chain(&part.ldir_name2).chain(&part.ldir_name3);
        let from = (usize::from(nth) - 1) * UNITS_PER_ENTRY;
        self.units[from..from + UNITS_PER_ENTRY]
            .iter_mut()
            .zip(values)
            .for_each(|(unit, value)| *unit = value.get());
        self.next = nth - 1;
    }

    /// Returns the long name of a short entry and its first slot, if all its parts came directly before.
    pub fn finish(&mut self, short: &[u8; 11]) -> Option<(String, u32)> {
        let whole = std::mem::take(self);
        if whole.units.is_empty() || whole.next != 0 || whole.sum != checksum(short) {
            return None;
        }
        let len = whole.units.iter().position(|unit| *unit == 0).unwrap_or(whole.units.len());
        let name: String = char::decode_utf16(whole.units[..len].iter().copied())
            .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        let usable = !name.is_empty()
            && !name.contains('/')
            && without_trailing_dots(name.as_bytes()).len() == name.len();
        usable.then_some((name, whole.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(name: &str, taken: &[&str]) -> (String, usize) {
        let units = validate(name.as_bytes()).unwrap();
        let (bytes, long) = encode(&units, |other| taken.contains(&other)).unwrap();
        (decode_short(&bytes, 0), long.len())
    }

    #[test]
    fn short_names_are_generated_as_by_linux() {
        assert_eq!(CP437.chars().count(), 128);
        for (name, expected, parts) in [
            ("README.TXT", "README.TXT", 0),
            ("Readme.txt", "README.TXT", 1),
            ("a long name.text", "ALONGN~1.TEX", 2),
            ("foo.tar.gz", "FOOTAR~1.GZ", 1),
            (".profile", "PROFIL~1", 1),
            ("a+b", "A_B~1", 1),
            ("é", "É", 1),
            ("日本", "__~1", 1),
            ("x y", "XY~1", 1),
            ("12345678.123", "12345678.123", 0),
        ] {
            assert_eq!(short(name, &[]), (expected.to_owned(), parts), "{name}");
        }
        assert_eq!(short("a long name.text", &["ALONGN~1.TEX"]).0, "ALONGN~2.TEX");
        let nine: Vec<String> = (1..=9).map(|nth| format!("ALONGN~{nth}.TEX")).collect();
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        let (with_hash, _) = short("a long name.text", &nine);
        assert!(with_hash.starts_with("AL") && with_hash.ends_with("~1.TEX"), "{with_hash}");
    }

    #[test]
    fn invalid_names_are_refused() {
        for bad in ["a*b", "a?", "x:y", "q\"", "tail ", "\u{1}"] {
            assert!(
                matches!(validate(bad.as_bytes()), Err(ivers_vfs::Error::Name(NameError::Invalid))),
                "{bad}"
            );
        }
        assert!(validate(b"\xff").is_err() && validate(b"...").is_err());
        assert_eq!(validate(b"dots...").unwrap(), validate(b"dots").unwrap());
        assert!(validate("ä".repeat(255).as_bytes()).is_ok());
        assert!(validate("ä".repeat(256).as_bytes()).is_err());
        assert_eq!(folded("Grün.".as_bytes()), folded("GRÜN".as_bytes()));
    }

    #[test]
    fn long_names_round_trip() {
        for name in ["a", "thirteen char", "fourteen chars", "Ünïcödé 日本 😀 name", &"x".repeat(255)]
        {
            let units = validate(name.as_bytes()).unwrap();
            let entries = long_entries(&units, 7 ^ checksum(b"AAAAAAAAAAA") ^ 7);
            let mut long = LongName::default();
            entries.iter().zip(5..).for_each(|(part, slot)| long.add(slot, part));
            assert_eq!(long.finish(b"AAAAAAAAAAA"), Some((name.to_owned(), 5)));
            let mut long = LongName::default();
            entries.iter().zip(5..).for_each(|(part, slot)| long.add(slot, part));
            assert_eq!(long.finish(b"BAAAAAAAAAA"), None, "another checksum");
            let mut long = LongName::default();
            entries.iter().skip(1).zip(5..).for_each(|(part, slot)| long.add(slot, part));
            assert_eq!(long.finish(b"AAAAAAAAAAA"), None, "the first part is missing");
        }
        assert_eq!(decode_short(b"FOO     TXT", 0x18), "foo.txt");
        assert_eq!(decode_short(b"\x05OO        ", 0), "σOO");
    }
}
