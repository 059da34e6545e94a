//! Foreign writers: programs that change files between our sessions.

use anyhow::{Context, Result, bail};
use ivers_oracle::{Image, e2fs, run};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Changes files that [`crate::work::fill`] made, through any mount.
pub fn change_files(root: &Path, who: &str) -> Result<()> {
    let fill = root.join("fill");
    let file = OpenOptions::new().write(true).open(fill.join("file-0"))?;
    file.write_all_at(who.as_bytes(), 0)?;
    file.sync_all()?;
    OpenOptions::new().write(true).open(fill.join("file-1"))?.set_len(who.len() as u64 * 100)?;
    let mode = fs::metadata(fill.join("file-2"))?.permissions().mode();
    fs::set_permissions(fill.join("file-2"), fs::Permissions::from_mode(mode & 0o7777 ^ 0o022))?;
    xattr::set(fill.join("file-3"), "user.who", who.as_bytes())?;
    fs::rename(fill.join("file-4"), fill.join("file-4-moved"))?;
    fs::rename(fill.join("file-4-moved"), fill.join("file-4"))?;
    // An inode is freed and another created, most likely in the same slot.
    fs::remove_file(fill.join("file-5"))?;
    fs::write(fill.join("file-5"), format!("another file-5, by {who}"))?;
    fs::create_dir_all(fill.join("made"))?;
    fs::write(fill.join("made").join(who), who)?;
    Ok(())
}

/// Changes an inode with debugfs, without its times and its counter.
pub fn debugfs(image: &Image) -> Result<()> {
    let host = image.dir().join("host");
    fs::write(&host, "written by debugfs")?;
    for request in [
        "sif fill/file-2 mode 0100400".to_owned(),
        "sif fill/file-6 uid 1234".to_owned(),
        "rm fill/file-7".to_owned(),
        format!("write {} fill/file-7", host.display()),
    ] {
        let path = image.path().to_str().context("a path in UTF-8")?;
        let output = run("debugfs", ["-w", "-R", &request, path])?;
        let said = ivers_oracle::said(&output);
        if said.lines().any(|line| {
            !(line.is_empty() || line.starts_with("debugfs 1.") || line.starts_with("Allocated inode"))
        }) {
            bail!("debugfs {request}: {said}");
        }
    }
    Ok(())
}

/// Runs fuse2fs, if it is installed and supports this kind of image. e2fsck repairs what it leaves, as its
/// manual says.
pub fn fuse2fs(kind: &str, image: &Image) -> Result<bool> {
    let Some(program) = ivers_oracle::find_program("fuse2fs") else {
        eprintln!("{kind}: fuse2fs is not installed: left out");
        return Ok(false);
    };
    let dir = image.dir().join("theirs");
    fs::create_dir_all(&dir)?;
    let outside = fs::metadata(&dir)?.dev();
    let mut daemon = Command::new(program).arg("-f").args([image.path(), &dir]).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::metadata(&dir)?.dev() == outside {
        if daemon.try_wait()?.is_some() {
            eprintln!("{kind}: fuse2fs does not take this image: left out");
            return Ok(false);
        }
        if Instant::now() > deadline {
            daemon.kill()?;
            bail!("fuse2fs did not come up in 20 s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let fill = dir.join("fill");
    let changed = fs::write(fill.join("file-8"), "written by fuse2fs")
        .and_then(|()| fs::set_permissions(fill.join("file-9"), fs::Permissions::from_mode(0o604)))
        .and_then(|()| fs::remove_file(fill.join("file-10")))
        .and_then(|()| fs::write(fill.join("file-10"), "another file-10, by fuse2fs"));
    run("fusermount3", ["-u".as_ref(), dir.as_os_str()])?;
    daemon.wait()?;
    changed?;
    e2fs::e2fsck_repair_all(image.path())?;
    Ok(true)
}
