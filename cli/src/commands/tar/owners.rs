//! `--owner`, `--group` and `--all-root`: owners that replace those of the source.

use super::super::edit::owner::{group_id, user_id};
use crate::archive::member::NewOwners;

/// The options.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OwnerArgs {
    /// The user of all members: a number, or a name of this host
    #[arg(long, value_name = "USER", value_parser = user_id)]
    owner: Option<u32>,
    /// The group of all members: a number, or a name of this host
    #[arg(long, value_name = "GROUP", value_parser = group_id)]
    group: Option<u32>,
    /// The same as --owner 0 --group 0
    #[arg(long, conflicts_with_all = ["owner", "group"])]
    all_root: bool,
}

impl OwnerArgs {
    /// Returns the owners.
    pub fn owners(&self) -> NewOwners {
        let root = self.all_root.then_some(0);
        NewOwners { uid: self.owner.or(root), gid: self.group.or(root) }
    }

    /// Returns the first option that is set.
    pub fn given(&self) -> Option<&'static str> {
        [("--owner", self.owner.is_some()), ("--group", self.group.is_some()), ("--all-root", self.all_root)]
            .into_iter()
            .find_map(|(name, given)| given.then_some(name))
    }
}
