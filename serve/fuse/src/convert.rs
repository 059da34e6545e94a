//! Conversion of attributes and times between the VFS and the wire.

use fuser::{FileAttr, INodeNo, TimeOrNow};
use ivers_vfs::{Attr, FileType, TimeSet, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn file_type(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// Converts a stored time for fuser. Hostile images hold any value; one outside SystemTime becomes 1970.
pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nsec));
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    let whole = if time.sec >= 0 { UNIX_EPOCH.checked_add(seconds) } else { UNIX_EPOCH.checked_sub(seconds) };
    whole.and_then(|t| t.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Converts a time of a SETATTR. For times before 1970 fuser 0.18 subtracts the nanoseconds instead of adding
/// them; this undoes that.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Timestamp { sec: -(before.as_secs() as i64), nsec: before.subsec_nanos() }
        }
    }
}

pub(crate) fn time_set(time: TimeOrNow) -> TimeSet {
    match time {
        TimeOrNow::Now => TimeSet::Now,
        TimeOrNow::SpecificTime(time) => TimeSet::At(timestamp(time)),
    }
}

/// Converts the attributes of a node. fuser also takes the node number from `ino`.
pub(crate) fn file_attr(ino: u64, attr: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: attr.size,
        blocks: attr.blocks_512,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime.unwrap_or_default()),
        kind: file_type(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size,
        flags: 0,
    }
}

/// Returns the reply that the kernel caches as "no such name".
pub(crate) fn negative_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let stored = Timestamp { sec: -2, nsec: 800_000_000 };
        assert_eq!(UNIX_EPOCH.duration_since(system_time(stored)).unwrap(), Duration::from_millis(1200));
        // The time that fuser makes of (-2 s, 0.8 s) on the wire.
        let parsed = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(timestamp(parsed), stored);
    }

    #[test]
    fn hostile_times_do_not_panic() {
        for sec in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
            system_time(Timestamp { sec, nsec: 999_999_999 });
        }
    }
}
