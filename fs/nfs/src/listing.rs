//! READDIR, and the attributes that come with names.
//!
//! Cookies 0, 1 and 2 never name an entry (RFC 8881, 18.23.3), so the cursors 1 and 2 follow `.` and `..`.
//!
//! The server's listing is hostile: it must end, and each name must be one (N7, N8).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::v40::{ReadDirArgs, ReadDirOk};
use ivers_nfs4::types::{FileHandle, Verifier};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, Ino, Result};

use crate::attributes::{self, EntryAttributes, FileAttributes};

/// Cursors that do not name an entry of the server.
pub const FIRST_COOKIE: u64 = 3;
/// Cursors are below; the VFS adds small numbers to them.
const COOKIES_END: u64 = 1 << 63;
/// Most entries of a listing.
const ENTRIES_MAX: u64 = 1 << 24;
/// How often a listing may meet the same cookie. Programs go back in a directory, but not as often.
const MEETINGS_MAX: u32 = 64;
/// READDIR replies that are kept for listings that continue.
const REPLIES_MAX: usize = 16;
/// Entries whose attributes are kept for lookups.
const PREFETCHED_MAX: usize = 32_768;

/// Returns the arguments that read the start of a listing.
pub fn start(maxcount: u32) -> ReadDirArgs {
    ReadDirArgs {
        cookie: 0,
        verifier: Verifier::default(),
        dircount: maxcount,
        maxcount,
        attrs: attributes::of_entry(),
    }
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The cursor after it.
    pub cookie: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// What the server said of it.
    pub attributes: EntryAttributes,
}

/// A checked part of a listing.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The entries.
    pub items: Vec<Item>,
    /// Nothing follows.
    pub eof: bool,
}

impl Part {
    /// Checks a reply to a READDIR that started at `cookie`.
    pub fn check(reply: ReadDirOk, cookie: u64, name_max: usize, place: &str) -> Result<Self> {
        let corrupt = |what: &str| Error::corrupt(format!("the server listed {what}"), place);
        if reply.entries.is_empty() && !reply.eof {
            return Err(corrupt("no entry, and did not end the directory"));
        }
        let mut items = Vec::with_capacity(reply.entries.len());
        for entry in reply.entries {
            if entry.cookie < FIRST_COOKIE {
                return Err(corrupt("a reserved cookie"));
            }
            if entry.cookie >= COOKIES_END {
                return Err(Error::Incompatible(format!("{place}: directory cookies of 64 bits")));
            }
            if entry.cookie == cookie {
                return Err(corrupt("a directory whose cookies repeat"));
            }
            // Some servers list these names although they must not.
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            if entry.name.is_empty() || entry.name.contains(&b'/') || entry.name.contains(&0) {
                return Err(corrupt("a name that is none"));
            }
            if entry.name.len() > name_max {
                return Err(corrupt("a name that is too long"));
            }
            let attributes = EntryAttributes::take(&entry.attrs, place)?;
            items.push(Item { cookie: entry.cookie, name: entry.name, attributes });
        }
        if items.is_empty() && !reply.eof {
            return Err(corrupt("a directory that does not continue"));
        }
        Ok(Self { items, eof: reply.eof })
    }
}

/// A part that is kept for a listing that continues in it.
struct Kept {
    dir: Ino,
    part: Arc<Part>,
    until: Instant,
}

/// The attributes of a name.
pub struct Prefetched {
    /// The filehandle.
    pub handle: FileHandle,
    /// The attributes.
    pub file: FileAttributes,
    /// When the request was sent.
    pub sent: u64,
    /// The change attribute that the directory had before.
    dir_change: u64,
    until: Instant,
}

/// The start of a listing that came with the reply to ACCESS, when a program opened the directory.
struct First {
    part: Arc<Part>,
    uid: u32,
    /// The change attribute of the directory in the same reply.
    change: u64,
    until: Instant,
}

