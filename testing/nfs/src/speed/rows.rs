//! The rows of the report: the work, the servers to compare, and the patch series' figure.

use serde_json::{Value, json};

use crate::work::Work;

/// The statement of the patch series of 2017 about the same work.
pub enum Reference {
    /// The cover letter's benchmark of direct writes.
    DirectWrites,
    /// The review's statement about small writes that query the change attribute.
    QueriedWrites,
}

impl Reference {
    /// Returns the `patch_series` object of a row (docs/json.md).
    pub fn to_json(&self) -> Value {
        let (new_over_old, source) = match self {
            Self::DirectWrites => {
                (Some(1.09), "fio, sequential 4 KiB writes, 8 jobs, direct=1 over NFS: 1146 and 1253 KiB/s")
            }
            Self::QueriedWrites => (
                None,
                "no figure: lots of small writes over NFS that ask for the value are mostly unaffected",
            ),
        };
        json!({ "new_over_old": new_over_old, "new_over_none": null, "source": source })
    }
}

/// One row of the report.
pub struct Row {
    /// The name of the row.
    pub name: &'static str,
    /// The requests.
    pub work: Work,
    /// The number of requests in flight.
    pub depth: usize,
    /// The server that the others are compared with.
    pub ours: &'static str,
    /// The server `ours` with an eager counter.
    pub eager: Option<&'static str>,
    /// Other servers.
    pub peers: &'static [&'static str],
    /// The statement of the patch series.
    pub reference: Option<Reference>,
}

const fn row(name: &'static str, work: Work, depth: usize, reference: Option<Reference>) -> Row {
    Row { name, work, depth, ours: "ivers", eager: Some("eager"), peers: &["before", "ganesha"], reference }
}

impl Row {
    /// Returns whether the row measures this server.
    pub fn includes(&self, server: &str) -> bool {
        self.ours == server || self.eager == Some(server) || self.peers.contains(&server)
    }
}

/// All rows.
pub const ROWS: [Row; 12] = [
    row("nfs_write_4k", Work::Write4k, 1, None),
    row("nfs_write_4k_depth_16", Work::Write4k, 16, None),
    row("nfs_write_4k_asked", Work::Write4kQueried, 1, Some(Reference::QueriedWrites)),
    row("nfs_write_4k_asked_depth_16", Work::Write4kQueried, 16, Some(Reference::QueriedWrites)),
    row("nfs_write_4k_sync", Work::Write4kSync, 1, Some(Reference::DirectWrites)),
    row("nfs_write_4k_sync_depth_16", Work::Write4kSync, 16, Some(Reference::DirectWrites)),
    row("nfs_getattr", Work::GetAttr, 1, None),
    row("nfs_getattr_depth_16", Work::GetAttr, 16, None),
    row("nfs_write_1m", Work::Write1m, 4, None),
    row("nfs_read_1m", Work::Read1m, 4, None),
    // `ivers` and `ganesha_dirsync` make names durable before they reply. The servers of the next row do not.
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

/// Returns whether `word` selects the row `name`. A word that is no row's name selects all rows that have it
/// as prefix, up to an underscore.
pub fn selects(word: &str, name: &str) -> bool {
    let is_row = ROWS.iter().any(|row| row.name == word);
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || (!is_row && rest.starts_with('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_selects_one_row_or_all_with_a_prefix() {
        let selected = |word: &str| ROWS.iter().filter(|row| selects(word, row.name)).count();
        assert_eq!(selected("nfs"), ROWS.len());
        assert_eq!((selected("nfs_write_4k"), selected("nfs_write_4k_sync")), (1, 1));
        assert_eq!((selected("nfs_write"), selected("nfs_wri")), (7, 0));
    }
}
