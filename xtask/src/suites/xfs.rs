//! pjdfstest, fsx and work on whole trees, on XFS images of every kind that mkfs.xfs makes.
//!
//! `IVERS_KIND` selects kinds by a part of their options, `IVERS_PART` one of `pjdfstest`, `trees` and `fsx`.

use super::{
    CACHES, Exclusions, FSX_FEWER_OPERATIONS, FSX_OPERATIONS, Mount, Setup, Volume, fsx, pjdfstest, succeeds,
    trees, with_setup,
};
use anyhow::{Result, bail};
use ivers_oracle::LoopMount;
use ivers_oracle::tree::{TreeOptions, tree};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Options of mkfs.xfs. fsx runs its full length on the first ones.
const KINDS: [&str; 20] = [
    "",
    "-m rmapbt=1",
    "-b size=1024",
    "-m reflink=0",
    "-m rmapbt=1 -i nrext64=1",
    "-b size=2048 -i size=1024",
    "-n size=16384",
    "-i sparse=0",
    "-m finobt=0",
    "-m bigtime=0,inobtcount=0",
    "-s size=4096",
    "-b size=1024 -n size=4096 -m rmapbt=1",
    "-i size=2048 -m rmapbt=1",
    "-d agcount=16 -l size=16m",
    "-d su=64k,sw=4 -l size=16m",
    "-l su=32k",
    "-b size=16384 -m rmapbt=1",
    "-m finobt=0,reflink=0,rmapbt=0,bigtime=0,inobtcount=0 -i sparse=0",
    "-m rmapbt=1,reflink=1,finobt=1,bigtime=1,inobtcount=1 -i nrext64=1,sparse=1",
    "-d extszinherit=16",
];
const FULL_LENGTH: usize = 4;
const IMAGE_BYTES: u64 = 400 << 20;

/// Without bigtime, times end in 2038, in Linux too.
const SHORT_TIMES: &Exclusions = &[("times after 2038", &["::y2038$"])];

fn make(kind: &str, image: &Path) -> bool {
    // Small logs and small groups.
    let always = ["-q", "-f", "--unsupported"];
    let quietly = |command: &mut Command| succeeds(command.stderr(Stdio::null()));
    File::create(image).and_then(|file| file.set_len(IMAGE_BYTES)).is_ok()
        && quietly(Command::new("mkfs.xfs").args(always).args(kind.split_whitespace()).arg(image))
}

/// Compares the tree that ivers reads with the one that Linux reads.
fn linux_reads_the_same(ivers: &Path, image: &Path) -> Result<()> {
    let Some(ours) = Mount::new(ivers, "xfs", image, image.with_extension("ours"), "ro") else {
        bail!("{}: ivers does not mount it", image.display());
    };
    let our_text = tree(&ours.dir, TreeOptions::default())?;
    if !ours.unmount() {
        bail!("{}: ivers does not unmount it", image.display());
    }
    let theirs = LoopMount::new(image, "ro,nouuid")?;
    let their_text = tree(theirs.path(), TreeOptions::default())?;
    theirs.unmount()?;
    if let Some((ours, theirs)) = our_text.lines().zip(their_text.lines()).find(|(a, b)| a != b) {
        bail!("{}: ivers reads {ours}; Linux reads {theirs}", image.display());
    }
    if our_text.len() != their_text.len() {
        bail!("{}: the trees differ in their length", image.display());
    }
    Ok(())
}

/// Lets xfs_repair, `ivers check` and Linux judge an image.
fn is_clean(ivers: &Path, image: &Path) -> bool {
    let repair = ivers_oracle::xfs::judge(image);
    let judged = repair.and_then(|()| linux_reads_the_same(ivers, image));
    if let Err(error) = &judged {
        eprintln!("xtask: {}: {error:#}", image.display());
    }
    judged.is_ok() && succeeds(Command::new(ivers).arg("check").arg(image))
}

/// Runs pjdfstest, fsx and work on trees on XFS.
pub(crate) fn suites_xfs() -> bool {
    with_setup(|Setup { tools, ivers, scratch }| {
        let only = |name: &str| std::env::var(name).ok();
        let (kind_part, part) = (only("IVERS_KIND"), only("IVERS_PART"));
        let is_part = |name: &str| part.as_deref().is_none_or(|part| part == name);
        let judge = |image: &Path| is_clean(ivers, image);
        let each = |run: &dyn Fn(&Volume<'_>) -> Option<bool>| {
            let meant = |kind: &&str| kind_part.as_deref().is_none_or(|part| kind.contains(part));
            KINDS.iter().enumerate().filter(|(_, kind)| meant(kind)).all(|(index, kind)| {
                let volume = Volume {
                    name: format!("xfs {kind}"),
                    kind: "xfs",
                    make: &|image| make(kind, image),
                    is_clean: &judge,
                    has_holes: true,
                    excluded: if kind.contains("bigtime=0") { SHORT_TIMES } else { &[] },
                    operations: if index < FULL_LENGTH { FSX_OPERATIONS } else { FSX_FEWER_OPERATIONS },
                };
                run(&volume) == Some(true)
            })
        };
        let on_trees = |volume: &Volume<'_>| trees::run(ivers, scratch, volume);
        Some(
            (!is_part("pjdfstest") || each(&|volume| pjdfstest(tools, ivers, scratch, volume)))
                && (!is_part("trees") || each(&on_trees))
                && (!is_part("fsx")
                    || each(&|volume| {
                        Some(
                            CACHES
                                .iter()
                                .all(|cache| fsx(tools, ivers, scratch, volume, cache) == Some(true)),
                        )
                    })),
        )
    })
}