/// All parts of a listing.
#[derive(Default)]
struct Whole {
    parts: Vec<Arc<Part>>,
    entries: usize,
    /// The change attribute that the directory had before each part.
    change: u64,
    /// The directory has it until then, by the attribute timeout.
    until: Option<Instant>,
}

impl Whole {
    fn is_complete(&self) -> bool {
        self.parts.last().is_some_and(|part| part.eof)
    }

    fn is_confirmed(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// How far a directory was listed since the last start of a listing.
#[derive(Default)]
struct Pass {
    entries: u64,
    /// A cookie that was met, and when the next one takes its place: in a cycle it is met again and again
    /// (Brent).
    mark: u64,
    next_mark: u64,
    meetings: u32,
}

#[derive(Default)]
struct Inner {
    kept: VecDeque<Kept>,
    prefetched: HashMap<(Ino, Vec<u8>), Prefetched>,
    order: VecDeque<(Ino, Vec<u8>)>,
    passes: HashMap<Ino, Pass>,
    firsts: HashMap<Ino, First>,
    wholes: HashMap<Ino, Whole>,
    /// The directories of `wholes`, the newest last. Some may be gone, or be there twice.
    whole_order: VecDeque<Ino>,
    /// The entries of `wholes`.
    whole_entries: usize,
}

impl Inner {
    /// The whole listing of a directory with this change attribute.
    fn whole(&self, dir: Ino, change: u64) -> Option<&Whole> {
        self.wholes.get(&dir).filter(|whole| whole.is_complete() && whole.change == change)
    }

    fn forget_whole(&mut self, dir: Ino) {
        if let Some(whole) = self.wholes.remove(&dir) {
            self.whole_entries -= whole.entries;
        }
    }
}

/// What is kept of listings.
#[derive(Default)]
pub struct Listings(RankedMutex<rank::Driver<7>, Inner>);

impl Listings {
    /// Counts the entries of a listing that continues at `cookie`, and refuses one without end.
    pub fn count(&self, dir: Ino, cookie: u64, part: &Part, place: &str) -> Result<()> {
        let mut inner = self.0.lock();
        let pass = inner.passes.entry(dir).or_default();
        if cookie < FIRST_COOKIE {
            *pass = Pass::default();
        }
        pass.entries += part.items.len() as u64;
        for item in &part.items {
            pass.meetings += u32::from(item.cookie == pass.mark);
        }
        let endless = pass.meetings > MEETINGS_MAX || pass.entries > ENTRIES_MAX;
        if pass.entries >= pass.next_mark {
            pass.next_mark = pass.entries.saturating_mul(2);
            (pass.mark, pass.meetings) = (part.items.last().map_or(0, |item| item.cookie), 0);
        }
        if part.eof || endless {
            inner.passes.remove(&dir);
        }
        if endless { Err(Error::corrupt("the server listed a directory without end", place)) } else { Ok(()) }
    }

    /// Returns the entries after `cookie`, if a part that is kept has them, and whether nothing follows. The
    /// start of a listing is never kept: it must show what is there now.
    pub fn continuation(&self, dir: Ino, cookie: u64) -> Option<(Arc<Part>, usize)> {
        let now = Instant::now();
        let inner = self.0.lock();
        inner.kept.iter().filter(|kept| kept.dir == dir && now < kept.until).find_map(|kept| {
            let at = kept.part.items.iter().position(|item| item.cookie == cookie)? + 1;
            (at < kept.part.items.len() || kept.part.eof).then(|| (kept.part.clone(), at))
        })
    }

    /// Keeps the start of a listing for the program of this user that opens the directory.
    pub fn keep_first(&self, dir: Ino, part: &Arc<Part>, uid: u32, change: u64, timeout: Duration) {
        let Some(until) = Instant::now().checked_add(timeout) else { return };
        let mut inner = self.0.lock();
        if inner.firsts.len() >= REPLIES_MAX {
            inner.firsts.clear();
        }
        inner.firsts.insert(dir, First { part: part.clone(), uid, change, until });
    }

    /// Takes the start of a listing that was kept for this user, if the directory is still as it was.
    pub fn take_first(&self, dir: Ino, uid: u32, change: u64) -> Option<Arc<Part>> {
        let found = self.0.lock().firsts.remove(&dir)?;
        let counts = found.uid == uid && found.change == change && Instant::now() < found.until;
        counts.then_some(found.part)
    }

    /// Adds a part, which begins after `cookie`, to the whole listing of a directory. `change` is the change
    /// attribute that the directory had before.
    pub fn add_to_whole(&self, dir: Ino, cookie: u64, part: &Arc<Part>, change: u64) {
        let mut inner = self.0.lock();
        if cookie < FIRST_COOKIE {
            inner.forget_whole(dir);
            inner.wholes.insert(dir, Whole { change, ..Whole::default() });
            inner.whole_order.push_back(dir);
        }
        let Some(whole) = inner.wholes.get_mut(&dir) else { return };
        let end = whole.parts.last().and_then(|part| part.items.last()).map_or(0, |item| item.cookie);
        let continues = cookie < FIRST_COOKIE && whole.parts.is_empty() || cookie == end && cookie != 0;
        if !continues || whole.change != change || whole.is_complete() {
            return inner.forget_whole(dir);
        }
        whole.entries += part.items.len();
        whole.parts.push(part.clone());
        inner.whole_entries += part.items.len();
        while inner.whole_entries > PREFETCHED_MAX || inner.whole_order.len() > PREFETCHED_MAX {
            let Some(oldest) = inner.whole_order.pop_front() else { break };
            inner.forget_whole(oldest);
        }
    }

    /// Returns the whole listing of a directory with this change attribute.
    pub fn whole(&self, dir: Ino, change: u64) -> Option<Vec<Arc<Part>>> {
        self.0.lock().whole(dir, change).map(|whole| whole.parts.clone())
    }

    /// Returns whether the whole listing of a directory with this change attribute is known.
    pub fn has_whole(&self, dir: Ino, change: u64) -> bool {
        self.0.lock().whole(dir, change).is_some()
    }

    /// The directory has just had this change attribute.
    pub fn confirm_whole(&self, dir: Ino, change: u64, timeout: Duration) {
        let mut inner = self.0.lock();
        match inner.wholes.get_mut(&dir) {
            Some(whole) if whole.change == change => whole.until = Instant::now().checked_add(timeout),
            _ => inner.forget_whole(dir),
        }
    }

    /// Returns whether the whole listing of a directory was confirmed within the attribute timeout.
    pub fn is_confirmed(&self, dir: Ino) -> bool {
        self.0.lock().wholes.get(&dir).is_some_and(Whole::is_confirmed)
    }

    /// Returns the entries after `cookie` in a whole listing that was confirmed within the attribute timeout.
    pub fn confirmed(&self, dir: Ino, cookie: u64, change: u64) -> Option<(Arc<Part>, usize)> {
        let inner = self.0.lock();
        let whole = inner.whole(dir, change).filter(|whole| whole.is_confirmed())?;
        if cookie < FIRST_COOKIE {
            return whole.parts.first().map(|part| (part.clone(), 0));
        }
        whole.parts.iter().enumerate().find_map(|(nth, part)| {
            let at = part.items.iter().position(|item| item.cookie == cookie)? + 1;
            match whole.parts.get(nth + 1) {
                Some(next) if at == part.items.len() => Some((next.clone(), 0)),
                _ => Some((part.clone(), at)),
            }
        })
    }

    /// Keeps a part, and the attributes in it. `dir_change`: the change attribute that the directory had
    /// before.
    pub fn keep(&self, dir: Ino, part: &Arc<Part>, sent: u64, dir_change: u64, timeout: Duration) {
        let Some(until) = Instant::now().checked_add(timeout) else { return };
        let mut inner = self.0.lock();
        if inner.kept.len() == REPLIES_MAX {
            inner.kept.pop_front();
        }
        inner.kept.push_back(Kept { dir, part: part.clone(), until });
        for item in &part.items {
            let Some((handle, file)) = &item.attributes.file else { continue };
            let key = (dir, item.name.clone());
            let (handle, file) = (handle.clone(), file.clone());
            let known = Prefetched { handle, file, sent, dir_change, until };
            if inner.prefetched.insert(key.clone(), known).is_none() {
                inner.order.push_back(key);
            }
        }
        while inner.order.len() > PREFETCHED_MAX
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.prefetched.remove(&oldest);
        }
    }

    /// Takes what a listing said of a name, if the directory is still as it was.
    pub fn take(&self, dir: Ino, name: &[u8], dir_change: u64) -> Option<Prefetched> {
        let mut inner = self.0.lock();
        // Its place in the order stays; it makes room for another entry earlier than needed.
        let found = inner.prefetched.remove(&(dir, name.to_vec()))?;
        (found.dir_change == dir_change && Instant::now() < found.until).then_some(found)
    }

    /// The directory changed, or leaves memory.
    pub fn forget(&self, dir: Ino) {
        let mut inner = self.0.lock();
        inner.kept.retain(|kept| kept.dir != dir);
        inner.passes.remove(&dir);
        inner.firsts.remove(&dir);
        inner.forget_whole(dir);
    }
}

/// Returns the number that a listing shows for an entry: that of a file in memory, or its `fileid`.
pub fn shown_number(known: Option<Ino>, entry: &EntryAttributes) -> Ino {
    known.unwrap_or(Ino(entry.fileid.filter(|fileid| *fileid != 0).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_nfs4::attr::{Attrs, Fattr};
    use ivers_nfs4::ops::v40::Entry;
    use ivers_nfs4::types::{Ftype, Opaque};

    fn attrs(fileid: u64) -> Fattr {
        let (kind, size) = (Some(Ftype::Reg), Some(0));
        let filehandle = Some(Opaque(fileid.to_be_bytes().to_vec()));
        Attrs { kind, size, change: Some(1), fileid: Some(fileid), filehandle, ..Attrs::default() }.encode()
    }

    fn entry(cookie: u64, name: &[u8]) -> Entry {
        Entry { cookie, name: name.to_vec(), attrs: attrs(cookie) }
    }

    fn part(entries: Vec<Entry>, eof: bool) -> Result<Part> {
        Part::check(ReadDirOk { verifier: [0; 8], entries, eof }, 9, 255, "nfs://h")
    }

    #[test]
    fn entries_that_lie_are_refused() {
        assert_eq!(part(vec![entry(10, b"a"), entry(11, b"..")], false).unwrap().items.len(), 1);
        assert!(part(Vec::new(), true).unwrap().items.is_empty());
        for bad in [
            vec![],
            vec![entry(2, b"a")],
            vec![entry(9, b"a")],
            vec![entry(1 << 63, b"a")],
            vec![entry(10, b"")],
            vec![entry(10, b"a/b")],
            vec![entry(10, b"a\0")],
            vec![entry(10, &[b'x'; 256])],
            vec![entry(10, b".")],
        ] {
            assert!(part(bad.clone(), false).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_cycle_of_cookies_ends() {
        let (listings, dir) = (Listings::default(), Ino(1));
        let parts: Vec<_> =
            [10, 11, 12, 13].map(|cookie| part(vec![entry(cookie, b"x")], false).unwrap()).into();
        let mut cookie = 0;
        let steps = (0..10_000).take_while(|step| {
            let part = &parts[step % parts.len()];
            let counted = listings.count(dir, cookie, part, "").is_ok();
            cookie = part.items[0].cookie;
            counted
        });
        assert!((MEETINGS_MAX as usize..4000).contains(&steps.count()));
    }

    #[test]
    fn a_long_directory_is_no_cycle() {
        let (listings, dir) = (Listings::default(), Ino(1));
        for pass in 0..3 {
            for at in 0..20_000_u64 {
                let from = if at == 0 { 0 } else { at + 9 };
                let part = part(vec![entry(at + 10, b"x")], at == 19_999).unwrap();
                listings.count(dir, from, &part, "").unwrap_or_else(|error| panic!("{pass} {at}: {error}"));
            }
        }
        assert!(listings.0.lock().passes.is_empty());
    }

    #[test]
    fn a_whole_listing_counts_while_the_directory_is_confirmed() {
        let (listings, dir, long) = (Listings::default(), Ino(1), Duration::from_secs(100));
        let parts = [(0, vec![entry(10, b"a"), entry(11, b"b")], false), (11, vec![entry(12, b"c")], true)];
        let parts = parts.map(|(cookie, entries, eof)| (cookie, Arc::new(part(entries, eof).unwrap())));
        listings.add_to_whole(dir, 0, &parts[0].1, 5);
        listings.confirm_whole(dir, 5, long);
        assert!(listings.whole(dir, 5).is_none() && listings.confirmed(dir, 0, 5).is_none(), "not complete");
        listings.add_to_whole(dir, 11, &parts[1].1, 5);
        assert_eq!(listings.whole(dir, 5).map(|parts| parts.len()), Some(2));
        let first = |cookie| {
            let (part, at) = listings.confirmed(dir, cookie, 5)?;
            Some(part.items.get(at).map_or(0, |item| item.cookie))
        };
        assert_eq!([0, 10, 11, 12, 99].map(first), [Some(10), Some(11), Some(12), Some(0), None]);
        assert!(listings.confirmed(dir, 0, 6).is_none() && listings.whole(dir, 6).is_none());
        listings.confirm_whole(dir, 5, Duration::ZERO);
        assert!(first(0).is_none(), "too long ago");
        listings.confirm_whole(dir, 6, long);
        assert!(listings.whole(dir, 5).is_none(), "the directory has changed");
        // A part that does not continue the one before, or is of a changed directory.
        for (cookie, change) in [(10, 5), (11, 6)] {
            listings.add_to_whole(dir, 0, &parts[0].1, 5);
            listings.add_to_whole(dir, cookie, &parts[1].1, change);
            assert!(listings.whole(dir, 5).is_none());
        }
        assert_eq!(listings.0.lock().whole_entries, 0);
    }

    #[test]
    fn the_start_that_came_with_an_open_counts_once_and_for_its_user() {
        let (listings, dir, long) = (Listings::default(), Ino(1), Duration::from_secs(100));
        let start = Arc::new(part(vec![entry(10, b"a")], true).unwrap());
        let keep = |timeout| listings.keep_first(dir, &start, 7, 5, timeout);
        keep(long);
        assert!(listings.take_first(dir, 7, 5).is_some() && listings.take_first(dir, 7, 5).is_none());
        for (uid, change, timeout) in [(8, 5, long), (7, 6, long), (7, 5, Duration::ZERO)] {
            keep(timeout);
            assert!(listings.take_first(dir, uid, change).is_none());
        }
    }

    #[test]
    fn attributes_of_a_name_count_once_and_while_the_directory_stays() {
        let (listings, dir) = (Listings::default(), Ino(1));
        let part = Arc::new(part(vec![entry(10, b"a"), entry(11, b"b"), entry(12, b"c")], false).unwrap());
        listings.keep(dir, &part, 1, 5, Duration::from_secs(100));
        assert!(listings.take(dir, b"a", 5).is_some() && listings.take(dir, b"a", 5).is_none());
        assert!(listings.take(dir, b"b", 6).is_none(), "the directory changed");
        assert_eq!(listings.continuation(dir, 10).map(|(_, at)| at), Some(1));
        assert!(listings.continuation(dir, 12).is_none() && listings.continuation(dir, 0).is_none());
        listings.forget(dir);
        assert!(listings.continuation(dir, 10).is_none());
    }
}
