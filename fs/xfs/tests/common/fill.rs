//! Trees that the kernel writes.

use std::path::Path;
use std::process::Command;

/// Makes files of all kinds. Blocks may have 1 to 64 KiB.
const FILL: &str = r#"
set -e
mkdir -p d/e/f many names
for i in $(seq 1 1200); do echo $i > many/file-with-a-rather-long-name-$i; done
rm many/file-with-a-rather-long-name-*7*
for i in $(seq 1 30); do : > names/$i; done
head -c 6000000 /dev/urandom > big; ln big d/hard
truncate -s 5M sparse; head -c 3000 /dev/urandom | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
# A file of many extents: every second block.
xfs_io -f -c 'truncate 64m' fragments
for i in $(seq 0 2 600); do echo "pwrite -q -S $((i % 250 + 1)) $((i * 65536)) 65536"; done | xfs_io fragments
xfs_io -f -c 'falloc 0 1m' -c 'pwrite -q 300000 1000' -c 'falloc -k 2m 4m' unwritten
cp --reflink=auto big clone
ln -s short s1; ln -s $(printf 'x%.0s' $(seq 1 1023)) s2
mkfifo fifo; mknod null c 1 3; mknod large b 259 70000
chown 70000:80000 -h s1; chmod 6751 d/e; touch -d '1969-12-31 12:00:00.5' d/old; touch -d '2037-01-01' d/later
"#;

/// Runs a shell script in a directory.
pub fn in_dir(dir: &Path, script: &str) {
    let output = Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sets attributes of all forms.
fn set_xattrs(root: &Path) {
    let set = |path: &str, name: &str, value: &[u8]| {
        xattr::set(root.join(path), name, value).unwrap_or_else(|error| panic!("{path} {name}: {error}"));
    };
    set("d", "user.short", b"value");
    set("d", "trusted.t", b"");
    set("d/e", "security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A block of attributes, and values in blocks of their own.
    for (number, len) in [10, 200, 1500, 3000, 5000, 65536].into_iter().enumerate() {
        set("many", &format!("user.value-{number}"), &vec![b'a' + number as u8; len]);
    }
    // A tree of blocks.
    for number in 0..1200 {
        set(
            "names",
            &format!("user.{number}-{}", "n".repeat(number % 30)),
            &vec![number as u8; number % 300],
        );
    }
    let acl = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255],
    ];
    set("big", "system.posix_acl_access", &acl.concat());
    set("d/e", "system.posix_acl_default", &acl.concat());
}

/// Fills a filesystem that the kernel has mounted.
pub fn fill(root: &Path) {
    in_dir(root, FILL);
    set_xattrs(root);
}
