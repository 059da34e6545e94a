//! The table of exports, and the pseudo-filesystem above them (RFC 7530 section 7.3).
//!
//! A table is immutable: a new configuration creates a new one, and requests in progress finish with the old
//! one. Handles have the same meaning in both.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;

use ivers_nfs4::types::Fsid;
use siphasher::sip::SipHasher24;
use thiserror::Error;

use super::config::ExportConfig;
use super::handle::Handles;
use super::policy::Policy;

/// Exports that conflict.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TableError {
    /// Two exports have the same name.
    #[error("two exports are named {0}: rename one of them")]
    DuplicateName(String),
    /// One export is below another.
    #[error("export {inner} is below export {outer} and would hide names in it: rename one of them")]
    Nested {
        /// The inner export.
        inner: String,
        /// The outer export.
        outer: String,
    },
    /// Two exports are the same filesystem.
    #[error("exports {0} and {1} are the same filesystem: export it once")]
    SameFilesystem(String, String),
}

/// An export; `F` is its filesystem.
#[derive(Debug)]
pub struct Export<F> {
    /// Identity in filehandles.
    pub identity: u32,
    /// Path in the pseudo-filesystem.
    pub path: String,
    /// Number of its mount point in the pseudo-root: `mounted_on_fileid` of its root.
    pub mounted_on: u64,
    /// Access rules.
    pub policy: Policy,
    /// The filesystem.
    pub filesystem: F,
}

impl<F> Export<F> {
    /// Returns its `fsid`. It differs from that of the pseudo-root, because no identity is 0.
    pub fn fsid(&self) -> Fsid {
        Fsid { major: u64::from(self.identity), minor: 0 }
    }
}

/// The target of a name in the pseudo-root.
#[derive(Debug)]
pub enum Node<F> {
    /// A directory of the pseudo-root.
    Directory(u64),
    /// The root of an export.
    Export(Arc<Export<F>>),
}

impl<F> Clone for Node<F> {
    fn clone(&self) -> Self {
        match self {
            Self::Directory(number) => Self::Directory(*number),
            Self::Export(export) => Self::Export(export.clone()),
        }
    }
}

#[derive(Debug)]
struct Directory<F> {
    parent: u64,
    entries: BTreeMap<String, Node<F>>,
    /// All exports below; they decide to whom the directory is visible.
    below: Vec<Arc<Export<F>>>,
}

/// The table of exports.
#[derive(Debug)]
pub struct Table<F> {
    exports: HashMap<u32, Arc<Export<F>>>,
    directories: HashMap<u64, Directory<F>>,
    root: Node<F>,
    change: u64,
}

/// `fsid` of the pseudo-root.
pub const PSEUDO_FSID: Fsid = Fsid { major: 0, minor: 0 };

impl<F> Table<F> {
    /// Creates a table. `change` must differ for a different [`digest`].
    pub fn new(
        handles: &Handles,
        exports: Vec<(ExportConfig, u32, F)>,
        change: u64,
    ) -> Result<Self, TableError> {
        let root = handles.pseudo("/");
        let mut table = Self {
            exports: HashMap::new(),
            directories: HashMap::new(),
            root: Node::Directory(root),
            change,
        };
        let directory = |parent| Directory { parent, entries: BTreeMap::new(), below: Vec::new() };
        table.directories.insert(root, directory(root));
        let mut paths: BTreeMap<String, ()> = BTreeMap::new();
        for (config, identity, filesystem) in exports {
            let path = config.name.clone();
            if paths.insert(path.clone(), ()).is_some() {
                return Err(TableError::DuplicateName(path));
            }
            for other in paths.keys().filter(|other| **other != path) {
                for (outer, inner) in [(other, &path), (&path, other)] {
                    let rest = inner.strip_prefix(outer.trim_end_matches('/'));
                    if rest.is_some_and(|rest| rest.starts_with('/')) {
                        return Err(TableError::Nested { inner: inner.clone(), outer: outer.clone() });
                    }
                }
            }
            let export = Arc::new(Export {
                identity,
                mounted_on: handles.pseudo(&path),
                policy: Policy::new(&config),
                path: path.clone(),
                filesystem,
            });
            if let Some(other) = table.exports.insert(identity, export.clone()) {
                return Err(TableError::SameFilesystem(other.path.clone(), path));
            }
            table.insert(handles, &path, &export, directory);
        }
        Ok(table)
    }

