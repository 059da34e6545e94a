//! The command on UFS images, which it only reads.

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
fn changes_are_refused_and_damage_is_found() {
    if !have_programs(&["makefs"]) {
        return;
    }
    let place = image("version=2");
    let before = fs::read(&place.image).unwrap();
    let (file, new, twin) = (place.path("source/twin"), place.at("/new"), place.at("/twin"));
    for words in [&["cp", &file, &new][..], &["rm", &twin], &["mkdir", &new], &["label", place.name(), "new"]]
    {
        let output = ivers(words);
        let text = said(&output);
        assert!(
            !output.status.success() && text.contains("reads UFS and does not write it"),
            "{words:?}: {text}"
        );
    }
    assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
    let file = fs::File::options().write(true).open(&place.image).unwrap();
    file.write_all_at(&[0; 1376], 8192).unwrap();
    let output = ivers(["check", place.name()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("a copy of the superblock is at byte"), "{}", said(&output));
    assert!(said(&ivers(["ls", place.name()])).contains("shows how to get it back"));
}

#[test]
fn a_mount_shows_the_tree_read_only() {
    if !can_mount() || !have_programs(&["makefs"]) {
        return;
    }
    let place = image("version=2");
    fs::create_dir(place.path("mnt")).unwrap();
    let output = ivers(["mount", "-o", "rw", place.name(), &place.path("mnt")]);
    let text = said(&output);
    assert!(!output.status.success() && text.contains("reads UFS and does not write it"), "{text}");
    let dir = place.mount("ro");
    let [source, mounted] = [&place.source(), &dir].map(|dir| tree(dir, PLAIN));
    let refused = fs::write(dir.join("new"), "x").map_err(|error| error.raw_os_error());
    let change = xattr::get(dir.join("twin"), "system.ivers.change");
    place.unmount();
    let (source, mounted) = (source.unwrap(), mounted.unwrap());
    assert!(source == mounted, "{source}\n---\n{mounted}");
    assert_eq!(refused, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    assert!(change.unwrap().is_some());
}
