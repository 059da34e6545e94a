//! Trees that mkfs.xfs makes from a protofile, without a kernel: every kind of image, versions 4 and 5.

use crate::common::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// A tree as a protofile, and what must be found.
struct Proto {
    text: String,
    expected: Tree,
    /// The directories that are open: path and links.
    open: Vec<(String, u64)>,
}

impl Proto {
    fn new() -> Self {
        Self {
            text: "/\n0 0\nd--755 0 0\n".into(),
            expected: BTreeMap::new(),
            open: vec![(String::new(), 2)],
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.open.last().unwrap().0)
    }

    fn expect(&mut self, name: &str, mode: u32, owner: (u32, u32), rdev: u64, content: &[u8], size: u64) {
        let (times, xattrs) = (None, Vec::new());
        let seen = Seen { mode, owner, links: 1, size, rdev, times, content, xattrs };
        self.expected.insert(self.path(name), seen.line());
    }

    fn file(&mut self, name: &str, mode: &str, bits: u32, owner: (u32, u32), source: &Path) {
        let content = std::fs::read(source).unwrap();
        writeln!(self.text, "{name} {mode} {} {} {}", owner.0, owner.1, source.display()).unwrap();
        self.expect(name, 0o100000 | bits, owner, 0, &content, content.len() as u64);
    }

    fn link(&mut self, name: &str, target: &str) {
        writeln!(self.text, "{name} l--777 3 4 {target}").unwrap();
        self.expect(name, 0o120777, (3, 4), 0, target.as_bytes(), target.len() as u64);
    }

    fn node(&mut self, name: &str, letter: char, kind: u32, numbers: (u64, u64)) {
        let (major, minor) = numbers;
        let text = if "bc".contains(letter) { format!("{major} {minor}") } else { String::new() };
        writeln!(self.text, "{name} {letter}--600 0 0 {text}").unwrap();
        self.expect(name, kind | 0o600, (0, 0), major << 8 | minor, b"", 0);
    }

    fn enter(&mut self, name: &str) {
        writeln!(self.text, "{name} d-g750 5 6").unwrap();
        self.open.last_mut().unwrap().1 += 1;
        let path = self.path(name);
        self.open.push((path, 2));
    }

    fn leave(&mut self) {
        writeln!(self.text, "$").unwrap();
        let (path, links) = self.open.pop().unwrap();
        if !self.open.is_empty() {
            let (mode, owner) = (0o042750, (5, 6));
            let (times, xattrs) = (None, Vec::new());
            let seen = Seen { mode, owner, links, size: 0, rdev: 0, times, content: b"", xattrs };
            self.expected.insert(path, seen.line());
        }
    }
}

fn tree_of(dir: &Path, names: usize) -> Proto {
    let mut proto = Proto::new();
    let source = |name: &str, len: usize| {
        let path = dir.join(name);
        let data: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, data).unwrap();
        path
    };
    let (empty, small, large) = (source("empty", 0), source("small", 777), source("large", 3_000_001));
    proto.file("large", "-u-755", 0o4755, (1000, 1001), &large);
    proto.file("small", "--g711", 0o2711, (70_000, 80_000), &small);
    proto.link("short", "target");
    // In version 4 with small inodes it has a block. mkfs.xfs 6.1 writes such blocks without a header also in
    // version 5, which xfs_repair finds: there `kernel.rs` tests them.
    proto.link("long", &"t/".repeat(100));
    proto.node("null", 'c', 0o020000, (1, 3));
    proto.node("disk", 'b', 0o060000, (8, 17));
    proto.node("pipe", 'p', 0o010000, (0, 0));
    // Directories of all forms: short, block, leaf, node.
    for count in [0, 3, 40, 300, names] {
        proto.enter(&format!("d{count}"));
        for number in 0..count {
            let tail = "x".repeat(number * 7 % 60);
            proto.file(&format!("file-{number}-{tail}"), "---640", 0o640, (0, number as u32), &empty);
        }
        proto.enter("below");
        proto.file("file", "---400", 0o400, (0, 0), &small);
        proto.leave();
        proto.leave();
    }
    proto.leave();
    proto
}

