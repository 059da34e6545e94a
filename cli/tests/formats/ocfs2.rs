//! The command on OCFS2 images.

use crate::common::image_place::*;
use crate::common::*;
use flate2::read::DeflateDecoder;
use std::fs;
use std::io::Read;

/// An image of the fuzz target, which Linux filled.
fn image(packed: &[u8]) -> ImagePlace {
    let place = ImagePlace::new("disk.ocfs2", |_| Ok(()));
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    fs::write(&place.image, bytes).unwrap();
    place
}

const CLEAN: &[u8] = include_bytes!("../../../testing/fuzz-targets/bases/ocfs2.z");
const DIRTY: &[u8] = include_bytes!("../../../testing/fuzz-targets/bases/ocfs2_dirty.z");

#[test]
fn an_image_is_read() {
    for (packed, state) in [(CLEAN, "unmounted cleanly"), (DIRTY, "the journal was replayed in memory")] {
        let place = image(packed);
        let before = fs::read(&place.image).unwrap();
        assert_eq!(works(&["cat", &place.at("/small")]), "inline\n");
        assert!(works(&["ls", &place.at("/many")]).lines().count() >= 20);
        let copy = place.path("copy");
        works(&["cp", "-a", &place.at("/large"), &copy]);
        assert_eq!(fs::read(copy).unwrap(), b"lllllllll\n".repeat(10_000));
        let facts = works(&["info", place.name()]);
        for word in ["ocfs2", "cluster size", "indexed-dirs", state] {
            assert!(facts.contains(word), "{word}: {facts}");
        }
        assert!(works(&["check", place.name()]).contains("ocfs2: clean"));
        assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
    }
}

#[test]
fn an_image_is_changed() {
    for packed in [CLEAN, DIRTY] {
        let place = image(packed);
        let [small, dir, moved] = ["/small", "/made", "/made/moved"].map(|path| place.at(path));
        works(&["mkdir", &dir]);
        works(&["mv", &small, &moved]);
        works(&["chmod", "0600", &moved]);
        let many = works(&["ls", &place.at("/many")]);
        works(&["rm", &place.at(&format!("/many/{}", many.lines().next().unwrap()))]);
        assert_eq!(works(&["cat", &moved]), "inline\n");
        assert!(works(&["ls", "-l", &dir]).starts_with("-rw-------"));
        // Its clusters are shared.
        let [large, name] = [&place.at("/large"), place.name()];
        for words in [&["rm", large][..], &["label", name, "new"]] {
            let refused = ivers(words);
            assert!(!refused.status.success(), "{words:?}: {}", said(&refused));
        }
        assert!(works(&["check", place.name()]).contains("ocfs2: clean"));
    }
}

#[test]
fn a_mount_shows_the_tree_and_changes_it() {
    if !can_mount() {
        return;
    }
    let place = image(CLEAN);
    fs::create_dir(place.path("mnt")).unwrap();
    let dir = place.mount("ro");
    let refused = fs::write(dir.join("new"), "x").map_err(|error| error.raw_os_error());
    let link = fs::read_link(dir.join("long"));
    place.unmount();
    assert_eq!(refused, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    assert_eq!(link.unwrap().as_os_str().len(), 700);
    let dir = place.mount("rw");
    let text = b"some text\n".repeat(20_000);
    fs::write(dir.join("new"), &text).unwrap();
    fs::rename(dir.join("new"), dir.join("many/new")).unwrap();
    let read = fs::read(dir.join("many/new"));
    place.unmount();
    assert!(read.unwrap() == text);
    assert_eq!(works(&["cat", &place.at("/many/new")]).as_bytes(), text);
    assert!(works(&["check", place.name()]).contains("ocfs2: clean"));
}
