//! The OWNER of chown: user and group, as numbers or as names of the host.

use serde::{Deserialize, Serialize};

/// A user, a group, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The user to set.
    pub uid: Option<u32>,
    /// The group to set.
    pub gid: Option<u32>,
}

impl Owner {
    /// Parses `USER`, `USER:GROUP` or `:GROUP`. Looks names up on the host, so it must run outside the
    /// sandbox.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        if group == Some("") {
            return Err("a group is missing after the colon".into());
        }
        let user = Some(user).filter(|user| !user.is_empty());
        if user.is_none() && group.is_none() {
            return Err("use USER, USER:GROUP or :GROUP".into());
        }
        Ok(Self { uid: user.map(user_id).transpose()?, gid: group.map(group_id).transpose()? })
    }
}

/// Parses a user. Looks a name up on the host.
pub fn user_id(text: &str) -> Result<u32, String> {
    id(text, "user", |name| uzers::get_user_by_name(name).map(|user| user.uid()))
}

/// Parses a group. Looks a name up on the host.
pub fn group_id(text: &str) -> Result<u32, String> {
    id(text, "group", |name| uzers::get_group_by_name(name).map(|group| group.gid()))
}

/// Returns a number, or the id that a name has on this host.
fn id(text: &str, what: &str, look_up: impl Fn(&str) -> Option<u32>) -> Result<u32, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The largest number means "no change" in chown(2).
        let id = text.parse().ok().filter(|id| *id != u32::MAX);
        return id.ok_or_else(|| format!("{what} {text}: the number is too large"));
    }
    look_up(text)
        .ok_or_else(|| format!("this host has no {what} {text}; use the number that the image stores"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names_of_the_host() {
        let owner = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!(Owner::parse("7"), owner(Some(7), None));
        assert_eq!(Owner::parse("7:8"), owner(Some(7), Some(8)));
        assert_eq!(Owner::parse(":8"), owner(None, Some(8)));
        assert_eq!(Owner::parse("root:0"), owner(Some(0), Some(0)));
        for bad in ["", ":", "7:", "4294967295", "no such user", ":no-such-group"] {
            assert!(Owner::parse(bad).is_err(), "{bad}");
        }
    }
}
