//! Volumes that ivers writes, read by ivers, by our own checker, by amitools and by unadf. Volumes that
//! amitools make, read and written by ivers.

use crate::common::*;
use ivers_affs::OpenOptions;
use ivers_affs::layout::{T_DIRCACHE, dirc, get32, head, put_tail32, put32, record, set_checksum, tail};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The volumes: low byte of the first word, block size, size in bytes.
const SHAPES: &[(u8, u32, u64)] = &[
    (0, 512, DD),
    (1, 512, DD),
    (2, 512, DD),
    (3, 512, HD),
    (1, 512, 24 << 20),
    (2, 1024, 4 << 20),
    (3, 2048, 8 << 20),
    (3, 4096, 16 << 20),
    (4, 512, DD),
    (5, 512, HD),
    (5, 1024, 4 << 20),
    (4, 4096, 16 << 20),
];

/// Makes changes of every kind. `links`: also links, which xdfscan reports as damage.
fn work(vfs: &Arc<Vfs>, links: bool) {
    for nth in 0..60 {
        put(vfs, &format!("/file{nth:02}"), &pattern(nth, nth * 97));
    }
    make(vfs, "/Dir", &CreateSpec::directory(0o755));
    make(vfs, "/Dir/Unter", &CreateSpec::directory(0o700));
    put(vfs, "/Dir/\u{e4}\u{f6}\u{fc} lang", &pattern(1, 90_000));
    let big = put(vfs, "/Dir/Unter/big", &pattern(2, 150_000));
    vfs.fsync(&big, false).unwrap();
    write(vfs, &big, 150_000, &pattern(3, 30_000));
    write(vfs, &big, 1000, b"in the midst");
    vfs.set_attr(&root(), &big, &SetAttr { size: Some(70_001), ..SetAttr::default() }).unwrap();
    vfs.sync().unwrap();
    vfs.set_attr(&root(), &big, &SetAttr { size: Some(100_000), ..SetAttr::default() }).unwrap();
    write(vfs, &big, 120_000, b"far");
    for nth in (0..60).step_by(3) {
        unlink(vfs, &format!("/file{nth:02}"));
    }
    rename(vfs, "/file01", "/Dir/moved").unwrap();
    rename(vfs, "/file02", "/file04").unwrap();
    rename(vfs, "/Dir/Unter", "/Unter").unwrap();
    rename(vfs, "/file05", "/Unter/file05").unwrap();
    let file = find(vfs, "/file07");
    vfs.set_attr(
        &root(),
        &file,
        &SetAttr { perm: Some(0o421), uid: Some(1000), gid: Some(33), ..SetAttr::default() },
    )
    .unwrap();
    vfs.set_xattr(&root(), &file, "user.amiga.comment", "na \u{fc}nd".as_bytes(), XattrMode::Any).unwrap();
    if links {
        link(vfs, "/file08", "/Dir/hard");
        link(vfs, "/Dir/hard", "/Unter/hard too");
        unlink(vfs, "/file08");
        link(vfs, "/file10", "/ten");
        rename(vfs, "/ten", "/Dir/zehn").unwrap();
        rename(vfs, "/file10", "/Unter/ten").unwrap();
        link(vfs, "/file11", "/Dir/eleven");
        rename(vfs, "/file13", "/file11").unwrap();
        make(vfs, "/soft", &CreateSpec::symlink("Dir/../Unter/big"));
        make(vfs, "/softer", &CreateSpec::symlink("/Dir"));
        rename(vfs, "/softer", "/Dir/soft").unwrap();
    }
}

