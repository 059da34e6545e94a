//! Images that commands and mounts change, judged by other tools. Formats whose values are stored share this.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ivers_oracle::kernel::LoopMount;
use ivers_oracle::{TreeOptions, tree};

use super::{change, works};

pub const TEXT: &[u8] = b"text of a file";
pub const PLAIN: TreeOptions = TreeOptions { no_times: true, no_trusted: true };

/// Makes a directory with 300 files below another one.
pub fn fill_many(source: &Path) {
    fs::create_dir_all(source.join("dir/many")).unwrap();
    for number in 0..300 {
        fs::write(source.join(format!("dir/many/{number}")), vec![number as u8; number * 30]).unwrap();
    }
}

/// An image in a temporary directory, and how another tool judges it.
pub struct ImagePlace {
    dir: tempfile::TempDir,
    pub image: PathBuf,
    judge: fn(&Path) -> anyhow::Result<()>,
}

impl ImagePlace {
    pub fn new(image: &str, judge: fn(&Path) -> anyhow::Result<()>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join(image);
        Self { dir, image, judge }
    }

    pub fn name(&self) -> &str {
        self.image.to_str().unwrap()
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// The directory beside the image that its maker reads.
    pub fn source(&self) -> PathBuf {
        self.path("source").into()
    }

    /// Fills that directory: many files, a short one with two names, and a symbolic link.
    pub fn fill_source(&self) -> PathBuf {
        let source = self.source();
        fill_many(&source);
        fs::write(source.join("dir/file"), TEXT).unwrap();
        fs::hard_link(source.join("dir/file"), source.join("twin")).unwrap();
        symlink("dir/file", source.join("link")).unwrap();
        source
    }

    /// A path in the image.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.name())
    }

    pub fn is_clean(&self) {
        (self.judge)(&self.image).unwrap();
        works(&["check", self.name()]);
    }

    pub fn mount(&self, options: &str) -> PathBuf {
        let dir = self.dir.path().join("mnt");
        let _ = fs::create_dir(&dir);
        works(&["mount", "-o", options, self.name(), dir.to_str().unwrap()]);
        dir
    }

    pub fn unmount(&self) {
        works(&["unmount", &self.path("mnt")]);
    }

    /// Asserts that Linux reads this tree.
    pub fn linux_reads(&self, expected: &str) {
        let linux = LoopMount::new(&self.image, "ro").unwrap();
        let found = tree(linux.path(), PLAIN).unwrap();
        assert!(found == expected, "{found}\n---\n{expected}");
        linux.unmount().unwrap();
    }
}

impl Drop for ImagePlace {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path().join("mnt"), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Changes an image by commands. `source` is a directory beside it with a file `large`; `many` is a directory
/// in it, and `kept` a name that must not count as changed.
pub fn change_by_commands(place: &ImagePlace, source: &str, many: &str, kept: &str) {
    let tree_in_image = |below: &str| place.at(&format!("/{source}{below}"));
    let outside = place.path(source);
    works(&["cp", "-a", &outside, &place.at("/")]);
    works(&["tar", "-c", &tree_in_image(""), "-f", &place.path("a.tar")]);
    works(&["mkdir", "-p", &place.at("/made/below")]);
    works(&["tar", "-x", &place.at("/made"), "-f", &place.path("a.tar")]);
    place.is_clean();

    let state = place.path("state");
    works(&["changed", place.name(), "--save", &state]);
    works(&["touch", &place.at("/made/below/new")]);
    works(&["mv", &place.at("/made/large"), &place.at("/made/below")]);
    works(&["ln", &place.at("/made/below/new"), &place.at("/hard")]);
    works(&["ln", "-s", "hard", &place.at("/soft")]);
    works(&["chmod", "600", &tree_in_image("/large")]);
    works(&["chown", "7:70000", &place.at("/hard")]);
    works(&["attr", "set", "user.x", "y", &place.at("/hard")]);
    works(&["rm", "-r", &tree_in_image(many)]);
    works(&["shell", place.name(), "-c", "mkdir /shell", "-c", "cp /hard /shell", "-c", "rm /soft"]);
    let changed = works(&["changed", place.name(), "--since", &state]);
    for line in ["N hard", "N shell/hard", "N made/below/new", "M made/large -> made/below/large"] {
        assert!(changed.lines().any(|found| found == line), "no {line:?}: {changed}");
    }
    assert!(!changed.contains(kept), "it did not change: {changed}");
    let stat: serde_json::Value =
        serde_json::from_str(&works(&["stat", "--json", &place.at("/hard")])).unwrap();
    assert_eq!((stat["nlink"].as_u64(), stat["gid"].as_u64()), (Some(2), Some(70000)), "{stat}");
    assert!(works(&["du", "-s", &place.at("/")]).contains('/'));
    place.is_clean();

    works(&["rm", "-r", &tree_in_image(""), &place.at("/shell")]);
    works(&["mv", &place.at("/made/below/large"), &place.at("/made/large")]);
    works(&["rm", "-r", &place.at("/made/below"), &place.at("/hard")]);
    let back = place.path("back");
    works(&["cp", "-a", &place.at("/made"), &back]);
    let [source, back] = [outside, back].map(|dir| tree(Path::new(&dir), PLAIN).unwrap());
    assert!(source == back, "{source}\n---\n{back}");
    place.is_clean();
}

/// Changes a mounted image, and follows the stored values. `dir` is the mount, with a file `large`; `many` is
/// a directory in it with a file `twin`. `linux` says whether Linux can mount the image.
pub fn change_in_a_mount(place: &ImagePlace, dir: &Path, many: &str, linux: bool) {
    let mut appended = fs::OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
    (0..200).for_each(|_| appended.write_all(TEXT).unwrap());
    appended.sync_all().unwrap();
    drop(appended);
    fs::remove_file(dir.join(many).join("file with a long name 7")).unwrap();
    fs::rename(dir.join(many), dir.join("moved")).unwrap();
    fs::File::options().write(true).open(dir.join("large")).unwrap().set_len(1_234_567).unwrap();
    let names = ["", "log", "large", "moved", "moved/twin"];
    let values = || names.map(|name| change(&dir.join(name)));
    let (before, shown) = (values(), tree(dir, PLAIN).unwrap());
    place.unmount();
    place.is_clean();
    if linux {
        place.linux_reads(&shown);
    }

    // The values are stored. A change raises the value of one inode. Writes by Linux raise all values.
    place.mount("rw");
    assert!(values() == before, "{before:?} {:?}", values());
    fs::write(dir.join("log"), "new").unwrap();
    let after = values();
    assert!(after[1] > before[1] && after[3..] == before[3..], "{before:?} {after:?}");
    place.unmount();
    if !linux {
        return;
    }
    let mounted = LoopMount::new(&place.image, "").unwrap();
    fs::write(mounted.path().join("from-linux"), TEXT).unwrap();
    mounted.unmount().unwrap();
    place.mount("rw");
    assert_eq!(fs::read(dir.join("from-linux")).unwrap(), TEXT);
    let raised = values();
    assert!(raised.iter().zip(&after).all(|(new, old)| new > old), "{after:?} {raised:?}");
    place.unmount();
    place.is_clean();
}
