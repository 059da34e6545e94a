//! The order of the top modules of a crate: each uses lower ones only, so there is no cycle.

use std::fs;
use std::path::Path;

use super::{files, root};

/// The first names of the paths below the module `root` (`crate::` for the crate) that `text` uses. `depth`
/// is the number of `super` from the module of the text to `root`. Comments and unit tests do not count.
fn root_names(text: &str, root: &str, depth: usize) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<&str> =
        code.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect();
    let code = code.join("\n");
    let from_super = "super::".repeat(depth);
    let starts = [root, &from_super].map(|prefix| {
        let at = code.match_indices(prefix);
        at.filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)))
            .map(|(at, found)| at + found.len())
            .collect::<Vec<_>>()
    });
    starts
        .concat()
        .into_iter()
        .flat_map(|at| first_names(&code[at..]))
        .filter(|name| name != "super")
        .collect()
}

/// `a` of `a::b`; `a` and `c` of `{a::b, c::{d, e}}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// What is wrong with the modules of `source`, the `src` folder of a crate: a module that uses one above it,
/// or one that `from_low_to_high` does not list.
pub fn violations(source: &Path, from_low_to_high: &[&str]) -> Vec<String> {
    violations_in(source, "", from_low_to_high)
}

/// As [`violations`], for the modules in `folder`, a path below `source`.
fn violations_in(source: &Path, folder: &str, from_low_to_high: &[&str]) -> Vec<String> {
    let root = format!("crate/{folder}").trim_end_matches('/').replace('/', "::") + "::";
    let source = &source.join(folder);
    let mut found = Vec::new();
    let mut sources = Vec::new();
    files(source, ".rs", &mut sources);
    assert!(!sources.is_empty(), "{}: no source", source.display());
    for file in sources {
        let inside = file.strip_prefix(source).expect("the file is in the folder").with_extension("");
        let mut path: Vec<_> = inside.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        if path.last().is_some_and(|last| last == "mod") {
            path.pop();
        }
        if path.is_empty() || path == ["lib"] || path == ["main"] || path.iter().any(|part| part == "tests") {
            continue;
        }
        let height = |name: &str| from_low_to_high.iter().position(|module| *module == name);
        let Some(own) = height(&path[0]) else {
            found.push(format!("{}: module {} has no place in the order", file.display(), path[0]));
            continue;
        };
        for name in root_names(&fs::read_to_string(&file).unwrap(), &root, path.len()) {
            match height(&name) {
                Some(other) if other <= own => {}
                Some(_) => {
                    found.push(format!("{}: {} uses {name}, which is above it", file.display(), path[0]))
                }
                None => found.push(format!("{}: {root}{name} is no module in the order", file.display())),
            }
        }
    }
    found
}

#[test]
fn modules_of_nfsd_use_only_lower_modules() {
    let order = ["net", "rpc", "exports", "state", "stable", "compound", "ops", "executor", "server"];
    let found = violations(&root().join("serve/nfsd/src"), &order);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn modules_of_cli_use_only_lower_modules() {
    let orders = [
        ("", "state_format output arguments process file_info image commands command_line"),
        ("output", "format failure print progress log save"),
        (
            "image",
            "open_options formats foreign_formats mount_options sandbox unmount_status image_lock open \
             cycle_guard directory channel process",
        ),
        (
            "commands",
            "stat ls cat tree info mkfs unmount changed measure cp mount serve stats fuse2fs \
             manpages image_process",
        ),
        ("commands/changed", "saved_state walk"),
        ("commands/cp", "stream reader writer"),
        ("commands/measure", "policy storage protocol host image"),
        ("commands/mount", "help args measurement protocol worker background"),
        (
            "commands/serve",
            "help config_file args config_files helper plan exports reload stats stats_server notify",
        ),
    ];
    for (folder, order) in orders {
        let order: Vec<_> = order.split_whitespace().collect();
        let found = violations_in(&root().join("cli/src"), folder, &order);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
    let swapped = violations_in(&root().join("cli/src"), "commands/cp", &["reader", "stream", "writer"]);
    assert!(
        swapped.iter().any(|line| line.ends_with("reader uses stream, which is above it")),
        "{swapped:?}"
    );
}

#[test]
fn upward_and_unlisted_modules_are_found() {
    let source = root().join("serve/nfsd/src");
    let swapped = ["net", "rpc", "exports", "state", "stable", "ops", "compound", "executor", "server"];
    let found = violations(&source, &swapped);
    assert!(found.iter().any(|line| line.ends_with("ops uses compound, which is above it")), "{found:?}");
    let missing = violations(&source, &["net"]);
    assert!(missing.iter().any(|line| line.ends_with("module ops has no place in the order")), "{missing:?}");
}

#[test]
fn paths_from_the_root_are_found() {
    let text = "use crate::{a::b, c::{d, e},\n    f};\n// crate::comment\n\
                fn g() { $crate::h(); crate::i::j() }\n\
                use super::super::k;\nuse super::l;\n#[cfg(test)]\nmod tests { use crate::m; }";
    let mut names = root_names(text, "crate::", 2);
    names.sort();
    assert_eq!(names, ["a", "c", "f", "i", "k"]);
    assert_eq!(root_names("use super::{a, b::c};", "crate::", 1), ["a", "b"]);
}
