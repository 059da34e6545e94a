//! Makes the btrfs images again, or one of them: `cargo run -p ivers-fuzz-targets --example btrfs_bases
//! [NAME]`. It requires root, because the kernel fills them. Fuzz inputs refer to positions in the images, so
//! existing inputs change their meaning.

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
    touch short-$how; btrfs property set short-$how compression $how; seq 800 > short-$how
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

/// Ends with a log tree of two subvolumes.
const LOG: &str = r#"
set -e
mkdir -p dir/below; seq 4000 > file; seq 9000 > cut
echo text > dir/old; echo text > dir/gone; ln dir/old link
setfattr -n user.gone -v 1 file; btrfs -q subvolume create sub; echo text > sub/file; sync
seq 500 >> file; setfattr -x user.gone file; setfattr -n user.new -v 2 file; sync file
truncate -s 5000 cut; sync cut
fallocate -p -o 4096 -l 8192 file; fallocate -l 100k prealloc; sync file prealloc
mkdir dir/new; echo text > dir/new/file; ln dir/new/file dir/another; sync dir/another
mv dir/old dir/moved; rm dir/gone; ln -s target dir/symbolic; sync dir
seq 9000 > sub/other; echo more >> sub/file; sync sub/other sub/file
touch small; btrfs property set small compression zstd; seq 9000 > small; sync small
"#;

/// Packs an image.
fn pack(image: &[u8], name: &str) -> Result<()> {
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("bases");
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    packed.write_all(image)?;
    Ok(std::fs::write(to.join(format!("{name}.z")), packed.finish()?)?)
}

/// Makes an image: filled by Linux, or with a log tree.
fn make(args: &str, with_log: bool) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    std::fs::File::create(&image)?.set_len(BYTES)?;
    let path = image.to_str().unwrap_or_default();
    ivers_oracle::run("mkfs.btrfs", args.split(' ').chain([path]))?;
    let mounted = LoopMount::new(&image, "commit=3600")?;
    if with_log {
        ivers_oracle::run("sh", ["-c", &format!("cd {}; {LOG}", mounted.path().display())])?;
        let image = std::fs::read(&image)?;
        mounted.unmount()?;
        return Ok(image);
    }
    fill(mounted.path())?;
    mounted.unmount()?;
    Ok(std::fs::read(&image)?)
}

fn main() -> Result<()> {
    let only = std::env::args().nth(1);
    for (name, args) in KINDS {
        for (name, with_log) in [(name.to_owned(), false), (format!("{name}_log"), true)] {
            if only.as_ref().is_none_or(|only| *only == name) {
                pack(&make(args, with_log)?, &name)?;
            }
        }
    }
    Ok(())
}
