//! The bill of materials: which crates the program contains, as SPDX 2.3 in JSON.

use super::{Release, write as write_file};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A crate in the program.
pub struct Crate {
    pub name: String,
    pub version: String,
    pub license: String,
    pub manifest: String,
    /// Whether it comes from the registry, and not from this tree.
    pub is_foreign: bool,
    /// The identifiers of the crates that it uses.
    pub uses: Vec<String>,
}

/// The crates in the program by cargo's identifier, and the identifier of the program.
pub struct Metadata {
    pub crates: BTreeMap<String, Crate>,
    pub root: String,
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// Asks cargo for the crates that the program links: neither those of tests nor those of build scripts.
pub fn metadata() -> Result<Metadata> {
    let words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", super::GLIBC];
    let output = crate::cargo().args(words).output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let whole: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    of(&whole)
}

/// Returns the identifiers of the crates that the program links, from cargo's metadata.
#[cfg(test)]
pub fn linked(metadata: &Value) -> Result<Vec<String>> {
    Ok(of(metadata)?.crates.into_keys().collect())
}

fn of(whole: &Value) -> Result<Metadata> {
    let packages: BTreeMap<String, &Value> =
        list(whole, "packages").map(|package| (text(package, "id"), package)).collect();
    let nodes: BTreeMap<String, &Value> =
        list(&whole["resolve"], "nodes").map(|node| (text(node, "id"), node)).collect();
    let root = packages.iter().find(|(_, package)| package["name"] == "ivers").context("no package ivers")?;
    let (mut crates, mut waiting) = (BTreeMap::new(), vec![root.0.clone()]);
    while let Some(id) = waiting.pop() {
        if crates.contains_key(&id) {
            continue;
        }
        let (package, node) = (packages.get(&id).context("a package")?, nodes.get(&id).context("a node")?);
        let is_linked = |dep: &&Value| list(dep, "dep_kinds").any(|kind| kind["kind"].is_null());
        let uses: Vec<String> = list(node, "deps").filter(is_linked).map(|dep| text(dep, "pkg")).collect();
        waiting.extend(uses.iter().cloned());
        let it = Crate {
            name: text(package, "name"),
            version: text(package, "version"),
            license: text(package, "license").replace('/', " OR "),
            manifest: text(package, "manifest_path"),
            is_foreign: !package["source"].is_null(),
            uses,
        };
        crates.insert(id, it);
    }
    Ok(Metadata { root: root.0.clone(), crates })
}

/// Returns the checksums of Cargo.lock by name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = fs::read_to_string("Cargo.lock").context("Cargo.lock")?.parse()?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock: no packages")?;
    let get = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_owned());
    let rows = packages.iter().filter_map(|package| {
        Some(((get(package, "name")?, get(package, "version")?), get(package, "checksum")?))
    });
    Ok(rows.collect())
}

/// Writes the bill and returns the name of its file.
pub fn write(release: &Release, metadata: &Metadata) -> Result<String> {
    let created = super::call("date", ["-u", "-d", &format!("@{}", release.epoch), "+%Y-%m-%dT%H:%M:%SZ"])?;
    let bill = document(metadata, &release.version, created.trim(), &checksums()?);
    let name = format!("ivers-{}.spdx.json", release.version);
    write_file(&release.dir.join(&name), serde_json::to_string_pretty(&bill)? + "\n")?;
    Ok(name)
}

fn document(
    metadata: &Metadata,
    version: &str,
    created: &str,
    checksums: &BTreeMap<(String, String), String>,
) -> Value {
    let spdx_id = |it: &Crate| {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        format!("SPDXRef-{}-{}", it.name, it.version).chars().map(plain).collect::<String>()
    };
    let package = |it: &Crate| {
        let mut package = json!({
            "SPDXID": spdx_id(it),
            "name": it.name,
            "versionInfo": it.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": it.license,
            "copyrightText": "NOASSERTION",
        });
        if it.is_foreign {
            package["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{}@{}", it.name, it.version),
            }]);
        }
        if let Some(sum) = checksums.get(&(it.name.clone(), it.version.clone())) {
            package["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sum}]);
        }
        package
    };
    let root = spdx_id(&metadata.crates[&metadata.root]);
    let describes = json!({
        "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root,
    });
    let uses = metadata.crates.values().flat_map(|it| {
        let used: BTreeSet<&String> = it.uses.iter().collect();
        used.into_iter().map(move |id| {
            json!({
                "spdxElementId": spdx_id(it),
                "relationshipType": "DEPENDS_ON",
                "relatedSpdxElement": spdx_id(&metadata.crates[id]),
            })
        })
    });
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("ivers-{version}"),
        "documentNamespace": format!("https://github.com/ivers/ivers/spdx/ivers-{version}-{created}"),
        "creationInfo": {"created": created, "creators": [format!("Tool: ivers-xtask-{version}")]},
        "packages": metadata.crates.values().map(package).collect::<Vec<_>>(),
        "relationships": std::iter::once(describes).chain(uses).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_relation_names_a_package_of_the_bill() {
        let metadata = metadata().unwrap();
        let bill = document(&metadata, "0.1.0", "2026-01-01T00:00:00Z", &BTreeMap::new());
        let names: BTreeSet<&str> =
            list(&bill, "packages").map(|package| package["SPDXID"].as_str().unwrap()).collect();
        assert_eq!(names.len(), metadata.crates.len(), "two packages have one name");
        assert!(names.contains("SPDXRef-ivers-vfs-0.1.0") && names.iter().any(|it| it.contains("fuser")));
        assert!(!names.iter().any(|it| it.contains("proptest")), "a crate of tests is not in the program");
        for relation in list(&bill, "relationships").skip(1) {
            let ends = [&relation["spdxElementId"], &relation["relatedSpdxElement"]];
            assert!(ends.iter().all(|end| names.contains(end.as_str().unwrap())), "{relation}");
        }
        for package in list(&bill, "packages") {
            assert!(!package["licenseDeclared"].as_str().unwrap().is_empty(), "{package}");
        }
    }
}
