//! Listings. The tests of OCFS2 use this file, too.

use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Asserts that a directory of `count` entries can be listed from any cursor: also from one inside the entry
/// after entry `nth`. Then looks names up: that of entry `late`, and one that was listed before it.
pub fn assert_listed_from_any_cursor(vfs: &Arc<Vfs>, dir: &InodeRef, count: usize, nth: usize, late: usize) {
    let list = |cursor: u64, most: usize| {
        let mut found = Vec::new();
        vfs.readdir(&Cred::root(), dir, cursor, &mut |entry| {
            found.push((entry.name.to_vec(), entry.next));
            if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
        found
    };
    let all = list(0, usize::MAX);
    assert_eq!(all.len(), count);
    let (mut cursor, mut pieces) = (0, Vec::new());
    loop {
        let piece = list(cursor, 7);
        let Some((_, next)) = piece.last() else { break };
        cursor = *next;
        pieces.extend(piece);
    }
    assert_eq!(pieces, all);
    // A cursor inside an entry, which only a client invents, continues with the next one.
    assert_eq!(list(all[nth].1 + 1, usize::MAX), all[nth + 2..]);
    assert_eq!(list(u64::MAX, usize::MAX), []);
    // A name that was listed before the one that was found last is found, too.
    for (name, _) in [&all[late], &all[5], &all[count - 1]] {
        vfs.lookup(&Cred::root(), dir, name).unwrap();
    }
    assert!(matches!(vfs.lookup(&Cred::root(), dir, b"none"), Err(Error::Name(NameError::NotFound))));
}
