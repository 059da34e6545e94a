//! Damaged and hostile images: errors, never a panic, a hang or excessive memory.

use crate::common::{debugfs, debugfs_write, mkfs};
use ivers_block::{Device, MemDevice};
use ivers_ext4::layout::inode::{FL_EA_INODE, FL_EXTENTS};
use ivers_ext4::layout::{GroupDesc, Superblock};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

fn walk(vfs: &Arc<Vfs>, dir: &InodeRef, depth: u32, left: &mut u32) {
    let cred = Cred::root();
    let mut names = Vec::new();
    let _ = vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        if names.len() < 500 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
        let Some(rest) = left.checked_sub(1) else { return };
        *left = rest;
        let Ok(inode) = vfs.lookup(&cred, dir, name) else { continue };
        let _ = vfs.read(&Cred::root(), &inode, 0, &mut [0; 9000]);
        let _ = vfs.read(&Cred::root(), &inode, 1 << 20, &mut [0; 9000]);
        let _ = vfs.read_link(&Cred::root(), &inode);
        for attribute in vfs.list_xattr(&cred, &inode).unwrap_or_default() {
            let _ = vfs.get_xattr(&cred, &inode, attribute);
        }
        if inode.kind == FileType::Directory && depth < 5 {
            walk(vfs, &inode, depth + 1, left);
        }
    }
}

fn change(vfs: &Arc<Vfs>) -> Result<()> {
    let cred = Cred::root();
    let root = vfs.root()?;
    let (dir, _) = vfs.create(&cred, &root, b"new", &CreateSpec::directory(0o755), false)?;
    for i in 0..20 {
        let (file, _) =
            vfs.create(&cred, &dir, format!("{i}").as_bytes(), &CreateSpec::file(0o644), false)?;
        vfs.write(&cred, &file, 0, &[1; 20_000], WriteFlags::empty())?;
    }
    for i in 0..10 {
        vfs.unlink(&cred, &dir, format!("{i}").as_bytes(), false)?;
    }
    vfs.sync()
}

#[test]
fn mutated_images_cause_no_panic() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("image");
    let files = tmp.path().join("files");
    std::fs::create_dir_all(files.join("d/e")).unwrap();
    for i in 0..300 {
        std::fs::write(files.join(format!("d/a-name-of-some-length-{i}")), vec![i as u8; i * 37]).unwrap();
    }
    std::os::unix::fs::symlink("x".repeat(100), files.join("d/link")).unwrap();
    std::fs::write(files.join("d/e/big"), vec![3; 600_000]).unwrap();
    let source = files.to_str().unwrap();
    for args in [
        &["-t", "ext4", "-O", "^metadata_csum,^64bit", "-b", "1024", "-d", source][..],
        &["-t", "ext3", "-b", "1024", "-d", source],
        &["-t", "ext4", "-O", "^metadata_csum,^has_journal,inline_data", "-d", source],
    ] {
        mkfs(&path, args, 8 << 20);
        // Names in a hash tree, which mkfs does not make.
        let _ = Command::new("e2fsck").arg("-fyD").arg(&path).output();
        let sound = std::fs::read(&path).unwrap();
        let used: Vec<usize> = (0..sound.len() / 1024)
            .filter(|&at| sound[at * 1024..(at + 1) * 1024].iter().any(|&byte| byte != 0 && byte != 3))
            .collect();
        let mut state = 99;
        for round in 0..250 {
            let mut image = sound.clone();
            for _ in 0..1 + random(&mut state) % 12 {
                // Half of the mutations hit the superblock and the tables after it.
                let within = if random(&mut state) & 1 == 0 { used.len().min(40) } else { used.len() };
                let block = used[random(&mut state) as usize % within];
                let at = block * 1024 + random(&mut state) as usize % 1024;
                match random(&mut state) % 3 {
                    0 => image[at] = random(&mut state) as u8,
                    1 => image[at] ^= 1 << (random(&mut state) % 8),
                    _ => image[at / 4 * 4..at / 4 * 4 + 4].fill(if round & 1 == 0 { 0xFF } else { 0 }),
                }
            }
            let read_only = round % 3 == 0;
            let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&image));
            let options = OpenOptions::from(DriverOptions {
                read_only,
                place: "image".into(),
                ..DriverOptions::default()
            });
            let Ok(fs) = Ext4::open(device, options) else { continue };
            let Ok(vfs) = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() })
            else {
                continue;
            };
            if let Ok(root) = vfs.root() {
                walk(&vfs, &root, 0, &mut 2000);
            }
            let _ = change(&vfs);
            let _ = vfs.unmount();
        }
    }
}

