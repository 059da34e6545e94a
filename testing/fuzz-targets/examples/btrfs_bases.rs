//! Makes the btrfs images again: `cargo run -p ivers-fuzz-targets --example btrfs_bases`. It requires root,
//! because the kernel fills them. Fuzz inputs refer to positions in the images, so existing inputs change
//! their meaning.

use anyhow::Result;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use ivers_oracle::LoopMount;
use std::io::Write;
use std::path::Path;

const BYTES: u64 = 48 << 20;

/// The name of each image, and the arguments of mkfs.btrfs.
const KINDS: [(&str, &str); 2] = [
    ("btrfs", "-q -f -K -n 4096 -m single -d single"),
    ("btrfs_old", "-q -f -K -M -n 4096 -O ^no-holes,^extref,^skinny-metadata -R ^free-space-tree"),
];

const FILL: &str = r#"
set -e
mkdir -p few many/below
for i in 1 2 3; do echo $i > few/$i; done
for i in $(seq 60); do ln few/1 many/a-name-of-some-length-$i; done
ln -s $(printf 'x%.0s' $(seq 1 900)) long
mknod null c 1 3; mkfifo pipe
head -c 30000 /dev/urandom > large; cp --reflink=always large clone
dd if=/dev/urandom of=clone bs=4096 count=1 seek=2 conv=notrunc status=none
fallocate -l 64k prealloc; echo text | dd of=prealloc bs=4096 seek=3 conv=notrunc status=none
touch nocow; chattr +C nocow; head -c 9000 /dev/urandom > nocow
for how in zlib lzo zstd; do
    touch $how; btrfs property set $how compression $how; seq 40000 > $how
done
truncate -s 8m fragments
for i in $(seq 0 2 60); do echo text | dd of=fragments bs=4096 seek=$i conv=notrunc status=none; done
btrfs -q subvolume create sub; echo text > sub/file; sync
btrfs -q subvolume snapshot . snapshot; btrfs -q subvolume snapshot -r sub fixed; sync
rm many/*7*; echo more >> few/2; dd if=/dev/urandom of=large bs=4096 count=1 conv=notrunc status=none
"#;

fn fill(root: &Path) -> Result<()> {
    ivers_oracle::run("sh", ["-c", &format!("cd {}; {FILL}", root.display())])?;
    xattr::set(root.join("few/1"), "user.short", b"value")?;
    for number in 0..20 {
        xattr::set(root.join("few/2"), format!("user.{number}"), &[7; 300])?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    for (name, args) in KINDS {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        std::fs::File::create(&image)?.set_len(BYTES)?;
        let path = image.to_str().unwrap_or_default();
        ivers_oracle::run("mkfs.btrfs", args.split(' ').chain([path]))?;
        let mounted = LoopMount::new(&image, "")?;
        fill(mounted.path())?;
        mounted.unmount()?;
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&std::fs::read(&image)?)?;
        std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?;
    }
    Ok(())
}
