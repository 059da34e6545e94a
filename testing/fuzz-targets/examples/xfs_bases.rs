//! Makes the XFS images again: `cargo run -p ivers-fuzz-targets --example xfs_bases`, as root: the kernel
//! fills them. Inputs refer to places in them, so existing inputs change their meaning.

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use ivers_oracle::LoopMount;
use std::io::Write;
use std::path::Path;

/// The smallest image with all features of mkfs.xfs 6.1, with two groups.
const BYTES: u64 = 40 << 20;
const ARGS: &str = "--unsupported -q -f -K -d agcount=2 -l size=13m -m rmapbt=1";

/// The images: their name, further arguments of mkfs.xfs, what more is in them, and whether the log is
/// dirty.
const KINDS: [(&str, &str, &str, bool); 3] = [
    ("xfs", "-i nrext64=1", "", false),
    ("xfs_dirty", "-i nrext64=1", "", true),
    ("xfs_small_blocks", "-b size=1024 -n size=4096", SHARED, true),
];

/// Shared, unwritten and freed blocks, and an extent tree with inner nodes.
const SHARED: &str = r#"
head -c 60000 /dev/zero | tr '\0' z > large
cp --reflink=always large clone
xfs_io -c 'pwrite -q 4096 1024' -c 'pwrite -q 20000 1' clone
cp --reflink=always clone shorter; truncate -s 30000 shorter
xfs_io -f -c 'falloc 0 64k' -c 'pwrite -q 30000 3000' unwritten
for i in $(seq 0 2 500); do echo "pwrite -q $((i * 1024)) 100"; done | xfs_io -f tree
sync
for i in $(seq 1 4 500); do echo "pwrite -q $((i * 1024)) 100"; done | xfs_io tree
sync
rm leaf/*7* node/*3* large; rmdir leaf/below; truncate -s 100k tree; mv block few/moved
"#;

const FILL: &str = r#"
set -e
mkdir -p few block leaf/below node
for i in 1 2 3; do echo $i > few/$i; done
for i in $(seq 60); do ln -s x block/entry-$i; done
for i in $(seq 250); do ln few/1 leaf/a-name-of-some-length-$i; done
for i in $(seq 900); do ln few/2 node/a-name-of-some-length-$i; done
ln -s $(printf 'x%.0s' $(seq 1 900)) long
mknod null c 1 3; mkfifo pipe
truncate -s 8m fragments
for i in $(seq 0 2 120); do echo text | dd of=fragments bs=4096 seek=$i conv=notrunc status=none; done
"#;

fn fill(root: &Path, more: &str) -> Result<()> {
    ivers_oracle::run("sh", ["-c", &format!("cd {}; {FILL}{more}", root.display())])?;
    for number in 0..300 {
        xattr::set(root.join("node"), format!("user.{number}"), &vec![number as u8; number % 60])?;
    }
    xattr::set(root.join("few/1"), "user.short", b"value")?;
    xattr::set(root.join("few/2"), "user.large", &[7; 9000])?;
    Ok(())
}

fn main() -> Result<()> {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    for (name, args, more, is_dirty) in KINDS {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        std::fs::File::create(&image)?.set_len(BYTES)?;
        let path = image.to_str().unwrap_or_default();
        ivers_oracle::run("mkfs.xfs", ARGS.split(' ').chain(args.split(' ')).chain([path]))?;
        let mounted = LoopMount::new(&image, "")?;
        fill(mounted.path(), more)?;
        if is_dirty {
            let root = mounted.path().to_str().unwrap_or_default();
            ivers_oracle::run("xfs_io", ["-x", "-c", "shutdown -f", root])?;
        }
        mounted.unmount()?;
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&std::fs::read(&image)?)?;
        std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?;
    }
    Ok(())
}
