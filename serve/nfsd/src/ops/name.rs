//! Names as they come over the wire.

use ivers_nfs4::status::{NfsStat, Res};

use crate::compound::Object;

/// A name that may stand for something in a directory.
pub fn component(name: &[u8]) -> Res<&[u8]> {
    let text = text(name)?;
    // [RFC8881 18.13.3] [RFC8881 18.25.3] Nobody leaves an export by its names.
    match text {
        "." | ".." => Err(NfsStat::Badname),
        _ if text.contains(['/', '\0']) => Err(NfsStat::Badchar),
        _ => Ok(name),
    }
}

/// A name that may stand for something in this directory.
pub fn within<'a>(dir: &Object, name: &'a [u8]) -> Res<&'a [u8]> {
    let name = component(name)?;
    // [RFC8881 15.1.7] Also where it is only looked for.
    if name.len() > dir.vfs().info().name_max as usize { Err(NfsStat::Nametoolong) } else { Ok(name) }
}

/// Something that is UTF-8, and not nothing.
pub fn text(bytes: &[u8]) -> Res<&str> {
    match std::str::from_utf8(bytes) {
        Ok("") => Err(NfsStat::Inval),
        Ok(text) => Ok(text),
        // [RFC8881 14.5]
        Err(_) => Err(NfsStat::Inval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [RFC8881 14.5] [RFC8881 18.13.3] [RFC8881 18.25.3]
    #[test]
    fn wrong_names_are_told_apart() {
        for name in ["a", "...", " ", "ä/".trim_end_matches('/'), "\u{1f600}", "-", ".a"] {
            assert_eq!(component(name.as_bytes()), Ok(name.as_bytes()));
        }
        assert_eq!(component(b""), Err(NfsStat::Inval));
        assert_eq!(component(b"\xff"), Err(NfsStat::Inval));
        assert_eq!(component(b"\xc0\xaf"), Err(NfsStat::Inval), "overlong");
        assert_eq!(component(b"\xed\xa0\x80"), Err(NfsStat::Inval), "half of a pair");
        assert_eq!(component(b"a/b"), Err(NfsStat::Badchar));
        assert_eq!(component(b"a\0"), Err(NfsStat::Badchar));
        assert_eq!(component(b"."), Err(NfsStat::Badname));
        assert_eq!(component(b".."), Err(NfsStat::Badname));
    }
}