#[test]
fn tree_is_unchanged_after_a_remount() {
    for &(low_byte, block_size, bytes) in SHAPES {
        let device = fresh(low_byte, block_size, bytes);
        let vfs = mount(&device);
        work(&vfs, true);
        let before = tree(&vfs);
        vfs.unmount().unwrap();
        let report = check(&device, block_size);
        assert_eq!(report.tree.len(), before.len(), "DOS\\{low_byte} {block_size}");
        let vfs = mount_fs(open(&device, reading()).unwrap());
        assert_eq!(tree(&vfs), before, "DOS\\{low_byte} {block_size}");
        assert_eq!(get(&vfs, &find(&vfs, "/Unter/big")).len(), 120_003);
        let comment = vfs.get_xattr(&root(), &find(&vfs, "/file07"), "user.amiga.comment").unwrap();
        assert_eq!(comment, "na \u{fc}nd".as_bytes());
        let attr = find(&vfs, "/file07").attr();
        assert_eq!((attr.perm, attr.uid, attr.gid), (0o421, 1000, 33));
        assert_eq!(vfs.read_link(&Cred::root(), &find(&vfs, "/soft")).unwrap(), b"Dir/../Unter/big");
        drop(vfs);
        // After everything is removed, all space is free again.
        let vfs = mount(&device);
        let empty = mount(&fresh(low_byte, block_size, bytes)).stat_fs().unwrap().blocks_free;
        for path in before.keys().rev() {
            let (dir, name) = split(&vfs, path);
            let inode = find(&vfs, path);
            match inode.kind {
                FileType::Directory => vfs.rmdir(&root(), &dir, name, false).unwrap(),
                _ => vfs.unlink(&root(), &dir, name, false).unwrap(),
            };
        }
        vfs.sync().unwrap();
        assert_eq!(vfs.stat_fs().unwrap().blocks_free, empty);
        vfs.unmount().unwrap();
        assert!(check(&device, block_size).tree.is_empty());
    }
}

/// Programs truncate a file to the size that it has, as the last step of a copy.
#[test]
fn a_file_can_be_truncated_to_its_size() {
    for &(low, block_size, bytes) in SHAPES {
        let device = fresh(low, block_size, bytes);
        let vfs = mount(&device);
        for len in [20, 488, 1000, 3000, 5000, 8192] {
            let file = put(&vfs, &format!("/file{len}"), &pattern(1, len));
            vfs.fsync(&file, false).unwrap();
            let size = SetAttr { size: Some(len as u64), ..SetAttr::default() };
            vfs.set_attr(&root(), &file, &size).unwrap_or_else(|error| panic!("DOS{low}, {len}: {error}"));
            assert!(get(&vfs, &file) == pattern(1, len), "DOS{low}, {len}");
        }
        vfs.unmount().unwrap();
    }
}