    fn insert(
        &mut self,
        handles: &Handles,
        path: &str,
        export: &Arc<Export<F>>,
        directory: impl Fn(u64) -> Directory<F>,
    ) {
        let Some((above, name)) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty()) else {
            self.directories.clear();
            self.root = Node::Export(export.clone());
            return;
        };
        let (mut at, mut so_far) = (handles.pseudo("/"), String::new());
        let enter = |directories: &mut HashMap<u64, Directory<F>>, at: u64| {
            directories.entry(at).or_insert_with(|| directory(at)).below.push(export.clone());
        };
        enter(&mut self.directories, at);
        for label in above.split('/').skip(1) {
            so_far = format!("{so_far}/{label}");
            let number = handles.pseudo(&so_far);
            if let Some(parent) = self.directories.get_mut(&at) {
                parent.entries.entry(label.to_owned()).or_insert(Node::Directory(number));
            }
            self.directories.entry(number).or_insert_with(|| directory(at));
            enter(&mut self.directories, number);
            at = number;
        }
        if let Some(parent) = self.directories.get_mut(&at) {
            parent.entries.insert(name.to_owned(), Node::Export(export.clone()));
        }
    }

    /// Returns the target of PUTROOTFH: a directory of the pseudo-root, or the root of the export `/`.
    pub fn root(&self) -> Node<F> {
        self.root.clone()
    }

    /// Returns the export with this identity. `None` if it is no longer exported (NFS4ERR_STALE).
    pub fn export(&self, identity: u32) -> Option<&Arc<Export<F>>> {
        self.exports.get(&identity)
    }

    /// Returns all exports.
    pub fn exports(&self) -> impl Iterator<Item = &Arc<Export<F>>> {
        self.exports.values()
    }

    /// Returns whether the directory exists. If not, its handle is NFS4ERR_STALE.
    pub fn has_directory(&self, number: u64) -> bool {
        self.directories.contains_key(&number)
    }

    /// Returns the change attribute of the pseudo-root's directories. It grows with each new table.
    pub fn change(&self) -> u64 {
        self.change
    }

    /// Returns the parent of a directory of the pseudo-root. `None` for the root or an unknown directory.
    pub fn parent(&self, number: u64) -> Option<u64> {
        self.directories.get(&number).map(|directory| directory.parent).filter(|parent| *parent != number)
    }

    /// Returns the directory of the pseudo-root that contains an export. `None` if the export is the root.
    pub fn above(&self, handles: &Handles, export: &Export<F>) -> Option<u64> {
        let (above, name) = export.path.rsplit_once('/')?;
        (!name.is_empty()).then(|| handles.pseudo(if above.is_empty() { "/" } else { above }))
    }

    /// Looks up a name. Hides exports from addresses that have no access.
    pub fn lookup(&self, number: u64, name: &str, address: IpAddr) -> Option<Node<F>> {
        let node = self.directories.get(&number)?.entries.get(name)?;
        self.visible(node, address).then(|| node.clone())
    }

    /// Returns the export that [`Self::lookup`] hides from this address.
    pub fn hidden(&self, number: u64, name: &str, address: IpAddr) -> Option<&Arc<Export<F>>> {
        match self.directories.get(&number)?.entries.get(name)? {
            node @ Node::Export(export) if !self.visible(node, address) => Some(export),
            _ => None,
        }
    }

    /// Returns the entries that are visible to this address. Their order is stable while [`Self::change`]
    /// stays the same.
    pub fn entries(&self, number: u64, address: IpAddr) -> Vec<(&str, Node<F>)> {
        let entries = self.directories.get(&number).map(|directory| &directory.entries);
        entries
            .into_iter()
            .flatten()
            .filter(|(_, node)| self.visible(node, address))
            .map(|(name, node)| (name.as_str(), node.clone()))
            .collect()
    }

    /// Returns whether a node is visible to an address.
    fn visible(&self, node: &Node<F>, address: IpAddr) -> bool {
        match node {
            Node::Export(export) => export.policy.is_visible_to(address),
            Node::Directory(number) => self.directories.get(number).is_some_and(|directory| {
                directory.below.iter().any(|export| export.policy.is_visible_to(address))
            }),
        }
    }
}

