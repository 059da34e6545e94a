//! `ivers label`: other projects' tools read the label that it sets.

use crate::common::*;
use std::path::Path;

fn label(image: &Path, new: Option<&str>) -> (Option<i32>, String) {
    let words = ["label".as_ref(), image.as_os_str()].into_iter().chain(new.map(AsRef::as_ref));
    let output = ivers(words);
    (output.status.code(), ivers_oracle::said(&output))
}

/// Sets labels and asserts that `read` finds each.
fn labels_are_set(image: &Path, labels: &[&str], read: impl Fn() -> String) {
    for new in labels {
        assert_eq!(label(image, Some(new)), (Some(0), String::new()), "{new}");
        assert_eq!(label(image, None), (Some(0), format!("{new}\n")));
        assert_eq!(read(), *new);
    }
}

fn ask(program: &str, image: &Path) -> String {
    ivers_oracle::said(&ivers_oracle::run(program, [image]).unwrap()).trim_end().to_owned()
}

#[test]
fn ext_labels_are_those_of_e2label() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2label", "e2fsck"]) {
        return;
    }
    for kind in ["ext2", "ext3", "ext4"] {
        let image = ivers_oracle::Image::new(kind, 16 << 20, &["-L", "first"]).unwrap();
        assert_eq!(label(image.path(), None), (Some(0), "first\n".into()));
        labels_are_set(image.path(), &["second", "sixteen bytes ok", "", "again"], || {
            ask("e2label", image.path())
        });
        image.check().unwrap();
        let (code, said) = label(image.path(), Some("more than sixteen"));
        assert!(code == Some(4) && said.contains("at most 16 bytes"), "{said}");
        assert_eq!(ask("e2label", image.path()), "again");
        image.check().unwrap();
    }
}

#[test]
fn fat_labels_are_in_the_boot_sector_and_in_the_root() {
    if !ivers_oracle::have_programs(&["mkfs.fat", "fsck.fat", "fatlabel", "mdir", "mcopy"]) {
        return;
    }
    for (kind, size) in [("-F12", 2 << 20), ("-F16", 20 << 20), ("-F32", 40 << 20)] {
        let image = ivers_oracle::FatImage::mkfs(size, &[kind]).unwrap();
        let path = image.path();
        let host = path.with_file_name("host");
        std::fs::write(&host, "contents").unwrap();
        image.mtools("mcopy", &[host.to_str().unwrap(), "::/file"]).unwrap();
        assert_eq!(label(&path, None), (Some(0), "\n".into()));
        labels_are_set(&path, &["FIRST", "ELEVEN CHAR", "C"], || ask("fatlabel", &path));
        // Boot sector and root directory agree; the root has one label.
        let text =
            ivers_oracle::said(&ivers_oracle::output("fsck.fat", ["-n".as_ref(), path.as_os_str()]).unwrap());
        assert_eq!(text.lines().count(), 2, "{text}");
        let listed = String::from_utf8(image.mtools("mdir", &["::"]).unwrap()).unwrap();
        assert!(listed.contains("is C") && listed.contains("file"), "{listed}");
        assert_eq!(label(&path, Some("")), (Some(0), String::new()));
        assert_eq!(label(&path, None), (Some(0), "\n".into()));
        let listed = String::from_utf8(image.mtools("mdir", &["::"]).unwrap()).unwrap();
        assert!(listed.contains("has no label"), "{listed}");
        let (code, said) = label(&path, Some("a*b"));
        assert!(code == Some(4) && said.contains("cannot contain"), "{said}");
        let info = ivers(["ls".as_ref(), path.as_os_str()]);
        assert!(said_of(&info).contains("file"), "{}", said_of(&info));
    }
}

fn said_of(output: &std::process::Output) -> String {
    ivers_oracle::said(output)
}