#[test]
fn amitools_and_unadf_read_volumes_of_ivers() {
    let Some(tools) = amitools() else { return };
    if !ivers_oracle::have_programs(&["unadf"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (low_byte, bytes) in
        [(0, DD), (1, DD), (2, DD), (3, DD), (4, DD), (5, DD), (0, 6 << 20), (3, 24 << 20), (5, 6 << 20)]
    {
        let device = fresh(low_byte, 512, bytes);
        let vfs = mount(&device);
        work(&vfs, false);
        let files: BTreeMap<String, Vec<u8>> = tree(&vfs)
            .keys()
            .filter(|path| find(&vfs, path).kind == FileType::Regular)
            .map(|path| (path.clone(), get(&vfs, &find(&vfs, path))))
            .collect();
        vfs.unmount().unwrap();
        let is_floppy = bytes == DD;
        let path = dir.path().join(format!("image{low_byte}.{}", if is_floppy { "adf" } else { "hdf" }));
        std::fs::write(&path, device.to_bytes()).unwrap();
        let caches = check(&device, 512).caches;
        assert_eq!(!caches.is_empty(), low_byte >= 4);
        tools
            .xdfscan_beside(&path, &caches)
            .unwrap_or_else(|error| panic!("DOS\\{low_byte}, {bytes} bytes: {error:#}"));
        let out = dir.path().join(format!("xdf{low_byte}{bytes}"));
        tools.xdftool(&path, &["unpack", out.to_str().unwrap(), "fsuae"]).unwrap();
        let unpacked = if out.join("Test").is_dir() { out.join("Test") } else { out };
        compare(&unpacked, &files, "xdftool");
        let listed = tools.xdftool(&path, &["list"]).unwrap();
        assert!(listed.contains("na \u{fc}nd"), "{listed}");
        if is_floppy {
            let out = dir.path().join(format!("unadf{low_byte}"));
            std::fs::create_dir(&out).unwrap();
            ivers_oracle::affs::unadf(&path, &out).unwrap();
            compare(&out, &files, "unadf");
            if low_byte >= 4 {
                let by_headers = ivers_oracle::affs::unadf_list(&path, false).unwrap();
                assert_eq!(ivers_oracle::affs::unadf_list(&path, true).unwrap(), by_headers);
                assert_eq!(by_headers.len(), tree(&mount(&device)).len());
            }
        }
        if low_byte >= 4 {
            // xdftool looks up each record, and stops if one is missing.
            let words = [
                "delete", "Dir", "all", "+", "delete", "Unter", "all", "+", "delete", "file13", "+",
                "makedir",
            ];
            tools.xdftool(&path, &[&words[..], &["Fresh"]].concat()).unwrap();
            let device = image(&path);
            // xdftool omits the type in the records that it writes.
            leave_open(&device);
            let vfs = mount(&device);
            assert!(names(&vfs, &vfs.root().unwrap()).contains(&"Fresh".to_owned()));
            put(&vfs, "/Fresh/file", &pattern(4, 5000));
            rename(&vfs, "/Fresh", "/Newer").unwrap();
            vfs.unmount().unwrap();
            check(&device, 512);
        }
    }
}

/// Checks the files below a directory. A name that another tool wrote may not be UTF-8: such files are
/// compared by their contents.
fn compare(dir: &std::path::Path, want: &BTreeMap<String, Vec<u8>>, tool: &str) {
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(dir).unwrap();
            if path.extension().is_some_and(|extension| extension == "uaem") {
                continue;
            }
            let data = std::fs::read(&path).unwrap();
            if let Some(want) = name.to_str().and_then(|name| want.get(&format!("/{name}"))) {
                assert!(*want == data, "{tool}: {} differs", name.display());
            }
            found.push(data);
        }
    }
    let mut want: Vec<Vec<u8>> = want.values().cloned().collect();
    want.sort();
    found.sort();
    assert!(found == want, "{tool}: {} files, not {}", found.len(), want.len());
}

#[test]
fn volumes_of_amitools_are_read_and_written() {
    let Some(tools) = amitools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("data");
    std::fs::write(&source, pattern(5, 80_000)).unwrap();
    let source = source.to_str().unwrap();
    for (low_byte, options) in
        ["ofs", "ffs", "ofs+intl", "ffs+intl", "ofs+dc", "ffs+dc", "ofs+ln", "ffs+ln"].into_iter().enumerate()
    {
        for (name, size) in [("a.adf", None), ("a.hdf", Some("size=12Mi"))] {
            let path = dir.path().join(format!("{low_byte}{name}"));
            let long = if low_byte >= 6 { "a name of more than thirty characters" } else { "Data" };
            let mut words: Vec<&str> = vec!["create"];
            words.extend(size);
            words.extend(["+", "format", "Volume", options, "+", "makedir", "Dir", "+", "write", source]);
            let inside = format!("Dir/{long}");
            words.extend([inside.as_str(), "+", "write", source, "Top", "+", "protect", "Top", "rwd"]);
            tools.xdftool(&path, &words).unwrap();
            let device = image(&path);
            let fs = open(&device, writable()).unwrap();
            assert_eq!(fs.info().label, "Volume");
            assert_eq!(fs.health().read_only.is_some(), low_byte >= 6, "{options}");
            let vfs = mount_fs(fs);
            assert_eq!(names(&vfs, &vfs.root().unwrap()), ["Dir", "Top"]);
            assert_eq!(get(&vfs, &find(&vfs, &format!("/dir/{}", long.to_uppercase()))), pattern(5, 80_000));
            let top = find(&vfs, "/TOP");
            assert_eq!(top.attr().perm, 0o600);
            assert_eq!(vfs.get_xattr(&root(), &top, "user.amiga.protection").unwrap(), b"0x00000002");
            if low_byte >= 6 {
                let refused =
                    vfs.create(&root(), &vfs.root().unwrap(), b"x", &CreateSpec::file(0o600), false);
                assert!(matches!(refused, Err(Error::Name(NameError::ReadOnly))));
                continue;
            }
            put(&vfs, "/Dir/new", &pattern(6, 40_000));
            drop(top);
            unlink(&vfs, "/Top");
            vfs.unmount().unwrap();
            let report = ivers_affs::check::report(&device.to_bytes(), 512);
            // amitools 0.8.1 omits the type in its records. The caches of unchanged directories still have
            // those.
            assert!(
                report.found.kept().iter().all(|found| found.what.contains("a cache of /Dir/")),
                "{report:?}"
            );
            std::fs::write(&path, device.to_bytes()).unwrap();
            tools
                .xdfscan_beside(&path, &report.caches)
                .unwrap_or_else(|error| panic!("{options} {name}: {error:#}"));
            // Recover the volume, which repairs the caches.
            leave_open(&device);
            mount(&device).unmount().unwrap();
            check(&device, 512);
            let out = dir.path().join("out");
            tools.xdftool(&path, &["read", "Dir/new", out.to_str().unwrap()]).unwrap();
            assert!(std::fs::read(&out).unwrap() == pattern(6, 40_000));
            std::fs::remove_file(&out).unwrap();
        }
    }
}

