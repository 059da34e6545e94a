//! Tests with e2fsprogs as an oracle, which also writes and replays JBD2 logs.
//!
//! If `mkfs.ext4`, `debugfs` or `e2fsck` is missing, these tests print that and pass.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use ivers_block::{BlockNo, Budget, BufferCache, ByteOffset, Device, FileDevice, OpenMode};
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options, LogExtent, LogMap, Recovered};
use ivers_journal::{Journal, JournalOptions};

/// `s_feature_incompat` of the filesystem's superblock, and its bit `RECOVER`: the log needs recovery.
const S_FEATURE_INCOMPAT: usize = 0x60;
const RECOVER: u32 = 0x4;

fn tool(name: &str, args: &[&str]) -> Output {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    Command::new(name).args(args).env("PATH", path).output().unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn have_tools() -> bool {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let have = |t: &str| Command::new(t).arg("-V").env("PATH", &path).output().is_ok();
    let all = ["mkfs.ext4", "debugfs", "e2fsck"].iter().all(|t| have(t));
    if !all {
        eprintln!("e2fsprogs is not installed: nothing was compared");
    }
    all
}

struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
    block_size: u32,
    blocks: u64,
    map: LogMap,
}

impl Image {
    /// Makes a filesystem of 64 MiB and finds the blocks of its journal.
    fn make(variant: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let name = path.to_str().unwrap().to_string();
        let made = tool("mkfs.ext4", &[&["-q", "-F"], variant, &[&name]].concat());
        assert!(made.status.success(), "{made:?}");
        let mut image = Self { _dir: dir, path, block_size: 0, blocks: 0, map: LogMap::default() };
        let sb = image.ext_superblock();
        image.block_size = 1024 << u32::from_le_bytes(sb[0x18..0x1C].try_into().unwrap());
        image.blocks = u64::from(u32::from_le_bytes(sb[4..8].try_into().unwrap()));
        let commands: String = (0..4096).map(|n| format!("bmap <8> {n}\n")).collect();
        let mut extents = Vec::new();
        for block in image.debugfs(&commands).lines().filter_map(|l| l.trim().parse::<u64>().ok()) {
            if block == 0 {
                break;
            }
            extents.push(LogExtent { log_block: extents.len() as u32, fs_block: BlockNo(block), len: 1 });
        }
        image.map = LogMap::new(extents);
        image
    }

    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn ext_superblock(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()[1024..2048].to_vec()
    }

    /// Sets or clears `RECOVER`. Updates the superblock's checksum, crc32c of its first 1020 bytes, if it has
    /// one.
    fn set_recover(&self, on: bool) {
        let mut sb = self.ext_superblock();
        let mut incompat = u32::from_le_bytes(sb[S_FEATURE_INCOMPAT..][..4].try_into().unwrap());
        incompat = if on { incompat | RECOVER } else { incompat & !RECOVER };
        sb[S_FEATURE_INCOMPAT..][..4].copy_from_slice(&incompat.to_le_bytes());
        let metadata_csum = u32::from_le_bytes(sb[0x64..0x68].try_into().unwrap()) & 0x400 != 0;
        if metadata_csum {
            let sum = !crc32c::crc32c(&sb[..1020]);
            sb[1020..].copy_from_slice(&sum.to_le_bytes());
        }
        let device = self.open();
        device.write_at(ByteOffset(1024), &sb).unwrap();
    }

    fn debugfs(&self, commands: &str) -> String {
        let script = self.path.with_extension("commands");
        std::fs::write(&script, commands).unwrap();
        let out = tool("debugfs", &["-w", "-f", script.to_str().unwrap(), self.name()]);
        String::from_utf8(out.stdout).unwrap()
    }

    fn open(&self) -> Arc<dyn Device> {
        Arc::new(FileDevice::open(&self.path, OpenMode::ReadWrite).unwrap())
    }

    fn log(&self, device: Arc<dyn Device>) -> Jbd2Log {
        let options = Jbd2Options { block_size: self.block_size, fs_blocks: self.blocks, uuid: None };
        Jbd2Log::open(device, self.map.clone(), options).unwrap()
    }