#[test]
fn trees_of_protofiles_are_read() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let proto = tree_of(dir.path(), 3000);
    let text = dir.path().join("proto");
    std::fs::write(&text, &proto.text).unwrap();
    for (name, args) in V4.iter().chain(V5) {
        let image = dir.path().join("image");
        mkfs(&image, args, Some(&text));
        let vfs = mount(&image);
        let ours = our_tree(&vfs, false).unwrap();
        assert_same(&ours, &proto.expected, name);
        agrees_with_xfs_db(&image, &vfs, name);
        every_name_is_found(&vfs);
        vfs.unmount().unwrap();
    }
}

/// Compares attributes of some inodes with what xfs_db prints.
fn agrees_with_xfs_db(image: &Path, vfs: &std::sync::Arc<ivers_vfs::Vfs>, what: &str) {
    for path in ["/", "/large", "/small", "/long", "/null", "/d3000", "/d3000/below/file"] {
        let inode = vfs.resolve(&ivers_vfs::Cred::root(), path, false).unwrap();
        let attr = vfs.stat(&inode);
        let number = format!("inode {}", inode.ino);
        let fields = ["core.mode", "core.size", "core.nblocks", "core.gen", "core.nlinkv2", "core.uid"];
        let mut args = vec!["-r".to_owned(), "-c".into(), number];
        args.extend(fields.iter().flat_map(|field| ["-c".to_owned(), format!("print {field}")]));
        args.push(image.to_str().unwrap().to_owned());
        let said = ivers_oracle::run("xfs_db", &args).unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let value = |field: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(" = "));
            line.unwrap_or_else(|| panic!("{what}: {path}: no {field} in {said}")).to_owned()
        };
        assert_eq!(value("core.mode"), format!("0{:o}", attr.mode()), "{what}: {path}");
        assert_eq!(value("core.size"), attr.size.to_string(), "{what}: {path}");
        assert_eq!(value("core.nlinkv2"), attr.nlink.to_string(), "{what}: {path}");
        assert_eq!(value("core.uid"), attr.uid.to_string(), "{what}: {path}");
        let blocks: u64 = value("core.nblocks").parse().unwrap();
        assert_eq!(blocks * vfs.info().block_size as u64 / 512, attr.blocks_512, "{what}: {path}");
        assert_eq!(value("core.gen"), inode.generation.to_string(), "{what}: {path}");
    }
}

/// Looks every name of the largest directory up, and some that are not there; lists it in small steps.
fn every_name_is_found(vfs: &std::sync::Arc<ivers_vfs::Vfs>) {
    let cred = ivers_vfs::Cred::root();
    let dir = vfs.resolve(&cred, "/d3000", false).unwrap();
    let mut cursor = 0;
    let mut names = std::collections::BTreeSet::new();
    loop {
        let mut step = Vec::new();
        vfs.readdir(&cred, &dir, cursor, &mut |entry| {
            step.push((entry.name.to_vec(), entry.next));
            if step.len() == 7 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })
        .unwrap();
        let Some((_, next)) = step.last() else { break };
        cursor = *next;
        for (name, _) in step {
            assert!(names.insert(name.clone()), "{} twice", name.escape_ascii());
        }
    }
    assert_eq!(names.len(), 3000 + 3);
    for number in 0..50 {
        let missing = format!("file-{}-", number + 5000);
        let found = vfs.lookup(&cred, &dir, missing.as_bytes());
        assert!(matches!(found, Err(ivers_vfs::Error::Name(ivers_vfs::NameError::NotFound))), "{missing}");
    }
}

#[test]
fn names_without_case_are_found() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut proto = Proto::new();
    let source = dir.path().join("source");
    std::fs::write(&source, "text").unwrap();
    (0..200).for_each(|n| proto.file(&format!("ReadMe-{n}"), "---644", 0o644, (0, 0), &source));
    proto.leave();
    let text = dir.path().join("proto");
    std::fs::write(&text, &proto.text).unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-m", "crc=0", "-n", "version=ci"], Some(&text));
    let vfs = mount(&image);
    let cred = ivers_vfs::Cred::root();
    for path in ["/readme-7", "/README-199", "/ReadMe-0"] {
        assert_eq!(read_all(&vfs, &vfs.resolve(&cred, path, false).unwrap()).unwrap(), b"text");
    }
    assert!(vfs.resolve(&cred, "/readme-200", false).is_err());
    assert!(vfs.info().names_alias);
}
