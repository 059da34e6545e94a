//! A tree on the host that `ivers mkfs --from` copies.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Makes a tree of directories, so many names, holes, links, attributes, and a large file of so many bytes.
pub fn tree_to_copy(dir: &Path, names: usize, bytes: usize) {
    fs::create_dir_all(dir.join("many")).unwrap();
    for nth in 0..names {
        fs::write(dir.join(format!("many/file with a long name {nth}")), vec![nth as u8; nth]).unwrap();
    }
    fs::write(dir.join("large"), (0..bytes).map(|at| (at / 7) as u8).collect::<Vec<_>>()).unwrap();
    let holes = fs::File::create(dir.join("holes")).unwrap();
    holes.write_all_at(b"island", 1 << 20).unwrap();
    holes.set_len(8 << 20).unwrap();
    fs::hard_link(dir.join("large"), dir.join("many/twin")).unwrap();
    std::os::unix::fs::symlink("large", dir.join("link")).unwrap();
    xattr::set(dir.join("large"), "user.note", b"kept").unwrap();
}

/// Packs a tree into an archive, as GNU tar does.
pub fn archive_tree(source: &Path, archive: &Path) {
    let words = ["--format=posix", "--sort=name", "--sparse", "--xattrs", "-cf", archive.to_str().unwrap()];
    ivers_oracle::run("tar", words.into_iter().chain(["-C", source.to_str().unwrap(), "."])).unwrap();
}
