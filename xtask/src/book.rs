//! `cargo xtask book`: the documents as a book.
//!
//! A page of `docs` may link to any file of the tree. mdbook knows only files below one folder. So the pages
//! are copied to a folder of their own, and links to files that are no pages lead to the repository.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Component, Path, PathBuf};

const REPOSITORY: &str = "https://github.com/ivers/ivers/blob/main";
const PLACE: &str = "target/book-pages";

/// Returns the path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, part| {
        match part {
            Component::ParentDir => drop(whole.pop()),
            Component::CurDir => {}
            other => whole.push(other),
        }
        whole
    })
}

/// Returns the text with the targets of its links changed by `change`.
pub fn with_targets(text: &str, change: impl Fn(&str) -> String) -> String {
    let mut parts = text.split("](");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole += "](";
        match part.split_once(')') {
            Some((target, rest)) => whole = whole + &change(target) + ")" + rest,
            None => whole += part,
        }
    }
    whole
}

/// Returns the target of a link of `page` for the book.
fn target_in_book(page: &Path, target: &str, pages: &[PathBuf]) -> String {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, it)| (file, Some(it)));
    if file.is_empty() || target.contains("://") {
        return target.to_owned();
    }
    let path = normal(&page.parent().unwrap_or(Path::new("")).join(file));
    if pages.contains(&path) {
        // mdbook writes a README.md as index.html.
        return match target.split_once("README.md") {
            Some((before, after)) => format!("{before}index.md{after}"),
            None => target.to_owned(),
        };
    }
    let anchor = anchor.map(|it| format!("#{it}")).unwrap_or_default();
    format!("{REPOSITORY}/{}{anchor}", path.display())
}

/// Returns the pages and pictures that the table of contents, a page of `docs`, lists.
pub fn pages(contents: &str) -> Vec<PathBuf> {
    let links = contents.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(target, _)| normal(&Path::new("docs").join(target))).collect()
}

fn copy_pages(root: &Path, place: &Path) -> Result<()> {
    let contents = fs::read_to_string(root.join("docs/SUMMARY.md")).context("docs/SUMMARY.md")?;
    let mut pages = pages(&contents);
    let text_pages = pages.len();
    pages.push("docs/results/performance.svg".into());
    for (at, page) in pages.iter().enumerate() {
        let context = || page.display().to_string();
        let to = place.join(page);
        fs::create_dir_all(to.parent().unwrap_or(place)).with_context(context)?;
        if at < text_pages {
            let text = fs::read_to_string(root.join(page)).with_context(context)?;
            fs::write(to, with_targets(&text, |target| target_in_book(page, target, &pages)))
        } else {
            fs::copy(root.join(page), to).map(drop)
        }
        .with_context(context)?;
    }
    let moved =
        with_targets(&contents, |target| normal(&Path::new("docs").join(target)).display().to_string());
    fs::write(place.join("SUMMARY.md"), moved).context("SUMMARY.md")
}

/// Builds the book in `target/book`.
pub fn book() -> bool {
    let place = Path::new(PLACE);
    let _ = fs::remove_dir_all(place);
    if let Err(error) = copy_pages(Path::new("."), place) {
        eprintln!("xtask: the pages of the book: {error:#}");
        return false;
    }
    let built = crate::run("book", "mdbook", &["build"], &[]);
    if built {
        println!("xtask: target/book/index.html");
    } else {
        eprintln!("xtask: mdbook is installed by `cargo install --locked mdbook`");
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_into_the_book_or_to_the_repository() {
        let pages = ["docs/a.md", "docs/b/README.md", "SECURITY.md"].map(PathBuf::from);
        let page = Path::new("docs/a.md");
        let cases = [
            ("../SECURITY.md#report", "../SECURITY.md#report".to_owned()),
            ("b/README.md#c", "b/index.md#c".to_owned()),
            ("#here", "#here".to_owned()),
            ("https://example.org", "https://example.org".to_owned()),
            ("../cli/src/main.rs", format!("{REPOSITORY}/cli/src/main.rs")),
            ("../README.md#a", format!("{REPOSITORY}/README.md#a")),
        ];
        for (target, expected) in cases {
            assert_eq!(target_in_book(page, target, &pages), expected);
        }
        assert_eq!(with_targets("[a](b) and [c](d).", str::to_uppercase), "[a](B) and [c](D).");
    }
}