    fn read(path: &Path, block: u64, block_size: u32) -> Vec<u8> {
        let mut bytes = vec![0; block_size as usize];
        let device = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
        device.read_at(BlockNo(block).offset(block_size), &mut bytes).unwrap();
        bytes
    }

    fn fsck(&self) {
        let out = tool("e2fsck", &["-fn", self.name()]);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{text}");
        assert!(!text.contains("Fix") && !text.contains("recover"), "{text}");
    }
}

fn variants() -> Vec<Vec<&'static str>> {
    vec![
        vec![],
        vec!["-O", "^metadata_csum,^64bit"],
        vec!["-b", "4096"],
        vec!["-b", "4096", "-O", "^metadata_csum,64bit"],
        vec!["-b", "2048", "-O", "metadata_csum,^64bit"],
        vec!["-b", "1024", "-O", "^extent,^64bit,^metadata_csum"],
    ]
}

/// debugfs writes a log. Our recovery and e2fsck replay copies of it. The blocks must be the same.
#[test]
fn recovery_of_a_log_of_debugfs_matches_e2fsck() {
    if !have_tools() {
        return;
    }
    for variant in variants() {
        for checksums in ["", "-c"] {
            let ours = Image::make(&variant);
            // Free blocks at the end of the image, after all metadata.
            let first = ours.blocks - 400;
            let random = ours.path.with_extension("random");
            let bytes: Vec<u8> =
                (0..700 * ours.block_size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            std::fs::write(&random, &bytes).unwrap();
            let magic = ours.path.with_extension("magic");
            std::fs::write(&magic, 0xC03B_3998u32.to_be_bytes().repeat(2 * ours.block_size as usize))
                .unwrap();
            let list = |range: std::ops::Range<u64>| {
                range.map(|b| (first + b).to_string()).collect::<Vec<_>>().join(",")
            };
            let file = random.to_str().unwrap();
            ours.debugfs(&format!(
                "jo {checksums}\njw -b {} {file}\njw -b {} {}\njw -r {}\njw -b {} {file}\njc\n",
                list(0..350),
                list(3..9),
                magic.to_str().unwrap(),
                list(5..15),
                list(7..8),
            ));
            let theirs = ours.path.with_extension("theirs");
            std::fs::copy(&ours.path, &theirs).unwrap();

            let mut log = ours.log(ours.open());
            assert!(log.needs_recovery(), "{variant:?}");
            let recovered = log.recover().unwrap();
            let Recovered { transactions, blocks, revoked, ref damaged, .. } = recovered;
            if log.superblock().compat() & 1 != 0 {
                // debugfs includes the revocation block in the crc32 of COMPAT_CHECKSUM. The kernel and
                // e2fsck do not: e2fsck stops at the third transaction ("was corrupt"). Our recovery does
                // the same.
                assert_eq!(
                    (transactions, damaged.as_ref().map(|d| d.what)),
                    (2, Some("commit")),
                    "{variant:?}"
                );
            } else {
                assert_eq!((transactions, damaged), (4, &None), "{variant:?} {checksums}");
                assert_eq!((blocks, revoked), (350 - 10 + 6 - 4 + 1, 14), "{variant:?}: {recovered:?}");
            }
            drop(log);
            ours.set_recover(false);
            ours.fsck();

            let out = tool("e2fsck", &["-fy", "-E", "journal_only", theirs.to_str().unwrap()]);
            assert!(out.status.code().is_some_and(|c| c < 4), "{out:?}");
            for block in first..first + 360 {
                let (a, b) = (
                    Image::read(&ours.path, block, ours.block_size),
                    Image::read(&theirs, block, ours.block_size),
                );
                assert!(a == b, "{variant:?} {checksums}: block {block} differs");
            }
        }
    }
}

/// The journal writes a log and is aborted before a checkpoint. e2fsck replays it.
#[test]
fn e2fsck_replays_our_log() {
    if !have_tools() {
        return;
    }
    for variant in variants() {
        for checksums in [false, true] {
            let image = Image::make(&variant);
            let is_64bit = !variant.iter().any(|o| o.contains("^64bit"));
            let first = image.blocks - 500;
            let device = image.open();
            let mut log = image.log(device.clone());
            log.prepare(checksums, is_64bit).unwrap();
            let cache = Arc::new(BufferCache::new(device, image.block_size, Arc::new(Budget::unlimited())));
            let journal = Journal::open(Box::new(log), cache.clone(), JournalOptions::default()).unwrap();
            let fill = |n: u64, block: u64| {
                let mut bytes = vec![(n + block) as u8; image.block_size as usize];
                if block.is_multiple_of(7) {
                    bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
                }
                bytes
            };
            let write = |n: u64, blocks: std::ops::Range<u64>, forget: std::ops::Range<u64>| {
                let handle = journal.begin(210).unwrap();
                for block in blocks {
                    let buffer = cache.get(BlockNo(first + block)).unwrap();
                    handle.modify(&buffer, |bytes| bytes.copy_from_slice(&fill(n, block)));
                }
                forget.for_each(|block| handle.forget(BlockNo(first + block)));
                let tid = handle.tid();
                drop(handle);
                journal.commit(tid).unwrap();
            };
            // One checkpoint first, so that the replayed log does not start at the first block of the ring.
            write(1, 0..200, 0..0);
            journal.checkpoint_all().unwrap();
            write(2, 0..100, 0..0);
            write(3, 50..60, 90..100);
            write(4, 300..400, 0..3);
            write(5, 1..2, 0..0);
            assert_eq!(journal.stats().revokes, 13);
            journal.abort("the test simulates a crash");
            drop((journal, cache));
            image.set_recover(true);

            let out = tool("e2fsck", &["-fy", image.name()]);
            let text =
                String::from_utf8_lossy(&out.stdout).to_lowercase() + &String::from_utf8_lossy(&out.stderr);
            // Exit code 1: errors corrected, which is the replay. No other error is allowed.
            assert!(out.status.code().is_some_and(|c| c <= 1), "{variant:?}: {text}");
            assert!(
                text.contains("recovering journal")
                    && !text.contains("checksum")
                    && !text.contains("corrupt"),
                "{text}"
            );
            image.fsck();
            for block in 0..400 {
                let n = match block {
                    0 | 2 | 90..100 => 1, // revoked: as the checkpoint wrote it
                    1 => 5,
                    50..60 => 3,
                    3..100 => 2,
                    100..200 => 1,
                    200..300 => continue,
                    _ => 4,
                };
                let found = Image::read(&image.path, first + block, image.block_size);
                assert!(
                    found == fill(n, block),
                    "{variant:?} {checksums}: block {block}, expected {n}, found {}",
                    found[9]
                );
            }
        }
    }
}

/// After a clean shutdown e2fsck finds no error and nothing to replay, and the journal can be opened again.
#[test]
fn e2fsck_accepts_a_journal_after_a_clean_shutdown() {
    if !have_tools() {
        return;
    }
    for variant in variants() {
        let image = Image::make(&variant);
        for round in 0..3u8 {
            let device = image.open();
            let mut log = image.log(device.clone());
            assert!(!log.needs_recovery());
            log.prepare(round == 1, false).unwrap();
            let cache = Arc::new(BufferCache::new(device, image.block_size, Arc::new(Budget::unlimited())));
            let journal = Journal::open(Box::new(log), cache.clone(), JournalOptions::default()).unwrap();
            let handle = journal.begin(1).unwrap();
            handle.modify(&cache.get(BlockNo(image.blocks - 3)).unwrap(), |bytes| bytes.fill(round));
            drop(handle);
            journal.shutdown().unwrap();
            assert!(journal.begin(1).is_err());
            drop((journal, cache));
            image.fsck();
            assert!(Image::read(&image.path, image.blocks - 3, image.block_size).iter().all(|&b| b == round));
        }
    }
}