#[test]
fn partitions_are_found_by_name_and_number() {
    let Some(tools) = amitools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.rdb");
    let words = [
        "create",
        "size=20Mi",
        "+",
        "init",
        "+",
        "add",
        "start=2",
        "end=300",
        "name=DH0",
        "dostype=ffs+intl",
        "+",
        "add",
        "start=301",
        "end=600",
        "name=Work",
        "dostype=ofs",
    ];
    tools.rdbtool(&path, &words).unwrap();
    for (part, kind) in [("DH0", "ffs+intl"), ("Work", "ofs")] {
        let with = format!("part={part}");
        tools.xdftool(&path, &["open", &with, "+", "format", part, kind, "+", "makedir", part]).unwrap();
    }
    let device = image(&path);
    let choose =
        |partition: Option<&str>| OpenOptions { partition: partition.map(str::to_owned), ..writable() };
    let error = open(&device, choose(None)).err().unwrap().to_string();
    assert!(error.contains("partition=DH0") && error.contains("2: Work (DOS\\0"), "{error}");
    let error = open(&device, choose(Some("DH9"))).err().unwrap().to_string();
    assert!(error.contains("no partition \"DH9\""), "{error}");
    for (wanted, label) in [("dh0", "DH0"), ("1", "DH0"), ("Work", "Work"), ("2", "Work")] {
        let vfs = mount_fs(open(&device, choose(Some(wanted))).unwrap());
        assert_eq!(vfs.info().label, label);
        let name = format!("/{label}/by {wanted}");
        put(&vfs, &name, &pattern(9, 30_000));
        vfs.unmount().unwrap();
    }
    std::fs::write(&path, device.to_bytes()).unwrap();
    for part in ["DH0", "Work"] {
        let with = format!("part={part}");
        let listed = tools.xdftool(&path, &["open", &with, "+", "list", part]).unwrap();
        assert!(listed.contains("by ") && listed.matches("30000").count() == 2, "{listed}");
    }
    // A partition that reserves too many blocks, and a cycle of partitions.
    let mut bytes = device.to_bytes();
    let part = (0..64).find(|nth| bytes[nth * 512..].starts_with(b"PART")).unwrap();
    let mut greedy = bytes.clone();
    put32(&mut greedy[part * 512..], 128 + 6 * 4, u32::MAX);
    set_checksum(&mut greedy[part * 512..part * 512 + 256], 8);
    let greedy = Arc::new(MemDevice::from_bytes(&greedy));
    let error = open(&greedy, choose(Some("DH0"))).err().unwrap();
    assert!(matches!(error, Error::Incompatible(_) | Error::Corrupt { .. }), "{error}");
    assert!(open(&greedy, choose(Some("Work"))).is_ok());
    bytes[part * 512 + 16..part * 512 + 20].copy_from_slice(&(part as u32).to_be_bytes());
    set_checksum(&mut bytes[part * 512..part * 512 + 256], 8);
    let error = open(&Arc::new(MemDevice::from_bytes(&bytes)), choose(Some("DH0"))).err().unwrap();
    assert!(matches!(&error, Error::Corrupt { what, .. } if what.contains("has a cycle")), "{error}");
}

