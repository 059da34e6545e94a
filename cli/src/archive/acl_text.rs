//! Access control lists as text: the form of acl_from_text(3), and that of star and libarchive, which append
//! the id to a name (`user:alice:rwx:1000`).

use ivers_vfs::acl::{Acl, Entry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};

/// Formats an ACL, with numbers for users and groups.
pub fn format(acl: &Acl) -> String {
    let entries = acl.entries().iter().map(|entry| {
        let id = match entry.tag {
            USER | GROUP => entry.id.to_string(),
            _ => String::new(),
        };
        let tag = match entry.tag {
            USER | USER_OBJ => "user",
            GROUP | GROUP_OBJ => "group",
            MASK => "mask",
            _ => "other",
        };
        let bit = |bit, letter| if entry.perm & bit != 0 { letter } else { '-' };
        format!("{tag}:{id}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
    });
    entries.collect::<Vec<_>>().join(",")
}

/// Parses an ACL. `None` if it is not valid, or names a user or group without a number. An empty ACL is
/// `Some(None)`.
pub fn parse(text: &[u8]) -> Option<Option<Acl>> {
    let text = std::str::from_utf8(text).ok()?;
    let lines = text.split([',', '\n']).map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut entries = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        entries.push(entry(line)?);
    }
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    if entries.is_empty() { Some(None) } else { Acl::new(entries).ok().map(Some) }
}

fn entry(line: &str) -> Option<Entry> {
    let fields: Vec<_> = line.split(':').map(str::trim).collect();
    let (tag, who, letters, id) = match *fields.as_slice() {
        [tag @ ("mask" | "m" | "other" | "o"), letters] => (tag, "", letters, None),
        [tag, who, letters] => (tag, who, letters, None),
        [tag, who, letters, id] => (tag, who, letters, Some(id)),
        _ => return None,
    };
    let tag = match (tag, who) {
        ("user" | "u", "") => USER_OBJ,
        ("user" | "u", _) => USER,
        ("group" | "g", "") => GROUP_OBJ,
        ("group" | "g", _) => GROUP,
        ("mask" | "m", "") => MASK,
        ("other" | "o", "") => OTHER,
        _ => return None,
    };
    let id = match tag {
        USER | GROUP => id.and_then(|id| id.parse().ok()).or_else(|| who.parse().ok())?,
        _ => u32::MAX,
    };
    let mut perm = 0;
    for letter in letters.chars() {
        perm |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return None,
        };
    }
    Some(Entry { tag, perm, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_the_forms_of_others_are_read() {
        let text = "user::rwx,user:1000:r-x,group::r--,group:7:-wx,mask::rwx,other::---";
        let acl = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(format(&acl), text);
        let others = [
            "u::rwx\nu:1000:rx # a comment\ng::r\ng:7:wx\nm:rwx\no:\n",
            "user::rwx,group::r--,other::---,user:alice:r-x:1000,group:wheel:-wx:7,mask::rwx",
        ];
        for other in others {
            assert_eq!(parse(other.as_bytes()).unwrap().as_ref(), Some(&acl), "{other}");
        }
        assert_eq!(parse(b""), Some(None));
        for bad in ["user::rwx", "user:alice:rwx", "user::rwz,group::r,other::r", "nonsense", "a:b:c:d:e"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
