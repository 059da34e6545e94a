//! Trees that the kernel writes.

use std::path::Path;
use std::process::Command;

/// Makes files of all kinds, subvolumes and snapshots.
const FILL: &str = r#"
set -e
mkdir -p d/e/f many links
for i in $(seq 1 1200); do echo $i > many/file-with-a-rather-long-name-$i; done
rm many/file-with-a-rather-long-name-*7*
: > many/$(printf 'n%.0s' $(seq 1 255))
head -c 3000000 /dev/urandom > big; ln big d/hard
seq 1 400000 > text; head -c 100 text > tiny; : > empty
for i in 1 50 500 2000 2049 4095 4096 4097 20000 131072 131073; do head -c $i text > d/first-$i; done
truncate -s 5M sparse; head -c 3000 /dev/urandom | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
# Every second block.
truncate -s 2M fragments
for i in $(seq 0 2 200); do head -c 4096 text | dd of=fragments bs=4096 seek=$i conv=notrunc status=none; done
fallocate -l 1M unwritten; echo part | dd of=unwritten bs=1 seek=300000 conv=notrunc status=none
fallocate -n -o 2M -l 4M unwritten
cp text punched; sync; fallocate -p -o 100000 -l 500000 punched
cp --reflink=auto text clone; head -c 5000 /dev/urandom | dd of=clone bs=1 seek=1000 conv=notrunc status=none
truncate -s 70000 clone; truncate -s 200000 clone
ln -s short s1; ln -s $(printf 'x%.0s' $(seq 1 1023)) s2
mkfifo fifo; mknod null c 1 3; mknod large b 259 70000
chown 70000:80000 -h s1; chmod 6751 d/e; touch -d '1969-12-31 12:00:00.5' d/old; touch -d '2037-01-01' d/later
for i in $(seq 1 400); do ln tiny links/$i; done
btrfs -q subvolume create sub; echo in > sub/file; mkdir sub/dir; cp text sub/dir
btrfs -q subvolume create sub/nested; echo deep > sub/nested/file
sync
btrfs -q subvolume snapshot sub snapshot; echo more >> snapshot/file; rm snapshot/dir/text
btrfs -q subvolume snapshot -r sub d/fixed
btrfs -q subvolume create gone; btrfs -q subvolume snapshot gone kept; btrfs -q subvolume delete gone
echo late >> sub/file; mv sub/dir sub/moved
chattr +d d/later; chattr +A d/old
"#;

/// Sets attributes of all forms. `node_bytes` bounds a value.
const XATTRS: &str = r#"
set -e
setfattr -n user.short -v value d
setfattr -n trusted.t d
for i in $(seq 1 100); do setfattr -n user.$i-$(printf 'n%.0s' $(seq 1 $((i % 30 + 1)))) -v $i many; done
setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 d/e
setfattr -n user.long -v $(printf 'v%.0s' $(seq 1 3700)) text
setfattr -n user.other -v $(printf 'w%.0s' $(seq 1 3000)) text
"#;

/// Runs a shell script in a directory.
pub fn in_dir(dir: &Path, script: &str) {
    let output = Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Fills a filesystem that the kernel has mounted.
pub fn fill(root: &Path) {
    in_dir(root, FILL);
    in_dir(root, XATTRS);
    let acl = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255],
    ];
    xattr::set(root.join("big"), "system.posix_acl_access", &acl.concat()).unwrap();
    xattr::set(root.join("d/e"), "system.posix_acl_default", &acl.concat()).unwrap();
}
