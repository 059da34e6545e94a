//! The documents of a package, whose links lead somewhere.

use super::{copy, write};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Documents beside those in `docs`.
const GUIDES: [&str; 6] =
    ["README.md", "SECURITY.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LINEAGE.md"];

/// Returns the target of a link in a document of this directory, as a path from the top of the tree.
fn from_top(dir: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in dir.join(target).components() {
        if part == Component::ParentDir {
            path.pop();
        } else if part != Component::CurDir {
            path.push(part);
        }
    }
    path
}

/// Replaces links to files that are not `present` by links into the repository.
fn relink(text: &str, dir: &Path, present: &BTreeSet<PathBuf>, repository: &str) -> String {
    let mut parts = text.split("](");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        let (target, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
        result += "](";
        let is_elsewhere = target.is_empty() || target.contains(':');
        let path = from_top(dir, target);
        if is_elsewhere || present.contains(&path) {
            result += link;
        } else {
            result += &format!("{repository}/{}{anchor}", path.display());
        }
        if part.contains(')') {
            result.push(')');
        }
        result += rest;
    }
    result
}

/// Copies the documents to `to`. A link to a file that is not among them leads to `repository`, an address of
/// the tree.
pub(super) fn copy_documents(to: &Path, repository: &str) -> Result<()> {
    let mut present: BTreeSet<PathBuf> = GUIDES.iter().map(PathBuf::from).collect();
    for dir in ["docs", "docs/results", "docs/paper-drivers", "docs/examples"] {
        for entry in fs::read_dir(dir).with_context(|| dir.to_owned())? {
            let path = entry?.path();
            if path.is_file() {
                present.insert(path);
            }
        }
    }
    ensure!(present.contains(Path::new("docs/limits.md")), "docs is incomplete");
    for path in &present {
        // Examples have a place of their own.
        if path.starts_with("docs/examples") {
            continue;
        }
        if path.extension().is_some_and(|ending| ending == "md") {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let dir = path.parent().unwrap_or(Path::new(""));
            write(&to.join(path), relink(&text, dir, &present, repository))?;
        } else {
            copy(path, &to.join(path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_documents_lead_to_the_repository() {
        let present = BTreeSet::from(["docs/limits.md".into(), "README.md".into()]);
        let relink = |text| relink(text, Path::new("docs"), &present, "https://example.org/v1");
        for kept in
            ["[a](limits.md#b) c", "[a](../README.md)", "[a](#b)", "[a](https://example.net/x)", "no link ]("]
        {
            assert_eq!(relink(kept), kept);
        }
        assert_eq!(relink("[a](../fs/x.rs#L1)."), "[a](https://example.org/v1/fs/x.rs#L1).");
        assert_eq!(
            relink("[a](b.md) [c](limits.md)"),
            "[a](https://example.org/v1/docs/b.md) [c](limits.md)"
        );
    }
}
