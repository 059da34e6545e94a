//! Owners as strings (RFC 8881 section 5.9).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

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

/// The names of a password file and a group file, in the domain that both sides agree on. Who has no name there is his number, and numbers are taken as well: AUTH_SYS says
/// who asks by number anyway.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    domain: String,
    users: Table,
    groups: Table,
}

#[derive(Debug, Clone, Default)]
struct Table {
    ids: HashMap<String, u32>,
    /// With the domain, as they are sent.
    names: HashMap<u32, String>,
}

impl Table {
    /// Lines that make no sense are left out, as getpwnam(3) does; of two with one name, or one number, the first counts.
    fn parse(text: &str, domain: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (name, id) = (fields.next(), fields.nth(1).and_then(|id| Numeric::number(id.as_bytes())));
            if let (Some(name), Some(id)) = (name.filter(|name| !name.is_empty()), id)
                && !table.ids.contains_key(name)
            {
                table.ids.insert(name.to_owned(), id);
                table.names.entry(id).or_insert_with(|| format!("{name}@{domain}"));
            }
        }
        table
    }

    fn name(&self, id: u32) -> Vec<u8> {
        self.names.get(&id).map_or_else(|| id.to_string(), String::clone).into_bytes()
    }
}

impl Tables {
    /// Of what passwd(5) and group(5) hold, and the domain that clients put behind a name.
    pub fn new(passwd: &str, group: &str, domain: &str) -> Self {
        let (users, groups) = (Table::parse(passwd, domain), Table::parse(group, domain));
        Self { domain: domain.to_owned(), users, groups }
    }

    /// How many users and groups have names.
    pub fn len(&self) -> (usize, usize) {
        (self.users.ids.len(), self.groups.ids.len())
    }

    fn find(&self, table: &Table, name: &[u8]) -> Option<u32> {
        if let Some(id) = Numeric::number(name) {
            return Some(id);
        }
        let text = std::str::from_utf8(name).ok()?;
        // [RFC8881 5.9] A name of another domain is somebody else.
        match text.rsplit_once('@') {
            Some((user, domain)) if domain.eq_ignore_ascii_case(&self.domain) => table.ids.get(user).copied(),
            _ => None,
        }
    }
}

impl Names for Tables {
    fn user(&self, uid: u32) -> Vec<u8> {
        self.users.name(uid)
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        self.groups.name(gid)
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.find(&self.users, name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.find(&self.groups, name)
    }
}

/// How owners are spelled: numbers, until somebody gives [`Tables`]. A client that sends a number itself is sent numbers from then on: he would take a name for nobody.
#[derive(Debug, Default)]
pub struct Owners {
    tables: RwLock<Option<Arc<Tables>>>,
    by_number: Mutex<HashSet<IpAddr>>,
}

/// So many clients are known to send numbers; the next one takes the place of any.
const BY_NUMBER_MAX: usize = 4096;

impl Owners {
    /// These names from now on, or none.
    pub fn set(&self, tables: Option<Tables>) {
        *self.tables.write() = tables.map(Arc::new);
    }

    /// For a client.
    pub fn of(&self, client: IpAddr) -> Spelling<'_> {
        Spelling { owners: self, tables: self.tables.read().clone(), client }
    }
}

/// How one client spells owners.
pub struct Spelling<'a> {
    owners: &'a Owners,
    tables: Option<Arc<Tables>>,
    client: IpAddr,
}

impl Spelling<'_> {
    fn told(&self) -> &dyn Names {
        match &self.tables {
            Some(tables) if !self.owners.by_number.lock().contains(&self.client) => &**tables,
            _ => &Numeric,
        }
    }

    fn read(&self, name: &[u8]) -> &dyn Names {
        let Some(tables) = &self.tables else { return &Numeric };
        if Numeric::number(name).is_some() {
            let mut by_number = self.owners.by_number.lock();
            if by_number.len() >= BY_NUMBER_MAX
                && let Some(any) = by_number.iter().next().copied()
            {
                by_number.remove(&any);
            }
            by_number.insert(self.client);
        }
        &**tables
    }
}

impl Names for Spelling<'_> {
    fn user(&self, uid: u32) -> Vec<u8> {
        self.told().user(uid)
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        self.told().group(gid)
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.read(name).uid(name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.read(name).gid(name)
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
        assert_eq!(
            (tables.user(1000), tables.group(50)),
            (b"ann@example.org".to_vec(), b"staff@example.org".to_vec())
        );
        // Who has lost his name to another one, or never had one.
        assert_eq!((tables.user(7), tables.group(51)), (b"7".to_vec(), b"51".to_vec()));
    }

    /// [RFC8881 5.9]
    #[test]
    fn who_sends_numbers_is_sent_numbers() {
        let owners = Owners::default();
        let [ann, bob] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        assert_eq!(owners.of(ann).uid(b"ann@example.org"), None);
        assert_eq!(owners.of(bob).uid(b"1000"), Some(1000));
        assert_eq!(owners.of(ann).user(1000), b"1000");
        owners.set(Some(Tables::new("ann:x:1000:100::/:\n", "staff:x:50:\n", "example.org")));
        for client in [ann, bob] {
            // What was said without names is no preference.
            assert_eq!(owners.of(client).user(1000), b"ann@example.org");
            assert_eq!(owners.of(client).gid(b"staff@example.org"), Some(50));
        }
        assert_eq!(owners.of(bob).gid(b"50"), Some(50));
        assert_eq!(
            (owners.of(ann).group(50), owners.of(bob).group(50)),
            (b"staff@example.org".to_vec(), b"50".to_vec())
        );
        assert_eq!(owners.of(bob).uid(b"ann@example.org"), Some(1000));
        for last in 0..5000_u32 {
            owners.of(std::net::Ipv4Addr::from(last).into()).uid(b"1");
        }
        assert_eq!(owners.by_number.lock().len(), BY_NUMBER_MAX);
        owners.set(None);
        assert_eq!(owners.of(ann).user(1000), b"1000");
    }
}
