//! `cargo xtask check-corpus-btrfs [STEP]`: compares `ivers check --data` with `btrfs check
//! --check-data-csum` on images with one damaged field each, and writes the result to
//! docs/results/check-btrfs.md.
//!
//! Linux fills the images, so this requires root and loop mounts. Each field of each kind of item, of the
//! headers of blocks and of the superblock is damaged in several ways, in all copies, with a right checksum.
//! Whole blocks and sectors of data get a wrong bit, are zeroed, and are exchanged. With STEP, only one of
//! STEP images is used.

use anyhow::{Context, Result, bail};
use ivers_oracle::LoopMount;
use ivers_oracle::btrfs_fields::{BLOCK_DAMAGES, BtrfsImage, DAMAGES, Field, WholeBlock, damage};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkers::{Ran, ivers_check, run_limited};
use crate::target_dir;
use crate::verdicts::{Page, Row, command_of, verdict};

/// The page that the comparison is written to.
const PAGE: &str = "docs/results/check-btrfs.md";
/// How long a checker may take for one image, in seconds.
const LIMIT_S: u32 = 30;
/// How many items of each type in each tree are damaged.
const SAMPLES: usize = 2;
const IMAGE_BYTES: u64 = 128 << 20;

/// How an image is made: its name, and arguments of mkfs.btrfs.
const BASES: [(&str, &[&str]); 3] = [
    ("default", &[]),
    (
        "old features",
        &["-n", "4096", "-m", "single", "-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"],
    ),
    ("mixed groups", &["-M"]),
];