/// Clears `bm_flag`, as after a crash.
fn leave_open(device: &MemDevice) {
    let root = (2 + device.size_bytes() / 512 - 1) / 2 * 512;
    let mut block = [0; 512];
    device.read_at(ByteOffset(root), &mut block).unwrap();
    put_tail32(&mut block, tail::BM_FLAG, 0);
    set_checksum(&mut block, head::CHECKSUM);
    device.write_at(ByteOffset(root), &block).unwrap();
}

#[test]
fn names_are_case_insensitive_and_case_preserving() {
    let device = fresh(3, 512, DD);
    let vfs = mount(&device);
    let file = put(&vfs, "/R\u{e9}sum\u{e9}", b"text");
    assert_eq!(find(&vfs, "/r\u{c9}SUM\u{e9}").ino, file.ino);
    let (dir, name) = split(&vfs, "/R\u{c9}SUM\u{c9}");
    let again = vfs.create(&root(), &dir, name, &CreateSpec::file(0o600), false);
    assert!(matches!(again, Err(Error::Name(NameError::Exists))));
    assert_eq!(names(&vfs, &dir), ["R\u{e9}sum\u{e9}"]);
    for (name, error) in [
        ("a".repeat(31), NameError::NameTooLong),
        ("a:b".into(), NameError::Invalid),
        ("\u{20ac}".into(), NameError::Invalid),
    ] {
        let made = vfs.create(&root(), &dir, name.as_bytes(), &CreateSpec::file(0o600), false);
        assert!(matches!(made, Err(Error::Name(found)) if found == error), "{name}");
    }
    make(&vfs, &format!("/{}", "\u{e9}".repeat(30)), &CreateSpec::directory(0o700));
    rename(&vfs, "/r\u{e9}sum\u{e9}", "/RESUME").unwrap();
    assert_eq!(get(&vfs, &find(&vfs, "/resume")), b"text");
    vfs.unmount().unwrap();
    check(&device, 512);
}

#[test]
fn full_volume_returns_enospc_and_loses_nothing() {
    for low_byte in [0, 1, 5] {
        let device = fresh(low_byte, 512, DD);
        let vfs = mount(&device);
        make(&vfs, "/Dir", &CreateSpec::directory(0o755));
        let mut made = 0;
        let full = loop {
            let file = make(&vfs, &format!("/file{made}"), &CreateSpec::file(0o600));
            match vfs.write(&root(), &file, 0, &pattern(made, 70_000), WriteFlags::empty()) {
                Ok(70_000) => made += 1,
                other => break other,
            }
        };
        assert!(matches!(full, Ok(_) | Err(Error::Name(NameError::NoSpace))), "{full:?}");
        assert!(made >= 11, "{made}");
        vfs.sync().unwrap();
        // A rename needs a block until its second batch is durable. The reserve pool has one.
        let dir = find(&vfs, "/Dir");
        let full = loop {
            if let Err(error) = vfs.create(&root(), &dir, b"new", &CreateSpec::file(0o600), false) {
                break error;
            }
            rename(&vfs, "/Dir/new", &format!("/Dir/made{}", names(&vfs, &dir).len())).unwrap();
        };
        assert!(matches!(full, Error::Name(NameError::NoSpace)), "{full}");
        for _ in 0..4 {
            for (old, new) in
                [("/file1", "/Dir/file1"), ("/Dir/file1", "/file1"), ("/Dir", "/D"), ("/D", "/Dir")]
            {
                rename(&vfs, old, new).unwrap();
            }
        }
        drop(dir);
        unlink(&vfs, "/file3");
        put(&vfs, "/again", &pattern(3, 60_000));
        vfs.unmount().unwrap();
        check(&device, 512);
        let vfs = mount(&device);
        assert_eq!(get(&vfs, &find(&vfs, "/again")), pattern(3, 60_000));
        for nth in (0..made).filter(|&nth| nth != 3) {
            assert_eq!(get(&vfs, &find(&vfs, &format!("/file{nth}"))), pattern(nth, 70_000));
        }
    }
}

