//! Tests of the writer and the reader together, and of hostile archives.

use ivers_vfs::{FileType, Timestamp};

use super::member::{ArchiveError, Kind, Member};
use super::reader::{DataError, Reader};
use super::sparse::Run;
use super::writer::Writer;

/// A member, and the contents of its ranges.
type Contents = (Member, Vec<(u64, Vec<u8>)>);

fn read_all(archive: &[u8]) -> Result<Vec<Contents>, ArchiveError> {
    let mut reader = Reader::new(archive);
    let mut all = Vec::new();
    while let Some(member) = reader.next()? {
        let mut contents: Vec<(u64, Vec<u8>)> = Vec::new();
        let read = reader.data(&mut |offset, bytes| {
            match contents.last_mut().filter(|(at, last)| at + last.len() as u64 == offset) {
                Some((_, last)) => last.extend_from_slice(bytes),
                None => contents.push((offset, bytes.to_vec())),
            }
            Ok(())
        });
        match read {
            Ok(()) => {}
            Err(DataError::Archive(error)) => return Err(error),
            Err(DataError::Sink(error)) => panic!("{error}"),
        }
        all.push((member, contents));
    }
    Ok(all)
}

fn write_all(all: &[Contents]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes);
    for (member, contents) in all {
        let mut runs: Vec<_> =
            contents.iter().map(|(offset, data)| Run { offset: *offset, len: data.len() as u64 }).collect();
        if runs.last().is_some_and(|run| run.offset + run.len < member.size) {
            runs.push(Run { offset: member.size, len: 0 });
        }
        writer.header(member, &runs).unwrap();
        contents.iter().for_each(|(_, data)| writer.data(data).unwrap());
        writer.fill_block().unwrap();
    }
    writer.finish().unwrap();
    bytes
}

fn member(path: &[u8], kind: FileType) -> Member {
    Member { perm: 0o644, ..Member::new(path, Kind::File(kind)) }
}

/// Members with everything that a ustar header cannot hold.
fn difficult() -> Vec<Contents> {
    let file = |path: &[u8], size| Member { size, ..member(path, FileType::Regular) };
    let xattrs =
        vec![(b"user.a=b%c".to_vec(), b"line\nline\0\xff".to_vec()), (b"user.empty".to_vec(), Vec::new())];
    let named = Member {
        uid: u32::MAX - 1,
        gid: 3_000_000,
        mtime: Timestamp { sec: -5, nsec: 123_456_789 },
        xattrs,
        ..file(&[b"d/".repeat(60).as_slice(), b"long\nname"].concat(), 5)
    };
    let link = Member { target: b"t/".repeat(200), ..member(b"link", FileType::Symlink) };
    let hard = Member { target: named.path.clone(), ..Member::new(b"hard", Kind::HardLink) };
    let device = Member { rdev: 0x1234_5678, ..member(b"dev", FileType::BlockDevice) };
    let holes = vec![(4096, vec![1; 4096]), (1 << 40, vec![2; 10])];
    vec![
        (Member { perm: 0o7777, ..member(b"d/", FileType::Directory) }, vec![]),
        (named, vec![(0, b"hello".to_vec())]),
        (link, vec![]),
        (hard, vec![]),
        (device, vec![]),
        (member(b"fifo", FileType::Fifo), vec![]),
        (file(b"not UTF-8 \xff", 0), vec![]),
        (file(b"holes", (1 << 41) + 7), holes),
        (file(b"only a hole", 1 << 30), vec![]),
        (
            Member { mtime: Timestamp { sec: 1 << 40, nsec: 0 }, ..file(b"late", 512) },
            vec![(0, vec![3; 512])],
        ),
    ]
}

#[test]
fn members_round_trip() {
    let all = difficult();
    let bytes = write_all(&all);
    assert_eq!(bytes.len() % 10240, 0);
    assert_eq!(read_all(&bytes).unwrap(), all);
    assert_eq!(bytes, write_all(&all), "equal members make equal archives");
}

#[test]
fn every_truncation_is_an_error_with_its_place() {
    let bytes = write_all(&difficult());
    let mark = bytes.iter().rposition(|&byte| byte != 0).unwrap() / 512 * 512 + 512;
    for len in (0..mark).step_by(37).chain([1, 511, 512, 513, mark]) {
        let error = read_all(&bytes[..len]).unwrap_err();
        assert!(error.offset <= len as u64 && error.cause.is_none(), "{len}: {error}");
        assert!(error.to_string().contains("truncated") || len == 0, "{len}: {error}");
    }
    let error = read_all(&bytes[..mark - 100]).unwrap_err().to_string();
    assert!(error.contains("member late"), "{error}");
}

