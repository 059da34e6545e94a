//! Documents: links, the lineage, the map of ARCHITECTURE.md.

use super::{all, files, prose, relative, root};
use crate::book;
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

/// The book has every page of `docs`, and only pages that exist (see `links_lead_somewhere`).
#[test]
fn the_contents_of_the_book_are_complete() {
    let contents = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: Vec<String> = book::pages(&contents).iter().map(|page| page.display().to_string()).collect();
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "docs/SUMMARY.md lists a page twice: {listed:?}");
    let mut pages = Vec::new();
    files(&root().join("docs"), ".md", &mut pages);
    let pages = pages.iter().map(|page| relative(page)).filter(|page| page != "docs/SUMMARY.md");
    let missing: Vec<String> = pages.filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
}

/// A newcomer reads all of it.
#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (words, lines) = (readme.split_whitespace().count(), readme.lines().count());
    assert!(
        words < 1000 && lines < 150,
        "README.md has {words} words (below 1,000), {lines} lines (below 150)"
    );
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