/// Attribute inodes that each refer to the next, as many as there are inodes: deleting the first deletes all
/// without overflowing the stack.
#[test]
fn a_chain_of_attribute_inodes_is_deleted() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("image");
    mkfs(&path, &["-b", "1024", "-N", "16384", "-O", "ea_inode,^metadata_csum,^uninit_bg"], 32 << 20);
    let mut image = std::fs::read(&path).unwrap();
    let sb = Superblock::parse(&image[1024..2048], image.len() as u64, "image").unwrap();
    let mut tables = Vec::new();
    for group in 0..sb.groups() {
        let (block, byte) = sb.desc_place(group);
        let at = block.0 as usize * 1024 + byte;
        let desc = GroupDesc::decode(&sb, group, &image[at..at + sb.desc_size as usize]).unwrap();
        let none_free = GroupDesc { free_inodes: 0, itable_unused: 0, ..desc };
        none_free.encode(&sb, group, &mut image[at..at + sb.desc_size as usize]);
        let bitmap = desc.inode_bitmap.0 as usize * 1024;
        image[bitmap..bitmap + sb.inodes_per_group as usize / 8].fill(0xFF);
        tables.push(desc.inode_table.0 as usize * 1024);
    }
    let (first, last) = (sb.first_ino + 1, sb.inodes_count());
    for ino in first..=last {
        let (group, index) = sb.group_of_inode(ino);
        let at = tables[group as usize] + (index * sb.inode_size) as usize;
        let slot = &mut image[at..at + 256];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x00, &0x81A4u16.to_le_bytes());
        // The head has no name, each of the others has one reference.
        put(0x1A, &u16::from(ino != first).to_le_bytes());
        put(0x20, &(FL_EXTENTS | if ino == first { 0 } else { FL_EA_INODE }).to_le_bytes());
        put(0x24, &1u32.to_le_bytes());
        put(0x28, &[0x0A, 0xF3, 0, 0, 4, 0, 0, 0]);
        put(0x80, &32u16.to_le_bytes());
        let next = if ino == last { 0 } else { ino + 1 };
        if next != 0 {
            put(0xA0, &0xEA02_0000u32.to_le_bytes());
            put(0xA4, &[1, 1, 0, 0]);
            put(0xA8, &next.to_le_bytes());
            put(0xAC, &10u32.to_le_bytes());
            put(0xB4, b"a");
        }
    }
    // s_free_inodes_count and s_last_orphan
    image[1024 + 0x10..1024 + 0x14].fill(0);
    image[1024 + 0xE8..1024 + 0xEC].copy_from_slice(&first.to_le_bytes());
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(&image));
    let fs = Ext4::open(
        device,
        OpenOptions::from(DriverOptions { place: "image".into(), ..DriverOptions::default() }),
    )
    .unwrap();
    assert_eq!(fs.stat_fs().unwrap().files_free, u64::from(last - first + 1), "all are deleted");
}

fn refusal(args: &[&str]) -> String {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("image");
    mkfs(&path, args, 16 << 20);
    let before = std::fs::read(&path).unwrap();
    let device = Arc::new(MemDevice::from_bytes(&before));
    let result = Ext4::open(
        device.clone(),
        OpenOptions::from(DriverOptions { place: "image".into(), ..DriverOptions::default() }),
    );
    assert!(device.to_bytes() == before, "something was written");
    match result {
        Ok(fs) => fs.health().read_only.expect("it is writable"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn unsupported_features_are_refused_by_name() {
    for feature in ["casefold", "encrypt", "quota", "bigalloc", "verity", "mmp"] {
        let said = refusal(&["-t", "ext4", "-O", feature]);
        assert!(said.contains(feature), "{feature}: {said}");
    }
    let said = refusal(&["-b", "4096", "-O", "journal_dev"]);
    assert!(said.contains("journal_dev"), "{said}");
}

#[test]
fn maps_that_refer_to_system_blocks_are_corrupt() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("image");
    let source = tmp.path().join("files");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("f"), vec![5; 900]).unwrap();
    let source = source.to_str().unwrap();
    let number = |text: &str, after: &str| -> u64 {
        let text = &text[text.find(after).unwrap() + after.len()..];
        let digits: String = text.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    for (args, field) in [
        (&["-t", "ext3", "-b", "1024", "-d", source][..], "block[0]"),
        (&["-t", "ext4", "-O", "^metadata_csum", "-b", "1024", "-d", source], "block[5]"),
    ] {
        mkfs(&path, args, 64 << 20);
        let table = number(&debugfs(&path, "imap <2>"), "located at block");
        let journal = number(&format!("at {}", debugfs(&path, "bmap <8> 0")), "at");
        let sound = std::fs::read(&path).unwrap();
        for block in [2, table, journal] {
            std::fs::write(&path, &sound).unwrap();
            debugfs_write(&path, &format!("set_inode_field /f {field} {block}"));
            let device = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
            let fs = Ext4::open(device.clone(), OpenOptions::default()).unwrap();
            let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
            let cred = Cred::root();
            let root = vfs.root().unwrap();
            let file = vfs.lookup(&cred, &root, b"f").unwrap();
            let said = vfs.read(&Cred::root(), &file, 0, &mut [0; 900]).unwrap_err().to_string();
            assert!(
                said.contains(&format!("inode {}", file.ino)) && said.contains(&format!("block {block}")),
                "{field} {block}: {said}"
            );
            // Neither overwritten nor freed.
            let written = vfs
                .write(&cred, &file, 0, &[1; 1024], WriteFlags::empty())
                .map(drop)
                .and_then(|()| vfs.fsync(&file, false));
            assert!(written.is_err(), "{field} {block}");
            drop(file);
            let _ = vfs.unlink(&cred, &root, b"f", false);
            drop(root);
            let _ = vfs.unmount();
            let at = block as usize * 1024;
            assert!(device.to_bytes()[at..at + 1024] != [1; 1024], "{field} {block} was written over");
        }
    }
}

/// The root directory or the journal's inode is cleared: the error says which one, not "stale".
#[test]
fn a_missing_root_or_journal_inode_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("image");
    for (inode, what) in [(2, "the root directory"), (8, "the journal's inode 8")] {
        mkfs(&path, &[], 64 << 20);
        debugfs_write(&path, &format!("clri <{inode}>"));
        let device = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
        let said = Ext4::open(device, OpenOptions::default())
            .and_then(|fs| Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }))
            .and_then(|vfs| vfs.root().map(drop))
            .unwrap_err();
        assert!(matches!(said, Error::Corrupt { .. }) && said.to_string().contains(what), "{said}");
    }
}
