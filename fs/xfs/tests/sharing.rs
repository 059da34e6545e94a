//! Files that share blocks: those that Linux cloned and ivers writes.

mod common;

use common::storm::Storm;
use common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use std::path::Path;

/// Files that share all blocks, some blocks, and blocks twice; holes and unwritten blocks between.
const CLONES: &str = r#"
set -e
mkdir d
head -c 3000001 /dev/urandom > a
cp --reflink=always a b; cp --reflink=always b d/c
head -c 700 /dev/urandom > short; cp --reflink=always short d/short
xfs_io -f -c 'pwrite -q -S 7 0 1m' -c 'reflink a 65536 2m 1m' -c 'reflink a 131072 4m 65536' mixed
xfs_io -f -c 'truncate 2m' -c 'pwrite -q -S 8 0 65536' -c 'falloc 1m 512k' holes
cp --reflink=always holes d/holes
xfs_io -c 'reflink mixed 0 8m 1m' mixed
for i in 1 2 3 4 5 6 7 8 9; do cp --reflink=always a d/many-$i; done
for i in 0 2 4 6 8 10 12 14 16 18; do xfs_io -c "pwrite -q -S $i $((i * 131072)) 65536" d/many-3; done
sync
"#;

/// Makes an image with clones. False if Linux cannot mount it.
fn cloned(args: &[&str], image: &Path) {
    mkfs(image, args, None);
    let linux = LoopMount::new(image, "").unwrap();
    fill::in_dir(linux.path(), CLONES);
    linux.unmount().unwrap();
}

const KINDS: [Kind; 5] = [
    ("default", &[]),
    ("all features of 6.1", &["-m", "rmapbt=1", "-i", "nrext64=1"]),
    ("blocks of 1 KiB, rmapbt", &["-b", "size=1024", "-m", "rmapbt=1"]),
    ("blocks of 64 KiB", &["-b", "size=65536"]),
    ("blocks of 16 KiB, rmapbt", &["-b", "size=16384", "-m", "rmapbt=1"]),
];

#[test]
fn files_that_linux_cloned_change_alone() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (name, args) in KINDS {
        cloned(args, &image);
        for seed in 1..4 {
            let what = format!("{name}, seed {seed}");
            let mut storm = Storm::of(mount_writable(&image), seed);
            for _ in 0..120 {
                storm.step_in_file();
            }
            storm.check(&what);
            storm.unmount();
            repair_finds_nothing(&image, &what);
            assert_clean(&image, &what);
            storm.mount(mount_writable(&image));
            storm.check(&format!("{what}, mounted again"));
            storm.unmount();
        }
        let vfs = mount(&image);
        let ours = our_tree(&vfs, true).unwrap();
        vfs.unmount().unwrap();
        drop(vfs);
        let linux = LoopMount::new(&image, "ro").unwrap();
        assert_same(&ours, &kernel_tree(linux.path()), name);
        linux.unmount().unwrap();
    }
}
