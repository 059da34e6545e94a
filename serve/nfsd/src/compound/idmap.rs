//! Mapping of user and group names (RFC 8881 section 5.9).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ivers_nfs4::owners;
use parking_lot::{Mutex, RwLock};

/// Maps owners and groups between numbers and the strings of the protocol.
pub trait IdMap: Send + Sync {
    /// The name of a user.
    fn user(&self, uid: u32) -> Vec<u8>;
    /// The name of a group.
    fn group(&self, gid: u32) -> Vec<u8>;
    /// The number of a user.
    fn uid(&self, name: &[u8]) -> Option<u32>;
    /// The number of a group.
    fn gid(&self, name: &[u8]) -> Option<u32>;
}

/// Decimal strings only. Suits servers and clients with the same user database, which AUTH_SYS requires
/// anyway.
#[derive(Debug, Clone, Copy, Default)]
pub struct NumericIds;

impl IdMap for NumericIds {
    fn user(&self, uid: u32) -> Vec<u8> {
        uid.to_string().into_bytes()
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        gid.to_string().into_bytes()
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        owners::number(name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        owners::number(name)
    }
}

/// The names of a password file and a group file, in one domain. A number without a name is sent as a decimal
/// string. Decimal strings are accepted, as AUTH_SYS identifies callers by number anyway.
#[derive(Debug, Clone, Default)]
pub struct NameTables {
    domain: String,
    users: Table,
    groups: Table,
}

#[derive(Debug, Clone, Default)]
struct Table {
    ids: HashMap<String, u32>,
    /// Names with the domain, as they are sent.
    names: HashMap<u32, String>,
}

impl Table {
    /// The first line with a name or number counts.
    fn parse(text: &str, domain: &str) -> Self {
        let mut table = Self::default();
        for (name, id) in owners::entries(text) {
            if !table.ids.contains_key(name) {
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

impl NameTables {
    /// Parses the text of passwd(5) and group(5). Clients append `domain` to names.
    pub fn new(passwd: &str, group: &str, domain: &str) -> Self {
        let (users, groups) = (Table::parse(passwd, domain), Table::parse(group, domain));
        Self { domain: domain.to_owned(), users, groups }
    }

    /// The number of users and groups with names.
    pub fn len(&self) -> (usize, usize) {
        (self.users.ids.len(), self.groups.ids.len())
    }

    fn find(&self, table: &Table, name: &[u8]) -> Option<u32> {
        owners::number(name).or_else(|| table.ids.get(owners::name_in(name, &self.domain)?).copied())
    }
}

impl IdMap for NameTables {
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

/// The name mapping of the server: decimal strings until [`NameTables`] are set. A client that sent a decimal
/// string gets decimal strings from then on, as it would map a name to nobody.
#[derive(Debug, Default)]
pub struct IdMapper {
    tables: RwLock<Option<Arc<NameTables>>>,
    numeric_clients: Mutex<HashSet<IpAddr>>,
}

/// The number of clients that are remembered to send decimal strings. A further one replaces any of them.
const NUMERIC_CLIENTS_MAX: usize = 4096;

impl IdMapper {
    /// Sets the names, or none.
    pub fn set_tables(&self, tables: Option<NameTables>) {
        *self.tables.write() = tables.map(Arc::new);
    }

    /// The mapping for one client.
    pub fn for_client(&self, client: IpAddr) -> ClientIdMap<'_> {
        ClientIdMap { mapper: self, tables: self.tables.read().clone(), client }
    }
}

/// The name mapping for one client.
pub struct ClientIdMap<'a> {
    mapper: &'a IdMapper,
    tables: Option<Arc<NameTables>>,
    client: IpAddr,
}

impl ClientIdMap<'_> {
    fn map_out(&self) -> &dyn IdMap {
        match &self.tables {
            Some(tables) if !self.mapper.numeric_clients.lock().contains(&self.client) => &**tables,
            _ => &NumericIds,
        }
    }

    fn map_in(&self, name: &[u8]) -> &dyn IdMap {
        let Some(tables) = &self.tables else { return &NumericIds };
        if owners::number(name).is_some() {
            let mut numeric_clients = self.mapper.numeric_clients.lock();
            if numeric_clients.len() >= NUMERIC_CLIENTS_MAX
                && let Some(any) = numeric_clients.iter().next().copied()
            {
                numeric_clients.remove(&any);
            }
            numeric_clients.insert(self.client);
        }
        &**tables
    }
}

impl IdMap for ClientIdMap<'_> {
    fn user(&self, uid: u32) -> Vec<u8> {
        self.map_out().user(uid)
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        self.map_out().group(gid)
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.map_in(name).uid(name)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.map_in(name).gid(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [RFC8881 5.9]
    #[test]
    fn only_canonical_decimal_strings_are_numbers() {
        for (name, id) in [("0", Some(0)), ("1000", Some(1000)), ("4294967294", Some(u32::MAX - 1))] {
            assert_eq!(NumericIds.uid(name.as_bytes()), id);
        }
        for name in ["", "01", "00", "+1", "-1", " 1", "1 ", "0x1", "4294967295", "4294967296", "root", "1@x"]
        {
            assert_eq!(NumericIds.gid(name.as_bytes()), None, "{name:?}");
        }
        assert_eq!((NumericIds.user(7), NumericIds.group(0)), (b"7".to_vec(), b"0".to_vec()));
    }

    /// [RFC8881 5.9]
    #[test]
    fn names_require_the_domain() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/:\nann:x:7:7::/:\nbroken\n:x:5:5\nb:x:y:1\n";
        let tables = NameTables::new(passwd, "staff:x:50:ann\n", "example.org");
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
        // A number whose name belongs to another one, and a number without a name.
        assert_eq!((tables.user(7), tables.group(51)), (b"7".to_vec(), b"51".to_vec()));
    }

    /// [RFC8881 5.9]
    #[test]
    fn clients_that_send_numbers_get_numbers() {
        let mapper = IdMapper::default();
        let [ann, bob] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        assert_eq!(mapper.for_client(ann).uid(b"ann@example.org"), None);
        assert_eq!(mapper.for_client(bob).uid(b"1000"), Some(1000));
        assert_eq!(mapper.for_client(ann).user(1000), b"1000");
        mapper.set_tables(Some(NameTables::new("ann:x:1000:100::/:\n", "staff:x:50:\n", "example.org")));
        for client in [ann, bob] {
            // A decimal string that was sent while there were no names is no preference.
            assert_eq!(mapper.for_client(client).user(1000), b"ann@example.org");
            assert_eq!(mapper.for_client(client).gid(b"staff@example.org"), Some(50));
        }
        assert_eq!(mapper.for_client(bob).gid(b"50"), Some(50));
        assert_eq!(
            (mapper.for_client(ann).group(50), mapper.for_client(bob).group(50)),
            (b"staff@example.org".to_vec(), b"50".to_vec())
        );
        assert_eq!(mapper.for_client(bob).uid(b"ann@example.org"), Some(1000));
        for last in 0..5000_u32 {
            mapper.for_client(std::net::Ipv4Addr::from(last).into()).uid(b"1");
        }
        assert_eq!(mapper.numeric_clients.lock().len(), NUMERIC_CLIENTS_MAX);
        mapper.set_tables(None);
        assert_eq!(mapper.for_client(ann).user(1000), b"1000");
    }
}
