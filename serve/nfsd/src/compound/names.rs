//! Owners as strings (RFC 8881 section 5.9).

use std::collections::HashMap;

/// Owners as strings, and back.
pub trait Names: Send + Sync {
    /// The user of a number.
    fn user(&self, uid: u32) -> Vec<u8>;
    /// The group of a number.
    fn group(&self, gid: u32) -> Vec<u8>;
    /// The number of a user.
    fn uid(&self, name: &[u8]) -> Option<u32>;
    /// The number of a group.
    fn gid(&self, name: &[u8]) -> Option<u32>;
}

/// Numbers as decimal strings, and nothing else: right where both sides have the same databases, as AUTH_SYS needs anyway.
#[derive(Debug, Clone, Copy, Default)]
pub struct Numeric;

impl Numeric {
    fn number(name: &[u8]) -> Option<u32> {
        let text = std::str::from_utf8(name).ok()?;
        // [RFC8881 5.9] Without leading zeros; and -1 means "leave it" to system calls.
        let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        text.parse().ok().filter(|&id| plain && id != u32::MAX)
    }
}

impl Names for Numeric {
    fn user(&self, uid: u32) -> Vec<u8> {
        uid.to_string().into_bytes()
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        gid.to_string().into_bytes()
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        Self::number(name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        Self::number(name)
    }
}

/// Numbers as they are, and beside them the names of a password file and a group file: for who sends names. Answers are numbers all the same, which every client
/// that uses AUTH_SYS takes.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    domain: String,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Tables {
    /// Of what passwd(5) and group(5) hold, and the domain that clients put behind a name. Lines that make no sense are left out, as getpwnam(3) does; of two with
    /// one name the first counts.
    pub fn new(passwd: &str, group: &str, domain: &str) -> Self {
        Self { domain: domain.to_owned(), users: Self::parse(passwd), groups: Self::parse(group) }
    }

    fn parse(text: &str) -> HashMap<String, u32> {
        let mut ids = HashMap::new();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (name, id) = (fields.next(), fields.nth(1).and_then(|id| Numeric::number(id.as_bytes())));
            if let (Some(name), Some(id)) = (name.filter(|name| !name.is_empty()), id) {
                ids.entry(name.to_owned()).or_insert(id);
            }
        }
        ids
    }

    fn find(&self, ids: &HashMap<String, u32>, name: &[u8]) -> Option<u32> {
        if let Some(id) = Numeric::number(name) {
            return Some(id);
        }
        let text = std::str::from_utf8(name).ok()?;
        // [RFC8881 5.9] A name of another domain is somebody else.
        match text.rsplit_once('@') {
            Some((user, domain)) if domain.eq_ignore_ascii_case(&self.domain) => ids.get(user).copied(),
            _ => None,
        }
    }
}

impl Names for Tables {
    fn user(&self, uid: u32) -> Vec<u8> {
        Numeric.user(uid)
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        Numeric.group(gid)
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.find(&self.users, name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.find(&self.groups, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [RFC8881 5.9]
    #[test]
    fn numbers_are_written_in_one_way() {
        for (name, id) in [("0", Some(0)), ("1000", Some(1000)), ("4294967294", Some(u32::MAX - 1))] {
            assert_eq!(Numeric.uid(name.as_bytes()), id);
        }
        for name in ["", "01", "00", "+1", "-1", " 1", "1 ", "0x1", "4294967295", "4294967296", "root", "1@x"]
        {
            assert_eq!(Numeric.gid(name.as_bytes()), None, "{name:?}");
        }
        assert_eq!((Numeric.user(7), Numeric.group(0)), (b"7".to_vec(), b"0".to_vec()));
    }

    /// [RFC8881 5.9]
    #[test]
    fn names_are_those_of_the_domain() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/:\nann:x:7:7::/:\nbroken\n:x:5:5\nb:x:y:1\n";
        let tables = Tables::new(passwd, "staff:x:50:ann\n", "example.org");
        for (name, uid) in [
            ("ann@example.org", Some(1000)),
            ("ann@EXAMPLE.org", Some(1000)),
            ("root@example.org", Some(0)),
            ("1000", Some(1000)),
            ("ann", None),
            ("ann@other.org", None),
            ("ann@", None),
            ("b@example.org", None),
            ("@example.org", None),
            ("staff@example.org", None),
        ] {
            assert_eq!(tables.uid(name.as_bytes()), uid, "{name}");
        }
        assert_eq!(tables.gid(b"staff@example.org"), Some(50));
        assert_eq!((tables.user(1000), tables.group(50)), (b"1000".to_vec(), b"50".to_vec()));
    }
}