#[test]
fn damage_causes_no_panic_and_no_large_allocation() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    let whole = write_all(&difficult());
    let mut rng = StdRng::seed_from_u64(7);
    let mut refused = 0;
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.random_range(1..4) {
            // Most of the damage is in headers, with a valid sum.
            let at = rng.random_range(0..bytes.len() / 512) * 512 + rng.random_range(0..512);
            bytes[at] = *[0, b'0', b'7', b'9', b'\n', b' ', 0x80, 0xff, b'S', b'x', b'1']
                .get(rng.random_range(0..11))
                .unwrap();
            let block = at / 512 * 512;
            let header = &mut bytes[block..block + 512];
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        refused += u32::from(read_all(&bytes).is_err());
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn what_is_no_archive_is_named() {
    let error = |bytes: &[u8]| {
        let mut block = bytes.to_vec();
        block.resize(1024, 1);
        read_all(&block).unwrap_err().to_string()
    };
    assert!(error(b"\x28\xb5\x2f\xfd").contains("zstd -dc FILE | ivers tar -x IMAGE:/"));
    assert!(error(b"\x1f\x8b").contains("gzip -dc"));
    assert!(error(b"hello").contains("no tar archive"));
    assert!(read_all(&[]).unwrap_err().to_string().contains("the input is empty"));
    assert_eq!(read_all(&[0; 1024]).unwrap(), []);
}

/// Reads an archive of one empty file of mode 0644 with these records.
fn read_with_records(records: &[(&str, &[u8])]) -> Member {
    let mut body = Vec::new();
    for (key, value) in records {
        super::pax::push(&mut body, key.as_bytes(), value);
    }
    let mut bytes = Vec::new();
    for (kind, size) in [(tar::EntryType::XHeader, body.len()), (tar::EntryType::Regular, 0)] {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_entry_type(kind);
        header.set_path("file").unwrap();
        header.set_size(size as u64);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        if kind == tar::EntryType::XHeader {
            body.resize(body.len().next_multiple_of(512), 0);
            bytes.extend_from_slice(&body);
        }
    }
    bytes.resize(bytes.len() + 1024, 0);
    read_all(&bytes).unwrap().remove(0).0
}

/// bsdtar writes the mode of the owning group, which the mask replaces on Linux.
#[test]
fn the_mode_follows_the_acl() {
    let acl = b"user::rw-,user:1234:rw-,group::r--,mask::rw-,other::r--";
    let member = read_with_records(&[("SCHILY.acl.access", acl)]);
    assert_eq!((member.perm, member.unusable), (0o664, None));
    assert_eq!(read_with_records(&[("SCHILY.acl.default", acl)]).perm, 0o644);
}

/// GNU tar writes the text with names, and with --xattrs the attribute with numbers.
#[test]
fn an_acl_that_is_also_an_attribute_is_not_lost() {
    let text: (&str, &[u8]) =
        ("SCHILY.acl.access", b"user::rw-,user:alice:rw-,group::r--,mask::rw-,other::r--");
    let member = read_with_records(&[text]);
    assert!(member.unusable.is_some_and(|why| why.contains("alice")));
    assert_eq!(member.xattrs, []);
    let acl = ivers_vfs::acl::Acl::of_mode(0o640).encode();
    let attribute: (&str, &[u8]) = ("SCHILY.xattr.system.posix_acl_access", &acl);
    for records in [[text, attribute], [attribute, text]] {
        let member = read_with_records(&records);
        assert_eq!((member.unusable, member.xattrs.len(), member.perm), (None, 1, 0o640));
    }
}

#[test]
fn extension_headers_are_bounded() {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    for (kind, size) in [(tar::EntryType::XHeader, 17 << 20), (tar::EntryType::GNULongName, 1 << 20)] {
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        let error = read_all(header.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
    // A number of ranges that would need 16 EiB.
    let map = format!("{}\n", u64::MAX);
    let mut records = Vec::new();
    for (key, value) in [("major", "1"), ("minor", "0"), ("realsize", "1000"), ("name", "x")] {
        super::pax::push(&mut records, format!("GNU.sparse.{key}").as_bytes(), value.as_bytes());
    }
    let mut bytes = Vec::new();
    for (kind, body) in [(tar::EntryType::XHeader, records), (tar::EntryType::Regular, map.into_bytes())] {
        header.set_entry_type(kind);
        header.set_size(512);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        let mut body = body;
        if kind == tar::EntryType::XHeader {
            // The header counts its records only.
            header.set_size(body.len() as u64);
            header.set_cksum();
            let at = bytes.len() - 512;
            bytes[at..].copy_from_slice(header.as_bytes());
        }
        body.resize(512, 0);
        bytes.extend_from_slice(&body);
    }
    let error = read_all(&bytes).unwrap_err().to_string();
    assert!(error.contains("ranges"), "{error}");
}
