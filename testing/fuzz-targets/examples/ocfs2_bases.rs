//! Makes the OCFS2 images again: `cargo run -p ivers-fuzz-targets --example ocfs2_bases` (package
//! ocfs2-tools, and those of an emulated machine). Inputs refer to places in them, so existing inputs change
//! their meaning. The tests of `fs/ocfs2` read them, too.

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use ivers_oracle::{Ocfs2Machine, mkfs_ocfs2};
use std::io::Write;
use std::path::Path;

/// The images: their name, bytes, and options of mkfs.ocfs2.
const KINDS: [(&str, u64, &[&str]); 3] = [
    ("ocfs2", 12 << 20, &["-b", "1K", "-C", "4K", "-J", "size=4M", "-L", "plain"]),
    (
        "ocfs2_sums",
        12 << 20,
        &[
            "-b",
            "512",
            "-C",
            "4K",
            "-J",
            "size=4M",
            "--fs-feature-level=max-features",
            "--fs-features=metaecc",
        ],
    ),
    ("ocfs2_dirty", 20 << 20, &["-b", "4K", "-C", "4K", "-J", "size=4M"]),
];

/// Makes a tree with everything that the driver reads, of compressible contents.
const FILL: &[&str] = &[
    "mkdir -p few/below many && echo text > few/file && echo inline > small",
    "for i in $(seq 120); do echo > many/a-name-of-some-length-$i; done",
    "for i in $(seq 100); do echo lllllllll; done > .l && for i in $(seq 100); do cat .l; done > large",
    "for i in $(seq 0 2 80); do dd if=.l of=holes bs=4k seek=$i count=1 conv=notrunc,sync 2>/dev/null; done",
    "ln few/file hard && ln -s few/file short && ln -s $(printf 'x%.0s' $(seq 700)) long",
    "mkfifo -m 640 pipe && mknod device c 5 1 && cp -a large prefix && fallocate -l 65536 ahead",
    "/usr/bin/cp --reflink=always large clone",
    "setfattr -n user.color -v blue small && setfacl -m u:1000:r few/file",
    "for i in $(seq 60); do setfattr -n user.a-longer-name-$i -v $(seq -s. 30) few/file; done",
    "setfattr -n trusted.large -v $(seq -s, 900) large && rm .l && sync",
];

fn main() -> Result<()> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    let dir = tempfile::tempdir()?;
    let images = KINDS.map(|(name, ..)| dir.path().join(name));
    for ((_, bytes, options), image) in KINDS.iter().zip(&images) {
        mkfs_ocfs2(image, *bytes, options)?;
    }
    let mut machine = Ocfs2Machine::boot(&target.join("kernel"), &images)?;
    for (nth, (name, ..)) in KINDS.iter().enumerate() {
        machine.mount(nth)?;
        for line in FILL {
            machine.run(line)?;
        }
        if *name == "ocfs2_dirty" {
            machine
                .run("(sleep 600 < few/file > /dev/null & sleep 1); rm few/file hard; mkdir after; sync")?;
        } else {
            machine.unmount()?;
        }
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&machine.image(nth)?)?;
        std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?;
    }
    machine.off()
}
