//! The cache returns only bytes that were stored, whatever happened to its file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ivers_content_cache::{BLOCK_BYTES, BYTES_MIN, ContentCache, FileKey, Found, OpenError};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn dir(inside: &tempfile::TempDir) -> PathBuf {
    inside.path().join("cache")
}

fn open(dir: &Path) -> ContentCache {
    ContentCache::open(dir, BYTES_MIN).unwrap()
}

fn key(name: &str) -> FileKey {
    FileKey::new(&[b"server", name.as_bytes()])
}

/// Returns bytes that differ with the seed, and between blocks.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| ((at * 31 + at / 97 + seed * 7) % 251) as u8).collect()
}

fn read(cache: &ContentCache, name: &str, version: u64, offset: u64, len: usize) -> (Vec<u8>, bool) {
    let mut buf = vec![0xee; len];
    let Found { bytes, ends } = cache.read(&key(name), version, offset, &mut buf);
    assert!(buf[bytes..].iter().all(|byte| *byte == 0xee), "the rest is untouched");
    buf.truncate(bytes);
    (buf, ends)
}

#[test]
fn what_was_stored_is_found_by_file_and_version() {
    let place = tempfile::tempdir().unwrap();
    let contents = bytes(1, 5 * BLOCK_BYTES + 100);
    {
        let cache = open(&dir(&place));
        cache.store(&key("f"), 7, 0, &contents, true);
        cache.store(&key("whole"), 1, 0, &contents[..2 * BLOCK_BYTES], true);
        cache.store(&key("part"), 1, BLOCK, &contents[BLOCK_BYTES..3 * BLOCK_BYTES + 9], false);
        cache.store(&key("empty"), 1, 0, b"", true);
        cache.store(&key("unaligned"), 1, 5, &contents, true);
    }
    // As a second mount.
    let cache = open(&dir(&place));
    assert_eq!(read(&cache, "f", 7, 0, contents.len() + 50), (contents.clone(), true));
    assert_eq!(read(&cache, "f", 7, 33, 20_000), (contents[33..20_033].to_vec(), false));
    assert_eq!(read(&cache, "f", 7, 5 * BLOCK + 40, 60), (contents[contents.len() - 60..].to_vec(), true));
    assert!(!read(&cache, "f", 7, 5 * BLOCK + 40, 59).1);
    assert_eq!(read(&cache, "f", 7, 5 * BLOCK + 100, 10), (Vec::new(), true), "past the end");
    for version in [6, 8, 0] {
        assert_eq!(read(&cache, "f", version, 0, 10), (Vec::new(), false));
    }
    assert_eq!(read(&cache, "g", 7, 0, 10), (Vec::new(), false));
    assert_eq!(read(&cache, "whole", 1, 0, 1 << 20), (contents[..2 * BLOCK_BYTES].to_vec(), true));
    assert_eq!(read(&cache, "part", 1, 0, 10), (Vec::new(), false));
    let part = contents[BLOCK_BYTES..3 * BLOCK_BYTES].to_vec();
    assert_eq!(read(&cache, "part", 1, BLOCK, 1 << 20), (part, false), "only whole blocks");
    assert_eq!(read(&cache, "empty", 1, 0, 10), (Vec::new(), true));
    assert_eq!(read(&cache, "unaligned", 1, BLOCK, 10), (Vec::new(), false));
    // A new version replaces the old one.
    cache.store(&key("f"), 8, 0, &bytes(2, BLOCK_BYTES), false);
    assert_eq!(read(&cache, "f", 8, 0, BLOCK_BYTES).0, bytes(2, BLOCK_BYTES));
    assert_eq!(read(&cache, "f", 7, 0, BLOCK_BYTES).0, b"");
    assert_eq!(read(&cache, "f", 7, BLOCK, 10).0, contents[BLOCK_BYTES..BLOCK_BYTES + 10]);
    let counts = cache.counts();
    assert!(counts.hits > 10 && counts.misses > 5 && counts.damaged == 0 && counts.stored == 1, "{counts:?}");
}

/// The size bounds the file, and new blocks replace the oldest ones.
#[test]
fn the_size_is_a_bound() {
    let place = tempfile::tempdir().unwrap();
    let cache = open(&dir(&place));
    for nth in 0..500_u64 {
        cache.store(&key(&nth.to_string()), nth, 0, &bytes(nth, 9000), true);
    }
    let file = dir(&place).join("contents");
    assert!(fs::metadata(&file).unwrap().len() <= BYTES_MIN);
    let found: Vec<u64> = (0..500)
        .filter(|nth| {
            let (found, ends) = read(&cache, &nth.to_string(), *nth, 0, 10_000);
            assert!(found.is_empty() || (found == bytes(*nth, 9000) && ends), "file {nth}");
            !found.is_empty()
        })
        .collect();
    assert!(found.len() <= 56 && found.len() > 40, "{found:?}");
    assert!(found.iter().all(|nth| *nth > 300), "the newest are left: {found:?}");
    drop(cache);
    // Another size empties the cache.
    let cache = ContentCache::open(&dir(&place), 2 * BYTES_MIN).unwrap();
    assert_eq!(read(&cache, "499", 499, 0, 10).0, b"");
    assert!(fs::metadata(&file).unwrap().len() > BYTES_MIN);
}

