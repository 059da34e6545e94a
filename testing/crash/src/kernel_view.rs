//! Compares the kernel's view of a recovered state with ours.

use crate::history::{Meta, Node, Tree, Worker, directory, read_tree};
use anyhow::{Context, ensure};
use ivers_vfs::{FileType, Timestamp, Vfs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Reads the trees of all workers.
pub(crate) fn trees(vfs: &Arc<Vfs>, histories: &[Worker]) -> ivers_vfs::Result<Vec<(usize, Tree)>> {
    histories.iter().map(|history| Ok((history.index, read_tree(vfs, history.index)?))).collect()
}

/// Checks that the kernel, mounted at `root`, shows these trees and nothing else in their directories.
pub(crate) fn compare(root: &Path, trees: &[(usize, Tree)]) -> anyhow::Result<()> {
    for (worker, tree) in trees {
        let top = root.join(directory(*worker));
        let mut names = BTreeSet::new();
        list(&top, "", &mut names).with_context(|| format!("cannot list {}", directory(*worker)))?;
        let ours: BTreeSet<String> = tree.keys().cloned().collect();
        ensure!(names == ours, "{}: names {names:?}, and we show {ours:?}", directory(*worker));
        for (path, node) in tree {
            let found = node_at(&top.join(path), node).with_context(|| format!("cannot read {path}"))?;
            ensure!(
                found == *node,
                "{}/{path}: {:?} of {} bytes, and we show {:?} of {} bytes{}",
                directory(*worker),
                (found.id, &found.meta, found.times),
                found.data.len(),
                (node.id, &node.meta, node.times),
                node.data.len(),
                if found.data == node.data { "" } else { "; the contents differ" },
            );
        }
    }
    Ok(())
}

fn list(dir: &Path, path: &str, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    names.insert(path.to_owned());
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = if path.is_empty() { name } else { format!("{path}/{name}") };
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &below, names)?;
        } else {
            names.insert(below);
        }
    }
    Ok(())
}

/// Reads a node through the kernel. The generation and the access time are taken from ours: the kernel does
/// not show the first, and reading changes the second.
fn node_at(path: &Path, ours: &Node) -> anyhow::Result<Node> {
    let stat = fs::symlink_metadata(path)?;
    let regular = stat.mode() & 0o170000 == FileType::Regular.mode_bits();
    let data = if regular { fs::read(path)? } else { Vec::new() };
    let mut xattrs = BTreeMap::new();
    for name in xattr::list(path)? {
        if let Some(value) = xattr::get(path, &name)? {
            xattrs.insert(name.into_encoded_bytes(), value);
        }
    }
    let time = |sec, nsec| Timestamp { sec, nsec: nsec as u32 };
    Ok(Node {
        id: (stat.ino(), ours.id.1),
        meta: Meta {
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            nlink: u32::try_from(stat.nlink())?,
            xattrs,
        },
        times: (time(stat.mtime(), stat.mtime_nsec()), time(stat.ctime(), stat.ctime_nsec())),
        atime: ours.atime,
        data: data.into(),
    })
}
