//! Mounts made by the command.

use std::path::{Path, PathBuf};
use std::process::Command;

const IVERS: &str = env!("CARGO_BIN_EXE_ivers");

/// An image that ivers has mounted; detached when dropped after a failure.
pub struct Ours {
    dir: PathBuf,
    mounted: bool,
}

impl Ours {
    pub fn mount(image: &Path) -> Self {
        let dir = image.with_file_name("ours");
        std::fs::create_dir_all(&dir).unwrap();
        let output = Command::new(IVERS)
            .arg("mount")
            .args([image, &dir])
            .arg("--log")
            .arg(image.with_file_name("log"))
            .output()
            .unwrap();
        assert!(output.status.success(), "ivers mount: {}", ivers_oracle::said(&output));
        Self { dir, mounted: true }
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    pub fn unmount(mut self) {
        let output = Command::new(IVERS).arg("unmount").arg(&self.dir).output().unwrap();
        assert!(output.status.success(), "ivers unmount: {}", ivers_oracle::said(&output));
        self.mounted = false;
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.dir).status();
        }
    }
}

/// Returns a number that the mount shows as an extended attribute.
pub fn attribute(path: &Path, name: &str) -> u64 {
    let value =
        xattr::get(path, name).unwrap_or_else(|error| panic!("{name} of {}: {error}", path.display()));
    let value = value.unwrap_or_else(|| panic!("{} has no {name}", path.display()));
    String::from_utf8(value).unwrap().parse().unwrap()
}
