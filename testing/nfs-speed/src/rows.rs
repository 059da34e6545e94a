//! The rows: what is measured in each, who is compared, and what the seeds have of it.

use serde_json::{Value, json};

use crate::work::Work;

/// What the seeds have of a row.
pub enum Seeds {
    /// Their job of direct writes.
    Direct,
    /// What they claim of writes that are asked for the change attribute.
    Asked,
}

impl Seeds {
    /// As rows of `ivers bench` have it.
    pub fn to_json(&self) -> Value {
        let (new_over_old, source) = match self {
            Self::Direct => {
                (Some(1.09), "fio, sequential 4 KiB writes, 8 jobs, direct=1 over NFS: 1146 and 1253 KiB/s")
            }
            Self::Asked => (
                None,
                "no figure: lots of small writes over NFS that ask for the value are mostly unaffected",
            ),
        };
        json!({ "new_over_old": new_over_old, "new_over_none": null, "source": source })
    }
}

/// One row.
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What is done.
    pub work: Work,
    /// How many requests are under way at a time.
    pub depth: usize,
    /// The server that the row is about.
    pub ours: &'static str,
    /// The same as it would be with an eager counter.
    pub eager: Option<&'static str>,
    /// Others.
    pub peers: &'static [&'static str],
    /// What the seeds have of it.
    pub seeds: Option<Seeds>,
}

const fn row(name: &'static str, work: Work, depth: usize, seeds: Option<Seeds>) -> Row {
    Row { name, work, depth, ours: "ivers", eager: Some("eager"), peers: &["before", "ganesha"], seeds }
}

impl Row {
    /// Whether this server takes part in it.
    pub fn takes(&self, server: &str) -> bool {
        self.ours == server || self.eager == Some(server) || self.peers.contains(&server)
    }
}

/// All.
pub const ROWS: [Row; 12] = [
    row("nfs_write_4k", Work::Write4k, 1, None),
    row("nfs_write_4k_depth_16", Work::Write4k, 16, None),
    row("nfs_write_4k_asked", Work::Write4kAsked, 1, Some(Seeds::Asked)),
    row("nfs_write_4k_asked_depth_16", Work::Write4kAsked, 16, Some(Seeds::Asked)),
    row("nfs_write_4k_sync", Work::Write4kSync, 1, Some(Seeds::Direct)),
    row("nfs_write_4k_sync_depth_16", Work::Write4kSync, 16, Some(Seeds::Direct)),
    row("nfs_getattr", Work::GetAttr, 1, None),
    row("nfs_getattr_depth_16", Work::GetAttr, 16, None),
    row("nfs_write_1m", Work::Write1m, 4, None),
    row("nfs_read_1m", Work::Read1m, 4, None),
    // Names are durable when they are answered with ours as it comes and ganesha's on `dirsync`, and with none of the row below.
    Row {
        peers: &["before", "ganesha_dirsync", "ganesha"],
        ..row("nfs_create_unlink", Work::CreateUnlink, 1, None)
    },
    Row {
        ours: "ivers_async",
        eager: None,
        peers: &["ganesha"],
        ..row("nfs_create_unlink_async", Work::CreateUnlink, 1, None)
    },
];

/// Whether a word means a row: its name, or its beginning up to an underscore if no row is called so.
pub fn is_meant(word: &str, name: &str) -> bool {
    let is_row = ROWS.iter().any(|row| row.name == word);
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || (!is_row && rest.starts_with('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_a_row_or_what_begins_so() {
        let meant = |word: &str| ROWS.iter().filter(|row| is_meant(word, row.name)).count();
        assert_eq!(meant("nfs"), ROWS.len());
        assert_eq!((meant("nfs_write_4k"), meant("nfs_write_4k_sync")), (1, 1));
        assert_eq!((meant("nfs_write"), meant("nfs_wri")), (7, 0));
    }
}
