//! What is read of the images of the fuzz target.

use crate::common::*;
use ivers_vfs::*;

#[test]
fn trees_are_read() {
    for packed in [PLAIN, SUMS] {
        let vfs = mount(&unpack(packed));
        let read = |path: &str| read_all(&vfs, &find(&vfs, path).unwrap()).unwrap();
        assert_eq!((read("/few/file"), read("/small")), (b"text\n".to_vec(), b"inline\n".to_vec()));
        assert!(read("/large") == b"lllllllll\n".repeat(10_000) && read("/clone") == read("/large"));
        assert_eq!(read("/ahead"), vec![0; 65_536]);
        let many = find(&vfs, "/many").unwrap();
        assert_eq!(names(&vfs, &many).unwrap().len(), 120);
        let link = |path: &str| vfs.read_link(&Cred::root(), &find(&vfs, path).unwrap()).unwrap();
        assert_eq!((link("/short"), link("/long")), (b"few/file".to_vec(), b"x".repeat(700)));
        let stat = |path: &str| vfs.stat(&find(&vfs, path).unwrap());
        assert_eq!((stat("/hard").nlink, stat("/pipe").kind), (2, FileType::Fifo));
        assert_eq!((stat("/device").kind, stat("/device").rdev), (FileType::CharDevice, 0x501));
        assert_eq!(stat("/small").blocks_512, 1);
        assert!(stat("/large").btime.is_none() && stat("/large").blocks_512 >= 195);
        let space = vfs.stat_fs().unwrap();
        assert!(space.blocks_free > 0 && space.blocks_free < space.blocks && space.files_free > 0);
    }
}

#[test]
fn holes_and_unwritten_extents_are_known() {
    let vfs = mount(&unpack(PLAIN));
    let holes = find(&vfs, "/holes").unwrap();
    let seek = |at: u64| (vfs.seek_data(&holes, at).ok(), vfs.seek_hole(&holes, at).unwrap());
    assert_eq!(seek(0), (Some(0), 4096));
    assert_eq!(seek(5000), (Some(8192), 5000));
    let data = read_all(&vfs, &holes).unwrap();
    assert_eq!(data.len(), 81 * 4096);
    assert!(data.chunks(8192).all(|piece| piece.starts_with(b"lllllllll\n")));
    assert!(data.chunks(8192).all(|piece| piece.iter().skip(4096).all(|byte| *byte == 0)));
    let ahead = find(&vfs, "/ahead").unwrap();
    assert_eq!(vfs.seek_hole(&ahead, 0).unwrap(), 0);
}

#[test]
fn attributes_of_all_places_are_read() {
    for packed in [PLAIN, SUMS] {
        let vfs = mount(&unpack(packed));
        let read = |path: &str, name: &str| {
            vfs.get_xattr(&Cred::root(), &find(&vfs, path).unwrap(), name.as_bytes())
        };
        assert_eq!(read("/small", "user.color").unwrap(), b"blue");
        let numbers: Vec<_> = (1..=900).map(|number| number.to_string()).collect();
        assert_eq!(read("/large", "trusted.large").unwrap(), numbers.join(",").into_bytes());
        let file = find(&vfs, "/few/file").unwrap();
        let names = vfs.list_xattr(&Cred::root(), &file).unwrap();
        assert_eq!(names.len(), 61);
        for name in names.iter().filter(|name| name.starts_with(b"user.")) {
            let value = vfs.get_xattr(&Cred::root(), &file, name).unwrap();
            assert_eq!(value, numbers[..30].join(".").into_bytes());
        }
        let list = acl::Acl::parse(&read("/few/file", "system.posix_acl_access").unwrap()).unwrap().unwrap();
        assert!(list.entries().iter().any(|entry| (entry.tag, entry.id, entry.perm) == (acl::USER, 1000, 4)));
        assert!(matches!(read("/small", "user.none"), Err(Error::Name(NameError::NoAttribute))));
    }
}

#[test]
fn listings_continue_from_any_cursor() {
    let vfs = mount(&unpack(SUMS));
    let dir = find(&vfs, "/many").unwrap();
    assert_listed_from_any_cursor(&vfs, &dir, 122, 2, 100);
}