/// Returns a digest of names, identities and access rules. [`Table::change`] must differ if it differs.
pub fn digest<'a>(exports: impl IntoIterator<Item = (&'a ExportConfig, u32)>) -> u64 {
    let mut each: Vec<String> =
        exports.into_iter().map(|(config, identity)| format!("{identity} {config:?}\n")).collect();
    each.sort();
    let mut hasher = SipHasher24::new();
    each.iter().for_each(|text| hasher.write(text.as_bytes()));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, more: &str) -> ExportConfig {
        ExportConfig::from_flag(&format!("image,name={name}{more}")).unwrap()
    }

    fn table(names: &[(&str, &str)]) -> Result<Table<usize>, TableError> {
        let exports = names.iter().enumerate();
        let exports = exports.map(|(at, (name, more))| (export(name, more), at as u32 + 1, at)).collect();
        Table::new(&handles(), exports, 1)
    }

    fn handles() -> Handles {
        Handles::new([3; 16])
    }

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Returns all visible paths; exports with their filesystem.
    fn walk(table: &Table<usize>, address: IpAddr) -> Vec<String> {
        let mut found = Vec::new();
        let Node::Directory(root) = table.root() else { return vec!["root".into()] };
        let mut left = vec![(String::new(), root)];
        while let Some((path, number)) = left.pop() {
            assert!(table.has_directory(number));
            for (name, node) in table.entries(number, address) {
                assert!(table.lookup(number, name, address).is_some());
                let path = format!("{path}/{name}");
                match node {
                    Node::Directory(below) => {
                        assert_eq!(table.parent(below), Some(number));
                        assert_eq!(below, handles().pseudo(&path));
                        left.push((path.clone(), below));
                        found.push(path);
                    }
                    Node::Export(export) => {
                        assert_eq!(table.above(&handles(), &export), Some(number));
                        assert_eq!(export.mounted_on, handles().pseudo(&path));
                        assert_eq!(table.export(export.identity).unwrap().filesystem, export.filesystem);
                        found.push(format!("{path}={}", export.filesystem));
                    }
                }
            }
        }
        assert_eq!(table.parent(root), None);
        found.sort();
        found
    }

    #[test]
    fn directories_of_the_pseudo_root_lead_to_the_exports() {
        let some = table(&[("/data/a", ""), ("/data/b", ""), ("/x", ""), ("/deep/er/est", "")]).unwrap();
        let paths = ["/data", "/data/a=0", "/data/b=1", "/deep", "/deep/er", "/deep/er/est=3", "/x=2"];
        assert_eq!(walk(&some, LOOPBACK), paths);
        let Node::Directory(root) = some.root() else { panic!("a directory") };
        assert!(
            some.lookup(root, "data/a", LOOPBACK).is_none()
                && some.lookup(root, "nothing", LOOPBACK).is_none()
        );
        assert!(
            some.hidden(root, "x", LOOPBACK).is_none() && some.hidden(root, "nothing", LOOPBACK).is_none()
        );
        assert!(
            some.lookup(1, "x", LOOPBACK).is_none() && some.parent(1).is_none() && some.export(9).is_none()
        );
        assert_eq!(walk(&table(&[]).unwrap(), LOOPBACK), [""; 0]);
        let one = table(&[("/", "")]).unwrap();
        let Node::Export(export) = one.root() else { panic!("the export itself") };
        assert_eq!(one.above(&handles(), &export), None);
        assert_ne!(export.fsid(), PSEUDO_FSID);
    }

    #[test]
    fn an_export_is_invisible_without_access() {
        let table = table(&[
            ("/a/mine", ""),
            ("/a/theirs", ",clients=192.0.2.1"),
            ("/b/c/all", ",clients=0.0.0.0/0"),
        ]);
        let table = table.unwrap();
        let hidden = table.hidden(handles().pseudo("/a"), "theirs", LOOPBACK);
        assert_eq!(hidden.map(|export| &*export.path), Some("/a/theirs"));
        assert_eq!(walk(&table, LOOPBACK), ["/a", "/a/mine=0", "/b", "/b/c", "/b/c/all=2"]);
        assert_eq!(walk(&table, [192, 0, 2, 1].into()), ["/a", "/a/theirs=1", "/b", "/b/c", "/b/c/all=2"]);
        assert_eq!(walk(&table, [192, 0, 2, 2].into()), ["/b", "/b/c", "/b/c/all=2"]);
        assert_eq!(walk(&table, "2001:db8::1".parse().unwrap()), [""; 0]);
    }

    #[test]
    fn nested_and_duplicate_exports_are_refused() {
        let nested = |inner: &str, outer: &str| {
            Err(TableError::Nested { inner: inner.to_owned(), outer: outer.to_owned() })
        };
        let result = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name, "")).collect();
            table(&names).map(|_| ())
        };
        assert_eq!(result(&["/a", "/a"]), Err(TableError::DuplicateName("/a".into())));
        assert_eq!(result(&["/a", "/a/b"]), nested("/a/b", "/a"));
        assert_eq!(result(&["/a/b/c", "/a"]), nested("/a/b/c", "/a"));
        assert_eq!(result(&["/a", "/"]), nested("/a", "/"));
        assert_eq!(result(&["/", "/a"]), nested("/a", "/"));
        assert_eq!(result(&["/a", "/ab", "/a.b"]), Ok(()));
        let same = Table::new(&handles(), vec![(export("/a", ""), 5, 0), (export("/b", ""), 5, 0)], 1);
        assert_eq!(same.unwrap_err(), TableError::SameFilesystem("/a".into(), "/b".into()));
    }

    #[test]
    fn a_different_table_has_a_different_digest() {
        let of = |names: &[(&str, &str, u32)]| {
            let configs: Vec<_> = names.iter().map(|(name, more, id)| (export(name, more), *id)).collect();
            digest(configs.iter().map(|(config, id)| (config, *id)))
        };
        let base = of(&[("/a", "", 1), ("/b", "", 2)]);
        assert_eq!(of(&[("/b", "", 2), ("/a", "", 1)]), base);
        for other in [
            of(&[("/a", "", 1)]),
            of(&[("/a", "", 1), ("/c", "", 2)]),
            of(&[("/a", "", 1), ("/b", "", 3)]),
            of(&[("/a", ",clients=192.0.2.1", 1), ("/b", "", 2)]),
        ] {
            assert_ne!(other, base);
        }
    }
}