/// Every flipped bit is detected. A damaged block can be stored again.
#[test]
fn a_flipped_byte_is_never_served() {
    let place = tempfile::tempdir().unwrap();
    let contents = bytes(3, BLOCK_BYTES + 700);
    let (path, mut noticed) = (dir(&place).join("contents"), 0);
    let cache = open(&dir(&place));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    cache.store(&key("f"), 7, 0, &contents, true);
    let all = fs::read(&path).unwrap();
    // Holes of the file are skipped: nothing is stored there.
    let used: Vec<usize> = (4096..all.len()).filter(|at| all[*at] != 0).collect();
    assert!(used.len() > BLOCK_BYTES, "{}", used.len());
    for at in &used {
        for bit in [1, 0x80] {
            file.write_all_at(&[all[*at] ^ bit], *at as u64).unwrap();
            let (found, ends) = read(&cache, "f", 7, 0, contents.len() + 9);
            assert!(contents.starts_with(&found), "byte {at}");
            assert!(!ends || found == contents, "byte {at}");
            noticed += usize::from(found != contents);
            // The read removed the entry of a damaged block: restore the entries, too.
            file.write_all_at(&[all[*at]], *at as u64).unwrap();
            file.write_all_at(&all[4096..8192], 4096).unwrap();
        }
    }
    assert_eq!(noticed, 2 * used.len(), "every flip");
    assert_eq!(read(&cache, "f", 7, 0, 1 << 16).0, contents);
    // A damaged header empties the cache.
    drop(cache);
    for at in 0..64 {
        let byte = fs::read(&path).unwrap()[at];
        file.write_all_at(&[byte ^ 4], at as u64).unwrap();
        let cache = open(&dir(&place));
        assert_eq!(read(&cache, "f", 7, 0, 10).0, b"", "byte {at} of the header");
        cache.store(&key("f"), 7, 0, &contents, true);
        assert_eq!(read(&cache, "f", 7, 0, 1 << 16).0, contents);
    }
}

/// A crash of the machine leaves any mixture of old and new blocks and entries.
#[test]
fn torn_writes_are_never_served() {
    let place = tempfile::tempdir().unwrap();
    let path = dir(&place).join("contents");
    let versions: Vec<_> = (0..4).map(|version| bytes(version, 3 * BLOCK_BYTES + 5000)).collect();
    let mut images = Vec::new();
    for (version, contents) in versions.iter().enumerate() {
        let cache = open(&dir(&place));
        cache.store(&key("f"), version as u64, 0, contents, true);
        cache.store(&key("other"), version as u64, 0, &contents[9..], true);
        images.push(fs::read(&path).unwrap());
    }
    let mut random = 0x9e37_79b9_u64;
    let mut hits = 0;
    for round in 0..400 {
        let mut torn = images[0].clone();
        for sector in torn.chunks_mut(512).enumerate() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // In every second round mostly the same image, so that some blocks are whole.
            let image = if round % 2 == 0 { random >> 62 } else { (random >> 40) % 64 / 62 + 1 };
            let from = sector.0 * 512;
            sector.1.copy_from_slice(&images[image as usize][from..from + sector.1.len()]);
        }
        fs::write(&path, &torn).unwrap();
        let cache = open(&dir(&place));
        for (version, contents) in versions.iter().enumerate() {
            for (name, contents) in [("f", &contents[..]), ("other", &contents[9..])] {
                for block in 0..4 {
                    let (found, ends) = read(&cache, name, version as u64, block * BLOCK, BLOCK_BYTES);
                    let from = (block * BLOCK) as usize;
                    assert!(contents[from..].starts_with(&found), "round {round}: {name} {version} {block}");
                    assert!(!ends || from + found.len() == contents.len(), "round {round}: an end");
                    hits += usize::from(!found.is_empty());
                }
            }
        }
    }
    assert!(hits > 0, "some blocks are whole");
}

