//! A write that ends early: the caller gets the count and the reason.

use ivers_mem::Mem;
use ivers_vfs::*;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn mounted(capacity_bytes: usize) -> (Arc<Vfs>, InodeRef) {
    let mem = Arc::new(Mem::new(capacity_bytes as u64));
    let vfs = Vfs::mount(mem, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let root = vfs.root().unwrap();
    let file = vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap().0;
    (vfs, file)
}

fn write(vfs: &Vfs, file: &InodeRef, offset: u64, data: &[u8]) -> Result<WriteOutcome> {
    vfs.write_with_outcome(&Cred::root(), file, offset, data, WriteFlags::empty())
}

#[test]
fn a_write_that_a_full_filesystem_ends_returns_the_count_and_the_reason() {
    let (vfs, file) = mounted(5 * MIB / 2);
    let data = vec![7; 4 * MIB];
    let outcome = write(&vfs, &file, 0, &data).unwrap();
    assert_eq!((outcome.bytes, vfs.stat(&file).size), (2 * MIB, 2 * MIB as u64));
    assert!(matches!(outcome.error, Some(Error::Name(NameError::NoSpace))), "{outcome:?}");
    assert!(matches!(outcome.complete(), Err(Error::Name(NameError::NoSpace))));
    // Again, into pages that are there already.
    assert_eq!(write(&vfs, &file, 0, &data).unwrap().count().unwrap(), 2 * MIB);
    // Nothing fits.
    let nothing = write(&vfs, &file, 2 * MIB as u64, &data);
    assert!(matches!(nothing, Err(Error::Name(NameError::NoSpace))), "{nothing:?}");
    // All fits.
    let all = write(&vfs, &file, 0, &data[..MIB]).unwrap();
    assert!(all.error.is_none());
    assert_eq!(all.complete().unwrap(), MIB);
}

#[test]
fn a_write_past_the_largest_size_says_so() {
    let (vfs, file) = mounted(MIB);
    let most = vfs.info().max_file_size;
    let outcome = write(&vfs, &file, most - 3, b"five!").unwrap();
    assert_eq!(outcome.bytes, 3);
    assert!(matches!(outcome.error, Some(Error::Name(NameError::TooLarge))), "{outcome:?}");
}
