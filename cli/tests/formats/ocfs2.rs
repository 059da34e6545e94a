//! The command on OCFS2 images, which it only reads.

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
fn changes_are_refused() {
    let place = image(CLEAN);
    let before = fs::read(&place.image).unwrap();
    let (new, small) = (place.at("/new"), place.at("/small"));
    for words in [&["rm", &small][..], &["mkdir", &new], &["label", place.name(), "new"]] {
        let output = ivers(words);
        let text = said(&output);
        assert!(
            !output.status.success() && text.contains("reads OCFS2 and does not write it"),
            "{words:?}: {text}"
        );
    }
    if can_mount() {
        fs::create_dir(place.path("mnt")).unwrap();
        let output = ivers(["mount", "-o", "rw", place.name(), &place.path("mnt")]);
        let text = said(&output);
        assert!(!output.status.success() && text.contains("reads OCFS2 and does not write it"), "{text}");
        let dir = place.mount("ro");
        let refused = fs::write(dir.join("new"), "x").map_err(|error| error.raw_os_error());
        let link = fs::read_link(dir.join("long"));
        place.unmount();
        assert_eq!(refused, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
        assert_eq!(link.unwrap().as_os_str().len(), 700);
    }
    assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
}
