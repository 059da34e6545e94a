//! e2fsprogs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// An image made by mkfs, in a temporary directory.
pub struct Image {
    dir: TempDir,
    path: PathBuf,
}

impl Image {
    /// Runs `mkfs.TYPE options image` on a sparse file. `kind` is `ext2`, `ext3` or `ext4`.
    pub fn new(kind: &str, size_bytes: u64, options: &[&str]) -> Result<Self> {
        Self::new_in(&std::env::temp_dir(), kind, size_bytes, options)
    }

    /// Makes the image in memory, if there is a place for it: flushes cost nothing there.
    pub fn in_memory(kind: &str, size_bytes: u64, options: &[&str]) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        if !memory.is_dir() {
            return Self::new(kind, size_bytes, options);
        }
        Self::new_in(memory, kind, size_bytes, options)
    }

    fn new_in(place: &Path, kind: &str, size_bytes: u64, options: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ivers-image-").tempdir_in(place)?;
        let path = dir.path().join("image");
        std::fs::File::create(&path)?.set_len(size_bytes)?;
        let mut args: Vec<&OsStr> = vec!["-q".as_ref(), "-F".as_ref()];
        args.extend(options.iter().map(OsStr::new));
        args.push(path.as_ref());
        crate::run(&format!("mkfs.{kind}"), args)?;
        Ok(Self { dir, path })
    }

    /// Returns the image file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a directory beside it, for mount points and copies.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Copies the image, as after a crash of the machine that writes it.
    pub fn copy(&self) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("ivers-image-").tempdir()?;
        let path = dir.path().join("image");
        crate::run("cp", [OsStr::new("--sparse=always"), self.path.as_ref(), path.as_ref()])?;
        Ok(Self { dir, path })
    }

    /// Checks the image with [`e2fsck`].
    pub fn check(&self) -> Result<()> {
        e2fsck(&self.path)
    }
}

/// Runs `e2fsck -fn`. It must exit with 0 and print only its headings and offers to optimize extent trees.
/// The output is read because e2fsck exits with 0 on stale counts.
pub fn e2fsck(image: &Path) -> Result<()> {
    let output = crate::output("e2fsck", [OsStr::new("-fn"), image.as_ref()])?;
    let said = crate::said(&output);
    ensure!(output.status.success(), "e2fsck -fn {}: {}\n{said}", image.display(), output.status);
    if let Some(complaint) = said.lines().find(|line| is_complaint(line.trim())) {
        bail!("e2fsck -fn {} complains: {complaint}\n{said}", image.display());
    }
    Ok(())
}

fn is_complaint(line: &str) -> bool {
    // The last line is `NAME: 11/64 files (0.0% non-contiguous), 10/64 blocks`.
    let summary = line.contains(" files (") && line.ends_with(" blocks");
    // `Inode 12 extent tree (at level 2) could be narrower.  Optimize? no`: a valid tree from which much was
    // removed.
    let hint = line.starts_with("Inode ")
        && line.contains(" extent tree (at level ")
        && line.ends_with("Optimize? no");
    !(line.is_empty() || line.starts_with("e2fsck 1.") || line.starts_with("Pass ") || summary || hint)
}

/// Runs `e2fsck -p`, which makes safe repairs (journal replay, orphans), and returns its output. Exit codes 0
/// and 1 are success.
pub fn e2fsck_repair(image: &Path) -> Result<String> {
    repair(image, "-p")
}

/// Runs `e2fsck -fy`, which checks and repairs everything, after writers that are known to leave errors.
pub fn e2fsck_repair_all(image: &Path) -> Result<String> {
    repair(image, "-fy")
}

/// Returns whether an `e2fsck -p` with this output dropped the attribute block of a file that was being
/// truncated. e2fsck 1.47.0 does so for every orphan, also for one that has names and stays ("do not clean up
/// file acl if the inode is truncating type", a patch to linux-ext4 of March 2022). It shows as a block count
/// that e2fsck itself finds wrong in the next run.
pub fn drops_attributes(image: &Path, said: &str) -> Result<bool> {
    let mut truncated =
        said.lines().filter_map(|line| Some(line.split_once("Truncating orphaned inode ")?.1)).peekable();
    if truncated.peek().is_none() {
        return Ok(false);
    }
    let again = crate::said(&crate::output("e2fsck", [OsStr::new("-fn"), image.as_ref()])?);
    Ok(truncated.filter_map(|rest| rest.split_whitespace().next()).any(|number| {
        let wrong = format!("Inode {number}, i_blocks is ");
        said.contains(&wrong) || again.contains(&wrong)
    }))
}

