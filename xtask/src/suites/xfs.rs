//! The suites on XFS images of every kind that mkfs.xfs makes.

use super::kinds::{Kinds, linux_reads_the_same};
use super::trees::VALUE_MAX;
use super::{Exclusions, succeeds, with_setup};
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

/// Lets xfs_repair, `ivers check` and Linux judge an image.
fn is_clean(ivers: &Path, image: &Path) -> bool {
    let repair = ivers_oracle::xfs::judge(image);
    let judged = repair.and_then(|()| linux_reads_the_same(ivers, "xfs", image, "ro,nouuid"));
    if let Err(error) = &judged {
        eprintln!("xtask: {}: {error:#}", image.display());
    }
    judged.is_ok() && succeeds(Command::new(ivers).arg("check").arg(image))
}

/// Runs the suites on XFS.
pub(crate) fn suites_xfs() -> bool {
    with_setup(|setup| {
        let kinds = Kinds {
            format: "xfs",
            kinds: &KINDS,
            full_length: FULL_LENGTH,
            make: &make,
            is_clean: &|image| is_clean(&setup.ivers, image),
            is_clean_full: &|image| is_clean(&setup.ivers, image),
            excluded: &|kind| if kind.contains("bigtime=0") { SHORT_TIMES } else { &[] },
            value_max: &|_| VALUE_MAX,
        };
        kinds.run(setup)
    })
}
