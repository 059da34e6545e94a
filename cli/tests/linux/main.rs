//! The Linux kernel's NFS client, in a virtual machine, against our server: the data, the errors, and the
//! image afterwards.
//!
//! `IVERS_NFS_ROUNDS` sets how often the server is killed (default 1) and scales the other work; if it is
//! set, the long tests run too.

#[path = "../common/mod.rs"]
mod common;
mod copy;
mod formats;
mod guest;
mod one_client;
mod reload;
mod server;
mod server_killed;
mod several_clients;
mod v40;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use ivers_oracle::kernel::may_loop_mount;
use ivers_oracle::{Image, LoopMount};

use crate::guest::Client;
use crate::server::Server;

/// Returns the amount of work.
fn rounds() -> Option<usize> {
    std::env::var("IVERS_NFS_ROUNDS").ok()?.parse().ok()
}

/// Returns a filesystem to serve, with enough inodes for all tests.
fn image() -> Image {
    Image::in_memory("ext4", 1 << 30, &["-b", "4096", "-N", "32768"]).expect("mkfs.ext4 makes an image")
}

/// Prints every name, mode, owner, size and time of a tree, and the checksums of its files, with the same
/// command on both sides. The sizes of directories are not compared: they may differ.
const DIGEST: &str = "all() { find . -xdev ! -path './lost+found*' \"$@\" | sort; }; all -type d | xargs -r \
stat -c '%n %f %u:%g %h %Y'; all ! -type d | xargs -r stat -c '%n %f %u:%g %h %s %Y %t:%T';     all -type l \
| xargs -r -n 1 readlink; all -type f | xargs -r md5sum";

/// Ends a client that must have seen only the expected errors, and then the server.
fn ends(mut client: Client, server: Server, expected: &[(u32, &str)]) -> Result<()> {
    client.was_told(expected)?;
    client.end()?;
    server.stop()
}

/// Unmounts the export of the whole image and ends the client; the image must contain the tree that it saw.
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

/// Asserts that e2fsck finds no error and the kernel's driver shows the same tree.
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