/// Fills a small image.
const FILL: &str = r#"
set -e
mkdir few many links
for i in 1 2 3 4 5; do echo $i > few/file-$i; done
for i in $(seq 700); do echo $i > many/a-rather-long-name-of-a-file-$i; done
rm many/*7*
head -c 400000 /dev/urandom > large; cp --reflink=always large clone; truncate -s 100000 clone
head -c 9000 /dev/urandom | dd of=clone bs=1 seek=20000 conv=notrunc status=none
truncate -s 3M sparse; head -c 5000 /dev/urandom | dd of=sparse bs=4096 seek=500 conv=notrunc status=none
fallocate -l 256K unwritten
head -c 10000 /dev/urandom | dd of=unwritten bs=4096 seek=9 conv=notrunc status=none
: > bare; chattr +C bare; head -c 50000 /dev/urandom > bare
ln -s short link; mkfifo fifo; mknod null c 1 3
for i in $(seq 3); do ln few/file-1 links/$i; done
setfattr -n user.short -v value few; setfattr -n user.other -v x few/file-1
btrfs -q subvolume create sub; cp -r few sub; head -c 300000 /dev/urandom > sub/data
sync
btrfs -q subvolume snapshot sub snap; echo more > snap/few/file-1; btrfs -q subvolume snapshot -r sub fixed
rm -r sub/few; head -c 4096 /dev/urandom | dd of=snap/data bs=1 conv=notrunc status=none
sync
"#;
/// The number of names of one file: more than one INODE_REF has space for.
const MANY_NAMES: &str = "for i in $(seq 300); do ln large links/a-name-$i; done";

fn make(dir: &Path, name: &str, args: &[&str]) -> Result<PathBuf> {
    let image = dir.join(name.replace(' ', "-"));
    std::fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
    let path = image.to_string_lossy().into_owned();
    ivers_oracle::run("mkfs.btrfs", [&["-q", "-f"][..], args, &[path.as_str()]].concat())?;
    let mounted = LoopMount::new(&image, "")?;
    let many = if args.contains(&"-O") { "" } else { MANY_NAMES };
    let script = format!("{FILL}\n{many}");
    let done = Command::new("sh").args(["-c", &script]).current_dir(mounted.path()).output()?;
    if !done.status.success() {
        bail!("cannot fill the image: {}", String::from_utf8_lossy(&done.stderr));
    }
    mounted.unmount()?;
    Ok(image)
}

fn compare(ivers: &str, image: &Path, target: &str, how: &str) -> Result<Row> {
    let (ran, codes) = ivers_check(LIMIT_S, ivers, &["--data"], image)?;
    let ours = verdict(&ran).with_context(|| format!("{target}, {how}"))?;
    let Ran { code, text: said } = run_limited(LIMIT_S, &["btrfs", "check", "--check-data-csum"], image)?;
    let theirs = match code {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    Ok(Row { target: target.into(), damage: how.into(), theirs, ours, codes, said })
}

/// Returns the lines of btrfs check that report damage.
fn complaints(said: &str) -> String {
    let lines = ivers_oracle::btrfs::findings(said);
    lines.take(3).collect::<Vec<_>>().join("; ")
}

/// Makes the file that has the first image equal to the second, by writing only the differences.
fn write_changes(file: &std::fs::File, before: &[u8], after: &[u8]) -> Result<()> {
    const PART: usize = 4096;
    for (number, (old, new)) in before.chunks(PART).zip(after.chunks(PART)).enumerate() {
        if old != new {
            file.write_all_at(new, (number * PART) as u64)?;
        }
    }
    Ok(())
}

/// What an image is damaged in.
enum Damage {
    Field(Field, &'static str),
    Block(WholeBlock, &'static str),
}

impl Damage {
    /// Returns all damage of an image.
    fn all(image: &BtrfsImage) -> Vec<Self> {
        let fields = image.fields(SAMPLES).into_iter();
        let fields = fields.flat_map(|field| DAMAGES.iter().map(move |how| Self::Field(field.clone(), how)));
        let blocks = image.whole_blocks(SAMPLES).into_iter();
        let blocks =
            blocks.flat_map(|block| BLOCK_DAMAGES.iter().map(move |how| Self::Block(block.clone(), how)));
        fields.chain(blocks).collect()
    }

    /// Returns the name of the structure, and what is done to it.
    fn names(&self) -> (&str, String) {
        match self {
            Self::Field(field, how) => (&field.structure, format!("{} {how}", field.name)),
            Self::Block(block, how) => (&block.structure, (*how).into()),
        }
    }

    /// Returns the logical address of the damaged block; `None`: it is the superblock.
    fn address(&self) -> Option<u64> {
        match self {
            Self::Field(field, _) => field.block,
            Self::Block(block, _) => Some(block.address),
        }
    }

    /// Returns the damaged image, if it differs.
    fn apply(&self, whole: &BtrfsImage) -> Option<BtrfsImage> {
        let mut image = whole.clone();
        match self {
            Self::Field(field, how) => image.change(field.block, |block| {
                damage(&mut block[field.bytes.clone()], how);
            }),
            Self::Block(block, how) => image.damage_block(block, how),
        }
        (image.bytes != whole.bytes).then_some(image)
    }
}

fn run(step: usize, only: Option<&str>) -> Result<bool> {
    let ivers = target_dir().join("debug/ivers").to_string_lossy().into_owned();
    let work = tempfile::tempdir()?;
    let (mut rows, mut nth) = (Vec::new(), 0usize);
    for (name, args) in BASES {
        let path = make(work.path(), name, args)?;
        let clean = compare(&ivers, &path, name, "none")?;
        if (clean.theirs, clean.ours) != (Some(false), Some(false)) {
            let said = complaints(&clean.said);
            bail!("{name}: the undamaged image: they {:?} ({said}), we {:?}", clean.theirs, clean.codes);
        }
        let file = std::fs::OpenOptions::new().write(true).open(&path)?;
        let whole = BtrfsImage::parse(std::fs::read(&path)?);
        for damage in Damage::all(&whole) {
            nth += 1;
            let (structure, how) = damage.names();
            let target = format!("{name}: {structure}");
            if !nth.is_multiple_of(step) || only.is_some_and(|only| !target.contains(only)) {
                continue;
            }
            let Some(image) = damage.apply(&whole) else { continue };
            write_changes(&file, &whole.bytes, &image.bytes)?;
            let row = compare(&ivers, &path, &target, &how);
            write_changes(&file, &image.bytes, &whole.bytes)?;
            let row = row?;
            if row.is_missed() {
                let said = complaints(&row.said);
                println!("{target}: {how}: they: {said}; we {:?} {:?}", row.ours, damage.address());
            }
            rows.push(row);
        }
        std::fs::remove_file(&path)?;
    }
    let version = Command::new("btrfs").arg("--version").output()?;
    let page = Page {
        other: "btrfs check",
        damager: "this command",
        command: &command_of("check-corpus-btrfs", step),
        other_command: &format!(
            "`btrfs check --check-data-csum`: {}",
            String::from_utf8_lossy(&version.stdout).trim()
        ),
    };
    std::fs::write(PAGE, page.text(&rows)?)?;
    println!("{PAGE} is written: {} images", rows.len());
    Ok(!rows.iter().any(|row| row.theirs == Some(true) && row.ours == Some(false)))
}

/// Compares the checkers on damaged images. Fails where only btrfs check finds damage.
pub fn check_btrfs(step: usize, only: Option<&str>) -> bool {
    let built = crate::run("build", "cargo", &["build", "-p", "ivers"], &[]);
    built
        && run(step.max(1), only).unwrap_or_else(|error| {
            eprintln!("xtask: check-corpus-btrfs: {error:#}");
            false
        })
}
