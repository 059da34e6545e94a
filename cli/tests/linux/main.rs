//! The Linux kernel's own NFS client, in an emulated machine, against our server: what it reads and writes, what it is told, and what is left on the image.
//!
//! `IVERS_NFS_ROUNDS` sets how often the server is killed (default 1) and how much else is done; with it, what takes long is done too.

#[path = "../common/mod.rs"]
mod common;
mod copied;
mod formats;
mod guest;
mod killed;
mod old;
mod one;
mod reloaded;
mod server;
mod several;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use ivers_oracle::kernel::may_loop_mount;
use ivers_oracle::{Image, LoopMount};

use crate::guest::Client;
use crate::server::Server;

/// How much is done.
fn rounds() -> Option<usize> {
    std::env::var("IVERS_NFS_ROUNDS").ok()?.parse().ok()
}

/// A filesystem to serve, with files enough for all.
fn image() -> Image {
    Image::in_memory("ext4", 1 << 30, &["-b", "4096", "-N", "32768"]).expect("mkfs.ext4 makes an image")
}

/// Every name, mode, owner, size and time of a tree, and the sums of its files: by the same words on both sides. Directories' sizes are not compared: nobody
/// promises them.
const DIGEST: &str = "all() { find . -xdev ! -path './lost+found*' \"$@\" | sort; }; \
    all -type d | xargs -r stat -c '%n %f %u:%g %h %Y'; all ! -type d | xargs -r stat -c '%n %f %u:%g %h %s %Y %t:%T'; \
    all -type l | xargs -r -n 1 readlink; all -type f | xargs -r md5sum";

/// A client goes, who was told no errors but those expected, and then the server.
fn ends(mut client: Client, server: Server, expected: &[(u32, &str)]) -> Result<()> {
    client.was_told(expected)?;
    client.end()?;
    server.stop()
}

/// A client unmounts what holds the whole image, and goes; what he saw there is in the image.
fn ends_with_the_tree(
    mut client: Client,
    at: &str,
    server: Server,
    image: &Path,
    expected: &[(u32, &str)],
) -> Result<()> {
    let seen = client.guest.run_within(&format!("cd {at} && {DIGEST}"), Duration::from_secs(300))?;
    client.unmount(at)?;
    ends(client, server, expected)?;
    holds(image, &seen)
}

/// e2fsck has nothing to say, and the kernel's own driver sees what the client has seen.
fn holds(image: &Path, seen: &str) -> Result<()> {
    ivers_oracle::e2fsck(image)?;
    if !may_loop_mount() {
        return Ok(());
    }
    let mount = LoopMount::new(image, "ro,noload")?;
    let line = format!("cd '{}' && {DIGEST}", mount.path().display());
    let output = ivers_oracle::run("busybox", ["sh", "-c", &line])?;
    mount.unmount()?;
    let there = String::from_utf8_lossy(&output.stdout).into_owned();
    let differs = there.trim_end().lines().zip(seen.lines()).find(|(there, seen)| there != seen);
    ensure!(differs.is_none(), "the image and what the client saw differ: {differs:?}");
    ensure!(there.trim_end().lines().count() == seen.lines().count(), "one of them has more");
    Ok(())
}
