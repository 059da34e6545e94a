//! The command on UFS images: those of makefs, and its own.

use crate::common::image_place::*;
use crate::common::*;
use ivers_oracle::{have_programs, tree};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// An image that makefs filled from the directory `source` beside it.
fn image(options: &str) -> ImagePlace {
    let place = ImagePlace::new("disk.ufs", |_| Ok(()));
    let source = place.fill_source();
    let words = ["-t", "ffs", "-s", "16m", "-o", options, place.name(), source.to_str().unwrap()];
    ivers_oracle::run("makefs", words).unwrap();
    place
}

#[test]
fn an_image_is_read() {
    if !have_programs(&["makefs"]) {
        return;
    }
    for (options, name) in [("version=2", "ufs2"), ("version=1", "ufs1")] {
        let place = image(options);
        let before = fs::read(&place.image).unwrap();
        let names = works(&["ls", &place.at("/")]);
        assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["dir", "link", "twin"]);
        assert_eq!(works(&["cat", &place.at("/dir/file")]).as_bytes(), TEXT);
        let copy = place.path("copy");
        works(&["cp", "-a", &place.at("/"), &copy]);
        let [source, copy] = [place.source(), copy.into()].map(|dir: PathBuf| tree(&dir, PLAIN).unwrap());
        assert!(source == copy, "{source}\n---\n{copy}");
        works(&["tar", "-c", &place.at("/dir"), "-f", &place.path("a.tar")]);
        assert!(fs::metadata(place.path("a.tar")).unwrap().len() > 1_000_000);
        let facts = works(&["info", place.name()]);
        for word in [name, "little-endian", "unmounted cleanly", "fragment size"] {
            assert!(facts.contains(word), "{word}: {facts}");
        }
        assert!(works(&["check", place.name()]).contains(&format!("{name}: clean")));
        assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
    }
}

#[test]
fn an_image_is_changed_and_damage_is_found() {
    if !have_programs(&["makefs"]) {
        return;
    }
    for options in ["version=2", "version=1"] {
        let place = image(options);
        let [new, dir, moved, twin] =
            ["/new", "/dir/made", "/dir/made/moved", "/twin"].map(|path| place.at(path));
        works(&["cp", &place.path("source/twin"), &new]);
        works(&["mkdir", &dir]);
        works(&["mv", &new, &moved]);
        works(&["chmod", "0600", &moved]);
        works(&["rm", &twin]);
        assert_eq!(works(&["cat", &moved]).as_bytes(), TEXT);
        assert!(works(&["ls", "-l", &dir]).starts_with("-rw-------"));
        assert!(works(&["check", place.name()]).contains(": clean"));
        works(&["label", place.name(), "new"]);
        assert_eq!(works(&["label", place.name()]), "new\n");
        assert!(works(&["check", place.name()]).contains(": clean"));
    }
    let place = image("version=2");
    let file = fs::File::options().write(true).open(&place.image).unwrap();
    file.write_all_at(&[0; 1376], 8192).unwrap();
    let output = ivers(["check", place.name()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("a copy of the superblock is at byte"), "{}", said(&output));
    assert!(said(&ivers(["ls", place.name()])).contains("shows how to get it back"));
}

#[test]
fn a_mount_shows_the_tree_and_changes_it() {
    if !can_mount() || !have_programs(&["makefs"]) {
        return;
    }
    let place = image("version=2");
    fs::create_dir(place.path("mnt")).unwrap();
    let dir = place.mount("ro");
    let [source, mounted] = [&place.source(), &dir].map(|dir| tree(dir, PLAIN));
    let refused = fs::write(dir.join("new"), "x").map_err(|error| error.raw_os_error());
    place.unmount();
    let (source, mounted) = (source.unwrap(), mounted.unwrap());
    assert!(source == mounted, "{source}\n---\n{mounted}");
    assert_eq!(refused, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    let dir = place.mount("rw");
    let change = || xattr::get(dir.join("new"), "system.ivers.change").unwrap().unwrap();
    let changed = fs::write(dir.join("new"), "old").map(|()| change()).and_then(|before| {
        fs::write(dir.join("new"), "other")?;
        fs::rename(dir.join("new"), dir.join("dir/new"))?;
        Ok(before)
    });
    place.unmount();
    changed.unwrap();
    assert_eq!(works(&["cat", &place.at("/dir/new")]), "other");
    assert!(works(&["check", place.name()]).contains(": clean"));
}

#[test]
fn mkfs_makes_and_fills_both_versions() {
    for name in ["ufs1", "ufs2"] {
        let place = ImagePlace::new("disk.ufs", |_| Ok(()));
        let source = place.fill_source();
        let source = source.to_str().unwrap();
        let words =
            ["mkfs", "--type", name, place.name(), "--size", "16M", "--from", source, "--label", "new"];
        let fixed = ["--timestamp", "2000000000", "--uuid", "11111111-2222-3333-4444-555555555555"];
        let said = works(&[&words[..], &fixed].concat());
        assert!(
            said.contains(&format!("{name}, 4096 fragments")) && said.contains("ID 1111111122223333"),
            "{said}"
        );
        let first = fs::read(&place.image).unwrap();
        assert!(works(&["check", place.name()]).contains(&format!("{name}: clean")));
        let copy = place.path("copy");
        works(&["cp", "-a", &place.at("/"), &copy]);
        let [source_tree, copy] =
            [place.source(), copy.into()].map(|dir: PathBuf| tree(&dir, PLAIN).unwrap());
        assert!(source_tree == copy, "{source_tree}\n---\n{copy}");
        let info = works(&["info", "--json", place.name()]);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let bytes = info["blocks"].as_u64().unwrap() * info["block_size"].as_u64().unwrap();
        assert!((14 << 20..16 << 20).contains(&bytes) && info["label"] == "new", "{info}");
        fs::remove_file(&place.image).unwrap();
        works(&[&words[..], &fixed].concat());
        assert!(fs::read(&place.image).unwrap() == first, "{name}: not reproducible");
        fs::remove_file(&place.image).unwrap();
        works(&["mkfs", "--type", name, place.name(), "--size", "auto", "--from", source]);
        assert!(works(&["check", place.name()]).contains(&format!("{name}: clean")));
    }
}