fn repair(image: &Path, how: &str) -> Result<String> {
    let output = crate::output("e2fsck", [OsStr::new(how), image.as_ref()])?;
    let said = crate::said(&output);
    ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "e2fsck {how} {}: {}\n{}",
        image.display(),
        output.status,
        said
    );
    Ok(said)
}

/// Returns the output of `debugfs -R REQUEST`.
pub fn debugfs(image: &Path, request: &str) -> Result<String> {
    let output = crate::run("debugfs", [OsStr::new("-R"), request.as_ref(), image.as_ref()])?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the stored counter of an inode, as debugfs prints it. `what` is a path or `<INO>`.
pub fn stored_counter(image: &Path, what: &str) -> Result<u64> {
    let text = debugfs(image, &format!("stat {what}"))?;
    parse_version(&text).with_context(|| format!("no version in the output of debugfs for {what}: {text}"))
}

/// Parses `Version: 0xHHHHHHHH:LLLLLLLL` of large inodes and `Version: 0xLLLLLLLL` of small ones.
fn parse_version(text: &str) -> Option<u64> {
    let rest = text.split("Version: 0x").nth(1)?;
    let digits = rest.split_whitespace().next()?;
    match digits.split_once(':') {
        Some((high, low)) => {
            Some(u64::from_str_radix(high, 16).ok()? << 32 | u64::from(u32::from_str_radix(low, 16).ok()?))
        }
        None => u64::from_str_radix(digits, 16).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_dropped_by_e2fsck_are_detected() {
        for lasting in [true, false] {
            let image = Image::new("ext4", 8 << 20, &["-b", "1024"]).unwrap();
            let bytes = image.dir().join("bytes");
            std::fs::write(&bytes, [b'x'; 3000]).unwrap();
            let value = image.dir().join("value");
            std::fs::write(&value, vec![b'x'; if lasting { 10 } else { 600 }]).unwrap();
            let written = |request: &str| {
                crate::run(
                    "debugfs",
                    [OsStr::new("-w"), "-R".as_ref(), request.as_ref(), image.path().as_ref()],
                )
                .unwrap()
            };
            written(&format!("write {} file", bytes.display()));
            written(&format!("ea_set -f {} file user.name", value.display()));
            written("sif file size 1000");
            let stat = debugfs(image.path(), "stat file").unwrap();
            let inode = stat.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap();
            written(&format!("ssv last_orphan {inode}"));

            let said = e2fsck_repair(image.path()).unwrap();
            assert!(said.contains("Truncating orphaned inode"), "{said}");
            let gone = !debugfs(image.path(), "ea_list file").unwrap().contains("user.name");
            assert_eq!(drops_attributes(image.path(), &said).unwrap(), gone);
            assert!(!(lasting && gone), "attributes in the inode itself cannot be dropped");
        }
    }

    #[test]
    fn headings_and_hints_of_e2fsck_are_ignored() {
        for fine in [
            "e2fsck 1.47.0 (5-Feb-2023)",
            "Pass 1: Checking inodes, blocks, and sizes",
            "Inode 12 extent tree (at level 2) could be narrower.  Optimize? no",
            "image: 11/64 files (0.0% non-contiguous), 10/64 blocks",
        ] {
            assert!(!is_complaint(fine), "{fine}");
        }
        for bad in [
            "Free blocks count wrong (10, counted=9).",
            "Inode 12 extent tree (at level 2) is damaged.  Fix? no",
            "Inode 12, i_blocks is 8, should be 16.  Fix? no",
        ] {
            assert!(is_complaint(bad), "{bad}");
        }
    }

    #[test]
    fn versions_of_both_inode_sizes_parse() {
        let large = "Inode: 12\nGeneration: 1    Version: 0x00000002:00000007\nUser: 0";
        assert_eq!(parse_version(large), Some((2 << 32) + 7));
        assert_eq!(parse_version("Generation: 1    Version: 0x0000000a\n"), Some(10));
        assert_eq!(parse_version("no inode"), None);
    }

    #[test]
    fn a_fresh_image_is_clean_and_a_damaged_one_is_not() {
        if !crate::have_programs(&["mkfs.ext4", "e2fsck", "debugfs"]) {
            return;
        }
        let image = Image::new("ext4", 8 << 20, &[]).unwrap();
        image.check().unwrap();
        assert!(stored_counter(image.path(), "<2>").is_ok());
        let copy = image.copy().unwrap();
        // Only wrong counts: e2fsck -fn can exit with 0 on these; the check must still fail.
        crate::run(
            "debugfs",
            [OsStr::new("-w"), "-R".as_ref(), "ssv free_inodes_count 3".as_ref(), copy.path().as_ref()],
        )
        .unwrap();
        assert!(copy.check().is_err());
        image.check().unwrap();
    }
}
