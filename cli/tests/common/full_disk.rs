//! Programs that write until a mount is full.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, Write};
use std::path::Path;

const MIB: usize = 1 << 20;

/// A program that writes until the disk is full stops there, although the kernel caches its writes, and can
/// continue when there is space again. `what` is for messages.
pub fn stops_a_writing_program(dir: &Path, what: &str) {
    let (ballast, endless) = (dir.join("ballast"), dir.join("endless"));
    fs::write(&ballast, vec![1; 8 * MIB]).unwrap();
    let mut file = File::create(&endless).unwrap();
    let mut megabytes = 0;
    let full = loop {
        match file.write_all(&[7; MIB]) {
            Ok(()) => megabytes += 1,
            Err(error) => break error,
        }
        assert!(megabytes < 4096, "{what}: a small disk took 4 GiB");
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull, "{what}: {full}");
    fs::remove_file(&ballast).unwrap();
    // Data without space is lost, and fsync reports it.
    let _ = file.sync_all();
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    file.write_all(&[8; 2 * MIB]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(&endless).unwrap() == [8; 2 * MIB], "{what}");
    fs::remove_file(&endless).unwrap();
}