#[test]
fn a_truncated_file_is_empty() {
    let place = tempfile::tempdir().unwrap();
    let path = dir(&place).join("contents");
    let contents = bytes(1, 30_000);
    for len in [0, 1, 4095, 4096, 4097, 9000, 100_000, BYTES_MIN / 2] {
        let cache = open(&dir(&place));
        cache.store(&key("f"), 7, 0, &contents, true);
        // While the cache is in use.
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        let (found, ends) = read(&cache, "f", 7, 0, 40_000);
        assert!(contents.starts_with(&found) && (!ends || found == contents), "cut to {len}");
        drop(cache);
        // Before the next mount.
        let cache = open(&dir(&place));
        assert_eq!(read(&cache, "f", 7, 0, 40_000).0, b"", "cut to {len}");
        cache.store(&key("f"), 7, 0, &contents, true);
        assert_eq!(read(&cache, "f", 7, 0, 40_000), (contents.clone(), true));
    }
}

#[test]
fn a_cache_is_private_to_its_user_and_to_a_mount() {
    let place = tempfile::tempdir().unwrap();
    let refused = |dir: &Path| ContentCache::open(dir, BYTES_MIN).map(drop).unwrap_err();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let dir = dir(&place);
    let cache = open(&dir);
    assert_eq!((mode(&dir), mode(&dir.join("contents"))), (0o700, 0o600));
    assert!(matches!(refused(&dir), OpenError::InUse));
    drop(cache);
    drop(open(&dir));
    for open_to in [0o750, 0o701, 0o777] {
        chmod(&dir, open_to);
        assert!(matches!(refused(&dir), OpenError::Shared), "{open_to:o}");
    }
    chmod(&dir, 0o700);
    chmod(&dir.join("contents"), 0o640);
    assert!(matches!(refused(&dir), OpenError::Strange));
    chmod(&dir.join("contents"), 0o600);
    fs::hard_link(dir.join("contents"), place.path().join("link")).unwrap();
    assert!(matches!(refused(&dir), OpenError::Strange), "another name");
    fs::remove_file(dir.join("contents")).unwrap();
    symlink(place.path().join("link"), dir.join("contents")).unwrap();
    assert!(matches!(refused(&dir), OpenError::Strange));
    fs::remove_file(dir.join("contents")).unwrap();
    fs::create_dir(dir.join("contents")).unwrap();
    assert!(matches!(refused(&dir), OpenError::Strange));
    let linked = place.path().join("linked");
    symlink(&dir, &linked).unwrap();
    assert!(matches!(refused(&linked), OpenError::Directory(_)));
    assert!(matches!(refused(&place.path().join("none/cache")), OpenError::Directory(_)));
    assert!(matches!(refused(&place.path().join("link")), OpenError::Directory(_)));
    assert!(matches!(ContentCache::open(&dir, 1000).map(drop), Err(OpenError::TooSmall)));
    if rustix::process::geteuid().is_root() {
        let theirs = place.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        chmod(&theirs, 0o700);
        std::os::unix::fs::chown(&theirs, Some(1234), None).unwrap();
        assert!(matches!(refused(&theirs), OpenError::Shared));
    }
}

/// A full disk costs hits, and nothing else.
#[test]
fn a_full_disk_stops_the_storing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    struct Small(tempfile::TempDir);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
    let place = Small(tempfile::tempdir().unwrap());
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", place.0.path(), "tmpfs", flags, c"size=200k").unwrap();
    let cache = ContentCache::open(&dir(&place.0), 16 << 20).unwrap();
    for nth in 0..100 {
        cache.store(&key(&nth.to_string()), 1, 0, &bytes(nth, 40_000), true);
    }
    let counts = cache.counts();
    assert!(counts.stored > 0 && counts.refused == 1, "after a refusal it pauses: {counts:?}");
    let mut hits = 0;
    for nth in 0..100 {
        let (found, ends) = read(&cache, &nth.to_string(), 1, 0, 50_000);
        assert!(bytes(nth, 40_000).starts_with(&found) && (!ends || found.len() == 40_000));
        hits += usize::from(ends);
    }
    assert!((1..6).contains(&hits), "{hits}");
}

#[test]
fn threads_store_and_read_together() {
    let place = tempfile::tempdir().unwrap();
    let cache = open(&dir(&place));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..2000_u64 {
                    // Few names, and versions that last: a thread alone finds what it stored.
                    let (name, version) = ((round * 7 + thread) % 9, round / 50 % 5);
                    let contents = bytes(name * 5 + version, 12_000);
                    let (found, ends) = read(cache, &name.to_string(), version, 0, 20_000);
                    assert!(found.is_empty() || (found == contents && ends));
                    cache.store(&key(&name.to_string()), version, 0, &contents, true);
                }
            });
        }
    });
    let counts = cache.counts();
    assert!(counts.hits > 0 && counts.damaged == 0, "{counts:?}");
}
