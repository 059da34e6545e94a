//! Crates: licenses, sources and Rust versions of those that are used, and the metadata of those that are
//! published.
//!
//! `cargo deny check` reads `deny.toml` and says the same, and more, where it is installed. This test needs
//! no program that takes minutes to build.

use super::root;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Licenses that the program may contain, alone or together.
const LICENSES: [&str; 8] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Zlib", "Unicode-3.0"];

/// Licenses of crates that only tests and measurements use, in addition.
const LICENSES_OF_TOOLS: [&str; 1] = ["MPL-2.0"];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// What cargo knows of the workspace and all crates that it uses on Linux.
fn metadata() -> Value {
    let words =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = Command::new("cargo").args(words).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns whether an expression of SPDX can be fulfilled with `allowed`. AND binds more than OR; an
/// exception only permits more.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.replace('/', " OR ");
    // The only parentheses in use are around a part of an AND.
    if let Some((group, rest)) = expression.strip_prefix('(').and_then(|rest| rest.split_once(") AND ")) {
        return is_allowed(group, allowed) && is_allowed(rest, allowed);
    }
    expression.split(" OR ").any(|part| {
        part.split(" AND ").all(|name| {
            let name = name.split(" WITH ").next().unwrap_or_default();
            allowed.contains(&name.trim())
        })
    })
}

#[test]
fn expressions_of_licenses_are_understood() {
    let allowed = ["MIT", "ISC"];
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-2.0 OR MIT", true),
        ("GPL-2.0/MIT", true),
        ("GPL-2.0 AND MIT", false),
        ("(GPL-2.0 OR MIT) AND ISC", true),
        ("(GPL-2.0 OR MIT) AND BSD", false),
        ("GPL-2.0 WITH exception OR MIT", true),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn crates_have_known_licenses_sources_and_rust_versions() {
    let metadata = metadata();
    let used: BTreeSet<&str> =
        list(&metadata["resolve"], "nodes").filter_map(|node| node["id"].as_str()).collect();
    let shipped = crate::dist::linked_crates(&metadata).unwrap();
    let minimum = version(include_str!("../../../Cargo.toml").split("rust-version = \"").nth(1).unwrap());
    let mut wrong = Vec::new();
    let packages =
        list(&metadata, "packages").filter(|it| it["id"].as_str().is_some_and(|id| used.contains(id)));
    let mut seen = 0;
    for package in packages {
        let name = format!("{} {}", package["name"], package["version"]);
        let license = package["license"].as_str().unwrap_or_default();
        let is_shipped = shipped.iter().any(|id| package["id"] == id.as_str());
        let of_tools = if is_shipped { &[][..] } else { &LICENSES_OF_TOOLS };
        if !is_allowed(license, &[&LICENSES, of_tools].concat()) {
            wrong.push(format!("{name}: the license {license:?} is not allowed here"));
        }
        if package["source"].as_str().is_some_and(|source| source != REGISTRY) {
            wrong.push(format!("{name}: its source is {}", package["source"]));
        }
        if package["rust_version"].as_str().is_some_and(|needed| version(needed) > minimum) {
            wrong.push(format!("{name}: requires Rust {}", package["rust_version"]));
        }
        seen += 1;
    }
    assert!(seen > 100 && shipped.len() > 50);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the first two numbers of a version.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap_or(0))
}

/// A published crate describes itself, and uses published crates of this tree only.
#[test]
fn published_crates_are_complete() {
    let metadata = metadata();
    let packages: Vec<&Value> = list(&metadata, "packages").filter(|it| it["source"].is_null()).collect();
    let is_published = |package: &&&Value| package["publish"].is_null();
    let published: BTreeSet<&str> =
        packages.iter().filter(is_published).filter_map(|it| it["name"].as_str()).collect();
    let mut wrong = Vec::new();
    for package in packages.iter().filter(is_published) {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            if package[field].is_null() {
                wrong.push(format!("{name} has no {field}"));
            }
        }
        let fields = ["keywords", "categories"].map(|field| list(package, field).count());
        if fields.iter().any(|&count| count == 0 || count > 5) {
            wrong.push(format!("{name} has no or too many keywords or categories"));
        }
        let of_tree =
            list(package, "dependencies").filter(|it| !it["path"].is_null() && it["kind"].is_null());
        for dependency in of_tree {
            if !published.contains(dependency["name"].as_str().unwrap()) || dependency["req"] == "*" {
                wrong.push(format!("{name} uses {}, which is not published", dependency["name"]));
            }
        }
    }
    assert!(published.contains("iversion") && published.contains("ivers"), "{published:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Folders of tests and of the project's own tools are not published.
#[test]
fn tools_are_not_published() {
    for package in list(&metadata(), "packages").filter(|it| it["source"].is_null()) {
        let path = package["manifest_path"].as_str().unwrap();
        let is_tool = path.contains("/testing/") || path.contains("/xtask/");
        assert_eq!(is_tool, !package["publish"].is_null(), "{path}");
    }
}

/// Otherwise each build of the fuzz targets changes the file.
#[test]
fn the_lock_file_of_the_fuzz_targets_is_complete() {
    let lock = std::fs::read_to_string(root().join("fuzz/Cargo.lock")).unwrap();
    let quoted = |line: &str| line.split('"').nth(1).unwrap_or_default().to_owned();
    let mut locked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let named = |line: &&str| line.starts_with("name = ");
        let Some(name) = package.lines().find(named) else { continue };
        let uses = package.lines().filter(|line| line.starts_with(" \""));
        let without_version = |line| quoted(line).split(' ').next().unwrap_or_default().to_owned();
        locked.insert(quoted(name), uses.map(without_version).collect());
    }
    let metadata = metadata();
    let mut compared = 0;
    for package in list(&metadata, "packages").filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap();
        let Some(locked) = locked.get(name) else { continue };
        let needed = list(package, "dependencies")
            .filter(|it| it["kind"].is_null() && it["target"].is_null() && it["optional"] == false);
        for needed in needed.map(|it| it["name"].as_str().unwrap()) {
            let how = "run \"cargo metadata --manifest-path fuzz/Cargo.toml\" and commit the file";
            assert!(locked.contains(needed), "fuzz/Cargo.lock: {name} lacks {needed}: {how}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}
