//! Checks of file names from clients.

use ivers_nfs4::status::{NfsStat, Res};

use crate::compound::Object;

/// Checks a name. Errors: NFS4ERR_INVAL, NFS4ERR_BADNAME, NFS4ERR_BADCHAR.
pub fn check(name: &[u8]) -> Res<&[u8]> {
    let text = text(name)?;
    // [RFC8881 18.13.3] [RFC8881 18.25.3] No name leads out of an export.
    match text {
        "." | ".." => Err(NfsStat::Badname),
        _ if text.contains(['/', '\0']) => Err(NfsStat::Badchar),
        _ => Ok(name),
    }
}

/// Checks a name, including its length for the filesystem of `dir`.
pub fn check_in<'a>(dir: &Object, name: &'a [u8]) -> Res<&'a [u8]> {
    let name = check(name)?;
    // [RFC8881 15.1.7] Lookups fail with the same error.
    if name.len() > dir.vfs().info().name_max as usize { Err(NfsStat::Nametoolong) } else { Ok(name) }
}

/// The bytes as UTF-8. Error: NFS4ERR_INVAL if they are empty or not UTF-8.
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
    fn invalid_names_have_distinct_errors() {
        for name in ["a", "...", " ", "ä/".trim_end_matches('/'), "\u{1f600}", "-", ".a"] {
            assert_eq!(check(name.as_bytes()), Ok(name.as_bytes()));
        }
        assert_eq!(check(b""), Err(NfsStat::Inval));
        assert_eq!(check(b"\xff"), Err(NfsStat::Inval));
        assert_eq!(check(b"\xc0\xaf"), Err(NfsStat::Inval), "overlong");
        assert_eq!(check(b"\xed\xa0\x80"), Err(NfsStat::Inval), "half of a surrogate pair");
        assert_eq!(check(b"a/b"), Err(NfsStat::Badchar));
        assert_eq!(check(b"a\0"), Err(NfsStat::Badchar));
        assert_eq!(check(b"."), Err(NfsStat::Badname));
        assert_eq!(check(b".."), Err(NfsStat::Badname));
    }
}