/// Blocks are smaller than pages, so a page that is already dirty may need more of them. A write that finds
/// none fails with ENOSPC.
#[test]
fn blocks_for_a_dirty_page_are_reserved_or_refused() {
    for low_byte in [0u8, 1] {
        let device = fresh(low_byte, 512, DD);
        let vfs = mount(&device);
        let keep = put(&vfs, "/keep", &pattern(1, 100));
        let full = (0..).find_map(|nth| {
            let (dir, name) = (find(&vfs, "/"), format!("s{nth}"));
            let made = vfs.create(&root(), &dir, name.as_bytes(), &CreateSpec::file(0o600), false);
            made.and_then(|(file, _)| vfs.write(&root(), &file, 0, b"x", WriteFlags::empty())).err()
        });
        assert!(matches!(full, Some(Error::Name(NameError::NoSpace))), "{full:?}");
        let end = (1..40)
            .map(|nth| nth * 100)
            .find(|&at| vfs.write(&root(), &keep, at, &pattern(2, 100), WriteFlags::empty()).is_err());
        let end = end.expect("the volume is full") as usize;
        // The file can grow to the end of its last block: 488 bytes in OFS, 512 in FFS.
        assert!(end >= [400, 500][usize::from(low_byte)], "{end}");
        vfs.fsync(&keep, false).unwrap();
        vfs.unmount().unwrap();
        check(&device, 512);
        let vfs = mount(&device);
        let kept = get(&vfs, &find(&vfs, "/keep"));
        assert_eq!(kept, [pattern(1, 100), pattern(2, 100).repeat(end / 100 - 1)].concat());
        assert_eq!(get(&vfs, &find(&vfs, "/s7")), b"x");
    }
}

