//! The suites on btrfs images of every kind that mkfs.btrfs makes and ivers writes.

use super::kinds::{Kinds, linux_reads_the_same};
use super::{Exclusions, succeeds, with_setup};
use anyhow::Result;
use ivers_oracle::LoopMount;
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Options of mkfs.btrfs. fsx runs its full length on the first ones. If a kind has the word [`SNAPSHOT`],
/// Linux first fills the image and makes a snapshot.
const KINDS: [&str; 13] = [
    "",
    "-n 4096 -m single -d single",
    "-M",
    "-O ^no-holes,^extref,^skinny-metadata -R ^free-space-tree",
    "-n 65536",
    "-m dup -d dup",
    "-O ^no-holes",
    "--csum xxhash",
    "--csum sha256",
    "--csum blake2",
    "-n 32768 -m dup -d single --csum xxhash",
    "-n 4096 snapshot",
    "-M snapshot",
];
const SNAPSHOT: &str = "snapshot";
const FULL_LENGTH: usize = 4;
const IMAGE_BYTES: u64 = 400 << 20;

const FILL: &str = "mkdir old; for i in $(seq 1 3000); do echo $i > old/$i; done; seq 1 500000 > old/large; \
                    btrfs -q subvolume snapshot . snapshot; rm old/1*; echo more >> old/large";

/// The link count of each directory of btrfs is 1.
const EXCLUDED: &Exclusions = &[("link counts of directories", &["rename::updates_link_parent"])];

fn make(kind: &str, image: &Path) -> bool {
    let words = || kind.split_whitespace().filter(|word| *word != SNAPSHOT);
    let made = || -> Result<()> {
        File::create(image)?.set_len(IMAGE_BYTES)?;
        ivers_oracle::run("mkfs.btrfs", ["-q", "-f"].into_iter().chain(words()).chain(image.to_str()))?;
        if kind.contains(SNAPSHOT) {
            let mounted = LoopMount::new(image, "")?;
            let script = format!("set -e; cd {}; {FILL}", mounted.path().display());
            ivers_oracle::run("sh", ["-c", &script])?;
            mounted.unmount()?;
        }
        Ok(())
    };
    made().inspect_err(|error| eprintln!("xtask: {error:#}")).is_ok()
}

/// Lets `btrfs check` and Linux judge an image: Linux reads an equal tree, and writes if it has space.
fn is_clean(ivers: &Path, image: &Path, has_space: bool) -> bool {
    let judge = || -> Result<()> {
        ivers_oracle::btrfs::judge(image)?;
        linux_reads_the_same(ivers, "btrfs", image, "ro")?;
        if has_space { ivers_oracle::btrfs::linux_writes(image) } else { Ok(()) }
    };
    let judged = judge();
    if let Err(error) = &judged {
        eprintln!("xtask: {}: {error:#}", image.display());
    }
    judged.is_ok()
}

/// Returns the bytes of the largest value. An attribute lies in one leaf, with its name.
fn value_max(kind: &str) -> usize {
    const BESIDE: usize = 500;
    let mut words = kind.split_whitespace();
    let node_bytes = words.find(|word| *word == "-n").and_then(|_| words.next()?.parse().ok());
    node_bytes.unwrap_or(16_384) - BESIDE
}

/// Runs the suites on btrfs.
pub(crate) fn suites_btrfs() -> bool {
    if !succeeds(Command::new("mkfs.btrfs").arg("--version")) {
        eprintln!("xtask: mkfs.btrfs is not installed");
        return false;
    }
    with_setup(|setup| {
        let kinds = Kinds {
            format: "btrfs",
            kinds: &KINDS,
            full_length: FULL_LENGTH,
            make: &make,
            is_clean: &|image| is_clean(&setup.ivers, image, true),
            is_clean_full: &|image| is_clean(&setup.ivers, image, false),
            excluded: &|_| EXCLUDED,
            value_max: &value_max,
        };
        kinds.run(setup)
    })
}
