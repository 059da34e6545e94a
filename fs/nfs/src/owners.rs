//! Numbers of owners that the server sends as names.

use std::collections::HashMap;

use ivers_nfs4::owners::{entries, name_in};

/// The users and groups of this machine, as those of a domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners {
    domain: String,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Owners {
    /// Takes users and groups from the text of passwd(5) and group(5).
    pub fn new(passwd: &str, group: &str, domain: &str) -> Self {
        let table = |text: &str| {
            let mut ids = HashMap::new();
            entries(text).for_each(|(name, id)| {
                ids.entry(name.to_owned()).or_insert(id);
            });
            ids
        };
        Self { domain: domain.to_owned(), users: table(passwd), groups: table(group) }
    }

    /// Returns the number of `NAME@DOMAIN`.
    pub fn user(&self, text: &[u8]) -> Option<u32> {
        self.users.get(name_in(text, &self.domain)?).copied()
    }

    /// Returns the number of a group.
    pub fn group(&self, text: &[u8]) -> Option<u32> {
        self.groups.get(name_in(text, &self.domain)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_domain_have_numbers() {
        let owners = Owners::new("ann:x:1000:100::/:\nann:x:7:7::/:\n", "staff:x:50:\n", "example.org");
        assert_eq!(owners.user(b"ann@Example.org"), Some(1000));
        assert_eq!(owners.group(b"staff@example.org"), Some(50));
        for other in
            [&b"ann@other.org"[..], b"ann", b"bob@example.org", b"staff@example.org", b"\xff@example.org"]
        {
            assert_eq!(owners.user(other), None);
        }
    }
}
