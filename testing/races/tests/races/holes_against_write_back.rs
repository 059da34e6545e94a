//! SEEK_HOLE and SEEK_DATA while write-back writes the neighbouring pages and they are written again.
//!
//! Promise: written ranges are data and the rest are holes, at every stage of write-back. Sparse copies,
//! SEEK_DATA and READ_PLUS depend on this: data that is reported as a hole becomes zeros in the copy.

use ivers_races::*;
use ivers_vfs::{Cred, Error, InodeRef, NameError, Piece, WriteFlags};
use shuttle::thread::scope;
use std::time::Duration;

const PAGES: u64 = 4;

/// A file of which some pages are written.
struct Sparse<'a> {
    fixture: &'a Fixture,
    file: InodeRef,
    /// One bit per page.
    written: u8,
}

impl Sparse<'_> {
    fn is_data(&self, page: u64) -> bool {
        self.written >> page & 1 != 0
    }

    /// Returns the number of pages.
    fn pages(&self) -> u64 {
        u64::from(u8::BITS - self.written.leading_zeros())
    }

    fn write(&self, page: u64) {
        put(&self.fixture.vfs, &self.file, page, page + 1, WriteFlags::empty());
    }

    fn seek(&self, page: u64) {
        let vfs = &self.fixture.vfs;
        // The last page may be partly written; all other ranges begin and end at pages.
        let size = vfs.stat(&self.file).size;
        let next = |data: bool| (page..self.pages()).find(|&at| self.is_data(at) == data).map(|at| at * PAGE);
        match vfs.seek_data(&self.file, page * PAGE) {
            Ok(at) => assert_eq!(Some(at), next(true), "the data after page {page} of {:04b}", self.written),
            Err(Error::Name(NameError::NoSuchOffset)) => assert_eq!(next(true), None),
            Err(error) => panic!("{error}"),
        }
        let hole = vfs.seek_hole(&self.file, page * PAGE).unwrap();
        assert_eq!(hole, next(false).unwrap_or(size), "the hole after page {page} of {:04b}", self.written);
    }

    fn read(&self) {
        let everything = 0..PAGES * PAGE;
        let most = PAGES as usize;
        let (pieces, _) =
            self.fixture.vfs.read_pieces(&Cred::root(), &self.file, everything, most, 1 << 20).unwrap();
        for page in 0..self.pages() {
            let at = page * PAGE;
            let number = pieces.iter().find_map(|piece| match piece {
                Piece::Hole(range) => range.contains(&at).then_some(0),
                Piece::Data(from, bytes) => {
                    let bytes = bytes.get(usize::try_from(at.checked_sub(*from)?).ok()?..)?.first_chunk()?;
                    Some(u64::from_le_bytes(*bytes))
                }
            });
            let expected = if self.is_data(page) { page + 1 } else { 0 };
            assert_eq!(number, Some(expected), "page {page} of {:04b}: {pieces:?}", self.written);
        }
    }
}

fn race() {
    let (background, all) = (coin(), coin());
    let fixture = Fixture::new(1 << 20, |options| {
        options.background = background;
        options.dirty_expire = Duration::ZERO;
    });
    let file = fixture.file(&fixture.root(), "sparse");
    let sparse = Sparse { fixture: &fixture, file, written: 1 + draw((1 << PAGES) - 1) as u8 };
    for page in (0..PAGES).filter(|&page| sparse.is_data(page)) {
        sparse.write(page);
    }
    scope(|scope| {
        let sparse = &sparse;
        scope.spawn(move || {
            let vfs = &sparse.fixture.vfs;
            if all { vfs.sync() } else { vfs.fsync(&sparse.file, false) }.unwrap();
        });
        scope.spawn(move || {
            for page in 0..sparse.pages() {
                sparse.seek(page);
            }
        });
        scope.spawn(move || sparse.read());
        scope.spawn(move || sparse.write(sparse.pages() - 1));
    });
    drop(sparse);
    fixture.end();
}

#[test]
fn holes_against_write_back() {
    explore(race);
}
