//! Space of files, and copies that the server makes.

use super::recovery::{READ_WRITE, patient};
use super::*;
use ivers_vfs::{Error, FallocateMode, NameError};

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn space_is_allocated_and_punched_on_the_server() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    let (cred, bytes) = (Cred::root(), text(40_000));
    let file = client.put("f", &bytes).unwrap();
    client.vfs.open(&cred, &file, READ_WRITE).unwrap();
    let there = served.vfs.resolve(&cred, "/f", true).unwrap();
    client.vfs.write(&cred, &file, 5000, b"not sent yet", WriteFlags::empty()).unwrap();
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    client.vfs.fallocate(&cred, &file, punch, 4096, 20_000).unwrap();
    let mut expected = bytes.clone();
    expected[4096..24_096].fill(0);
    assert_eq!(client.contents("/f").unwrap(), expected);
    assert_eq!(served.vfs.seek_hole(&there, 0).unwrap(), 4096, "a hole on the server");

    client.vfs.fallocate(&cred, &file, FallocateMode::empty(), 30_000, 70_000).unwrap();
    assert_eq!(client.vfs.stat(&file).size, 100_000);
    assert_eq!(served.vfs.stat(&there).size, 100_000);
    expected.resize(100_000, 0);
    assert_eq!(client.contents("/f").unwrap(), expected);
    let blocks = client.vfs.stat(&file).blocks_512;
    client.vfs.fallocate(&cred, &file, FallocateMode::KEEP_SIZE, 4096, 20_000).unwrap();
    assert!(client.vfs.stat(&file).blocks_512 > blocks, "the hole has blocks again");
    for refused in [
        (FallocateMode::KEEP_SIZE, 90_000, 90_000),
        (FallocateMode::ZERO_RANGE, 0, 4096),
        (FallocateMode::COLLAPSE_RANGE, 0, 4096),
    ] {
        let done = client.vfs.fallocate(&cred, &file, refused.0, refused.1, refused.2);
        assert!(matches!(done, Err(Error::Name(NameError::NotSupported))), "{refused:?}");
    }
    client.vfs.close(&file, READ_WRITE);
    client.vfs.unmount().unwrap();
}

#[test]
fn the_server_copies_what_the_client_has_written() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &patient()).unwrap();
    let (cred, bytes) = (Cred::root(), text(3_000_001));
    let (from, to) = (client.put("from", &bytes).unwrap(), client.put("to", b"old contents").unwrap());
    for file in [&from, &to] {
        client.vfs.open(&cred, file, READ_WRITE).unwrap();
    }
    client.vfs.write(&cred, &from, 7, b"not sent yet", WriteFlags::empty()).unwrap();
    let mut expected = bytes.clone();
    expected[7..19].copy_from_slice(b"not sent yet");
    let before = client.nfs.requests();
    let mut done = 0;
    while done < bytes.len() as u64 {
        let copied = client.vfs.copy_range(&cred, &from, done, &to, done, 1 << 30).unwrap();
        assert!(copied > 0);
        done += copied;
    }
    assert!(
        client.nfs.requests() - before < 12,
        "{} requests: it was copied here",
        client.nfs.requests() - before
    );
    assert_eq!(client.contents("/to").unwrap(), expected);
    // Within a file.
    client.vfs.copy_range(&cred, &to, 100, &to, 2_000_000, 50_000).unwrap();
    expected.copy_within(100..50_100, 2_000_000);
    assert_eq!(client.contents("/to").unwrap(), expected);
    let there = served.vfs.resolve(&cred, "/to", true).unwrap();
    assert_eq!(served.vfs.stat(&there).size, expected.len() as u64);
    // ext4 shares no blocks.
    let shared = client.vfs.clone_range(&cred, &from, 0, &to, 0, 4096);
    assert!(matches!(shared, Err(Error::Name(NameError::NotSupported))));
    for file in [&from, &to] {
        client.vfs.close(file, READ_WRITE);
    }
    client.vfs.unmount().unwrap();
}