#[test]
fn xfs_labels_are_those_of_xfs_admin() {
    if !ivers_oracle::have_programs(&["mkfs.xfs", "xfs_db", "xfs_repair"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    for kind in [&["-m", "crc=1"][..], &["-s", "size=4096"], &["-m", "crc=0"]] {
        std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        ivers_oracle::run("mkfs.xfs", [&["-q", "-f", "-L", "first"], kind, &[path]].concat()).unwrap();
        assert_eq!(label(&image, None), (Some(0), "first\n".into()));
        if kind.contains(&"crc=0") {
            let (code, said) = label(&image, Some("new"));
            assert!(code == Some(4) && said.contains("version 4"), "{said}");
            continue;
        }
        let read = |group: &str| {
            let words = ["-r", "-c", &format!("sb {group}"), "-c", "label", "-c", "print crc", path];
            let text = ivers_oracle::said(&ivers_oracle::run("xfs_db", words).unwrap());
            assert!(text.contains("(correct)"), "{text}");
            let label = text.lines().find_map(|line| line.strip_prefix("label = "));
            label.unwrap().trim_matches('"').trim_end_matches("\\000").to_owned()
        };
        labels_are_set(&image, &["second", "twelve bytes", "", "again"], || {
            let labels = ["0", "1", "2", "3"].map(read);
            assert!(labels.iter().all(|label| *label == labels[0]), "{labels:?}");
            labels[0].clone()
        });
        ivers_oracle::run("xfs_repair", ["-n", path]).unwrap();
        let (code, said) = label(&image, Some("thirteen byte"));
        assert!(code == Some(4) && said.contains("at most 12 bytes"), "{said}");
        assert_eq!(read("0"), "again");
    }
}

#[test]
fn ufs_labels_are_those_of_blkid() {
    if !ivers_oracle::have_programs(&["blkid", "makefs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, tree) = (dir.path().join("image"), dir.path().join("tree"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "contents").unwrap();
    let path = image.to_str().unwrap();
    let of_makefs = ["-t", "ffs", "-s", "16m", "-o", "version=2", path, tree.to_str().unwrap()];
    ivers_oracle::run("makefs", of_makefs).unwrap();
    for made_by_ivers in [false, true] {
        if made_by_ivers {
            // With check hashes.
            let made = ivers(["mkfs", "-qF", "-t", "ufs2", "--size", "16M", path]);
            assert!(made.status.success(), "{}", said(&made));
        }
        labels_are_set(&image, &["first", "a label of thirty-one bytes yes", "", "again"], || {
            ivers_oracle::said(
                &ivers_oracle::output("blkid", ["-p", "-s", "LABEL", "-o", "value", path]).unwrap(),
            )
            .trim_end()
            .to_owned()
        });
        let checked = ivers(["check", path]);
        assert!(checked.status.success(), "{}", said(&checked));
        let (code, said) = label(&image, Some("a label with thirty-two bytes yes"));
        assert!(code == Some(4) && said.contains("at most 31 bytes"), "{said}");
        assert_eq!(label(&image, None), (Some(0), "again\n".into()));
    }
}

#[test]
fn amiga_labels_are_in_the_root_block() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in ["ofs", "ffs"] {
        let made = ivers(["mkfs", "-qF", "-t", kind, "--size", "880K", image.to_str().unwrap()]);
        assert!(made.status.success(), "{}", said(&made));
        labels_are_set(&image, &["Work", "System 3.1"], || {
            let bytes = std::fs::read(&image).unwrap();
            ivers_affs::check::report(&bytes, 512).closed().unwrap();
            // The root block is the middle one. Its name is 80 bytes before the end, after its length.
            let root = &bytes[880 * 512..881 * 512];
            let name = &root[512 - 80..];
            String::from_utf8(name[1..1 + usize::from(name[0])].to_vec()).unwrap()
        });
        for bad in ["", "a:b"] {
            let (code, said) = label(&image, Some(bad));
            assert!(code == Some(4) && said.contains("label"), "{said}");
        }
    }
}

#[test]
fn a_mounted_image_keeps_its_label() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("rw");
    assert_eq!(label(place.image.path(), Some("new")).0, Some(6));
    assert_eq!(label(place.image.path(), None).0, Some(6));
    place.unmount();
    place.image.check().unwrap();
}