/// Every entry that exists during the whole listing is returned exactly once, while others are added and
/// removed.
#[test]
fn readdir_returns_each_lasting_entry_once() {
    let device = fresh(1, 512, DD);
    let vfs = mount(&device);
    make(&vfs, "/d", &CreateSpec::directory(0o755));
    make(&vfs, "/e", &CreateSpec::directory(0o755));
    for nth in 0..300 {
        make(&vfs, &format!("/d/stays{nth}"), &CreateSpec::file(0o600));
        make(&vfs, &format!("/d/goes{nth}"), &CreateSpec::file(0o600));
    }
    // Names of hard links: their blocks change when the original name is removed.
    for nth in 0..20 {
        make(&vfs, &format!("/e/orig{nth}"), &CreateSpec::file(0o600));
        link(&vfs, &format!("/e/orig{nth}"), &format!("/d/stays as link{nth}"));
    }
    let dir = find(&vfs, "/d");
    let (mut cursor, mut seen, mut round) = (0, Vec::new(), 0);
    loop {
        let batch = vfs.list(&Cred::root(), &dir, cursor, 7).unwrap();
        let Some(last) = batch.last() else { break };
        cursor = last.next;
        seen.extend(batch.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()));
        for nth in round * 8..(round * 8 + 8).min(300) {
            unlink(&vfs, &format!("/d/goes{nth}"));
            make(&vfs, &format!("/d/comes{nth}"), &CreateSpec::file(0o600));
        }
        if round < 20 {
            unlink(&vfs, &format!("/e/orig{round}"));
        }
        round += 1;
    }
    for nth in 0..300 {
        let name = format!("stays{nth}");
        assert_eq!(seen.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
    for nth in 0..20 {
        let name = format!("stays as link{nth}");
        assert_eq!(seen.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
    drop(dir);
    vfs.unmount().unwrap();
    check(&device, 512);
}

/// If an orphan is in use when the volume is closed, its blocks stay marked as used and `bm_flag` stays
/// clear. The next mount frees them.
#[test]
fn orphans_keep_the_volume_dirty_until_the_next_mount() {
    let device = fresh(1, 512, DD);
    let vfs = mount(&device);
    let file = put(&vfs, "/file", &pattern(1, 50_000));
    unlink(&vfs, "/file");
    assert_eq!(get(&vfs, &file), pattern(1, 50_000));
    vfs.unmount().unwrap();
    let report = ivers_affs::check::report(&device.to_bytes(), 512).crashed().unwrap();
    assert!(!report.valid && report.lost.len() == 100, "{report:?}");
    drop((file, vfs));
    mount(&device).unmount().unwrap();
    assert!(ivers_affs::check::report(&device.to_bytes(), 512).crashed().unwrap().valid);
    check(&device, 512);
}

#[test]
fn unclean_volume_is_marked_and_recovered() {
    let device = fresh(0, 512, DD);
    let vfs = mount(&device);
    let valid = |device: &MemDevice| ivers_affs::check::report(&device.to_bytes(), 512).valid;
    assert!(valid(&device), "nothing was changed yet");
    let file = put(&vfs, "/file", &pattern(1, 50_000));
    vfs.fsync(&file, false).unwrap();
    assert!(!valid(&device));
    drop((file, vfs));
    // A read-only mount reads the volume as a crash left it. A mount for writing rebuilds the bitmap.
    let read_only = mount_fs(open(&device, reading()).unwrap());
    assert_eq!(get(&read_only, &find(&read_only, "/file")), pattern(1, 50_000));
    drop(read_only);
    let vfs = mount(&device);
    assert_eq!(get(&vfs, &find(&vfs, "/file")), pattern(1, 50_000));
    vfs.unmount().unwrap();
    check(&device, 512);
}

/// Records grow and shrink; cache blocks are added and removed at both ends; entries change without their
/// names. The checker compares every cache with the headers.
#[test]
fn directory_caches_match_the_headers() {
    for (low_byte, block_size, bytes) in [(4, 512, HD), (5, 512, HD), (5, 1024, 4 << 20)] {
        let device = fresh(low_byte, block_size, bytes);
        let mut vfs = mount(&device);
        let again = |vfs: &mut Arc<Vfs>| {
            vfs.unmount().unwrap();
            let report = check(&device, block_size);
            *vfs = mount(&device);
            report.caches.len()
        };
        let comment = |vfs: &Arc<Vfs>, path: &str, len: usize| {
            let comment = vec![b'c'; len];
            let value = (len > 0).then_some(&comment[..]);
            let file = find(vfs, path);
            match value {
                Some(value) => vfs.set_xattr(&root(), &file, "user.amiga.comment", value, XattrMode::Any),
                None => vfs.remove_xattr(&root(), &file, "user.amiga.comment"),
            }
            .unwrap();
        };
        make(&vfs, "/d", &CreateSpec::directory(0o755));
        assert_eq!(again(&mut vfs), 2);
        let path = |nth: usize| format!("/d/a name of thirty characters{nth:02}");
        for nth in 0..60 {
            put(&vfs, &path(nth), b"text");
        }
        let full = again(&mut vfs);
        assert!(full > 60 * 54 / block_size as usize, "{full}");
        // Comments that fit in place, and comments that do not.
        for nth in 0..60 {
            comment(&vfs, &path(nth), 1 + nth % 7 * 13);
        }
        let grown = again(&mut vfs);
        assert!(grown > full, "{grown} {full}");
        // Changes that need no space.
        let file = find(&vfs, &path(7));
        write(&vfs, &file, 4, b" and more");
        let attr = SetAttr { perm: Some(0o604), uid: Some(70), gid: Some(71), ..SetAttr::default() };
        vfs.set_attr(&root(), &find(&vfs, &path(8)), &attr).unwrap();
        vfs.set_xattr(&root(), &find(&vfs, "/d"), "user.amiga.protection", b"0x20", XattrMode::Any).unwrap();
        drop(file);
        again(&mut vfs);
        // Empties the first, some middle and the last cache blocks.
        for nth in (0..20).chain(30..35).chain(50..60) {
            unlink(&vfs, &path(nth));
        }
        let shrunk = again(&mut vfs);
        assert!(shrunk < grown, "{shrunk} {grown}");
        comment(&vfs, &path(25), 0);
        comment(&vfs, &path(26), 79);
        link(&vfs, &path(26), "/linked");
        link(&vfs, &path(27), "/d/short");
        make(&vfs, "/soft", &CreateSpec::symlink("d/short"));
        again(&mut vfs);
        comment(&vfs, &path(27), 79);
        for path in [path(26), path(27)] {
            unlink(&vfs, &path);
        }
        again(&mut vfs);
        rename(&vfs, "/d/short", "/d/SHORT").unwrap();
        rename(&vfs, "/linked", &path(28)).unwrap();
        rename(&vfs, "/d", "/other").unwrap();
        make(&vfs, "/other/below", &CreateSpec::directory(0o700));
        again(&mut vfs);
        for name in names(&vfs, &find(&vfs, "/other")) {
            if name != "below" {
                unlink(&vfs, &format!("/other/{name}"));
            }
        }
        for path in ["/other/below", "/other"] {
            let (dir, name) = split(&vfs, path);
            vfs.rmdir(&root(), &dir, name, false).unwrap();
        }
        unlink(&vfs, "/soft");
        assert_eq!(again(&mut vfs), 1);
        let left = vfs.stat_fs().unwrap().blocks_free;
        assert_eq!(left, mount(&fresh(low_byte, block_size, bytes)).stat_fs().unwrap().blocks_free);
    }
}

/// Caches of other programs that differ from the headers: an unreadable cache is written again when its
/// directory changes, and all caches after a crash.
#[test]
fn wrong_directory_caches_are_repaired() {
    let device = fresh(5, 512, DD);
    let vfs = mount(&device);
    make(&vfs, "/Dir", &CreateSpec::directory(0o755));
    for nth in 0..30 {
        put(&vfs, &format!("/Dir/file{nth}"), b"text");
    }
    vfs.unmount().unwrap();
    let page = check(&device, 512).caches[1] as u64 * 512;
    let damage = |words: &[(usize, u32)]| {
        let mut block = [0; 512];
        device.read_at(ByteOffset(page), &mut block).unwrap();
        assert_eq!(get32(&block, head::TYPE), T_DIRCACHE);
        words.iter().for_each(|&(at, word)| put32(&mut block, at, word));
        set_checksum(&mut block, head::CHECKSUM);
        device.write_at(ByteOffset(page), &block).unwrap();
    };
    let is_wrong = || ivers_affs::check::report(&device.to_bytes(), 512).closed().is_err();
    for words in [&[(dirc::RECORDS, 200)], &[(dirc::LIST + record::NAME - 3, 0xffff_ffff)]] {
        damage(words);
        assert!(is_wrong());
        let vfs = mount(&device);
        assert_eq!(names(&vfs, &find(&vfs, "/Dir")).len(), 30);
        rename(&vfs, "/Dir/file7", "/Dir/other").unwrap();
        rename(&vfs, "/Dir/other", "/Dir/file7").unwrap();
        vfs.unmount().unwrap();
        check(&device, 512);
    }
    for words in [(dirc::RECORDS, 2), (dirc::LIST + record::HEADER, 900), (dirc::LIST + record::SIZE, 7)] {
        damage(&[words]);
        assert!(is_wrong());
        leave_open(&device);
        mount(&device).unmount().unwrap();
        check(&device, 512);
    }
}
