//! Documents: links, the lineage, the map of ARCHITECTURE.md.

use super::{all, prose, relative, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Targets of Markdown links within the tree.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://"))
        .collect()
}

/// Anchors of a Markdown document, by GitHub's rule.
fn anchors(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
    let headings = prose(&text).filter_map(|(_, line)| line.trim_start_matches('#').strip_prefix(' '));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|title| title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for page in all(".md") {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if target.is_empty() { page.clone() } else { page.parent().unwrap().join(target) };
            let is_known = || !link.contains(".md#") || anchors(&file).contains(anchor);
            if !file.exists() || !is_known() {
                dead.push(format!("{}: dead link {link}", relative(&page)));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn lineage_covers_the_patch_series() {
    let page = fs::read_to_string(root().join("LINEAGE.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    for patch in 1..=19 {
        let patch = format!("{patch:02}");
        let row =
            rows.iter().find(|row| row[0] == patch).unwrap_or_else(|| panic!("no row for patch {patch}"));
        let state = row.last().unwrap();
        let built = state.starts_with("built");
        assert!(
            built || state.starts_with("unbuilt") || state.starts_with("partly"),
            "patch {patch}: {state}"
        );
        assert!(
            !built || row[2..4].iter().all(|cell| cell.contains("](")),
            "patch {patch} names no code or no test"
        );
    }
    let reviewers =
        ["J. Bruce Fields", "NeilBrown", "Dave Chinner", "Theodore Ts'o", "Jan Kara", "Jeff Layton"];
    for reviewer in reviewers {
        assert!(page.contains(&format!("| {reviewer}, 2017-12-")), "no row for {reviewer}");
    }
    for figure in
        ["13.84 s", "85.6, 110, 117", "86.7 to 129", "110 MiB/s", "49.1 to 50.3", "1146 to 1253", "43.5 %"]
    {
        assert!(page.contains(figure), "the figure {figure} has no row");
    }
}

/// Every folder with a crate has a row in the map, and every row a crate.
#[test]
fn the_map_of_the_architecture_is_complete() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = page.split("\n## Map\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<&str> =
        map.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split('`').nth(1)).collect();
    let crates: BTreeSet<String> = all("Cargo.toml")
        .iter()
        .map(|manifest| relative(manifest.parent().unwrap()))
        .filter(|folder| !folder.is_empty())
        .collect();
    let named: BTreeSet<String> = rows.iter().map(|&row| row.to_owned()).collect();
    assert_eq!(named.len(), rows.len(), "a folder has two rows: {rows:?}");
    let (missing, extra): (Vec<_>, Vec<_>) =
        (crates.difference(&named).collect(), named.difference(&crates).collect());
    assert!(
        missing.is_empty() && extra.is_empty(),
        "ARCHITECTURE.md, map: without a row {missing:?}, without a crate {extra:?}"
    );
}
