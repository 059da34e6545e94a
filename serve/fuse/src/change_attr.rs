//! The virtual extended attributes and the ioctl by which programs read the change attribute.

use crate::session::Server;
use ivers_vfs::{ChangeMode, Inode, Vfs};
use serde_json::{Value, json};

/// The change attribute, decimal.
pub const CHANGE: &str = "system.ivers.change";
/// The stored counter, decimal.
pub const STORED: &str = "system.ivers.stored";
/// The promises of the change attribute, JSON.
pub const SEMANTICS: &str = "system.ivers.semantics";
/// The statistics of the mount, JSON.
pub const STATS: &str = "system.ivers.stats";
/// The generation of the inode, decimal. With the inode number it identifies a file across reuse of the
/// number.
pub const GENERATION: &str = "system.ivers.generation";
/// What is mounted and who serves it, JSON.
pub const MOUNT: &str = "system.ivers.mount";

/// The state of the measurement list of a mount that measures, JSON.
pub const MEASUREMENT: &str = "system.ivers.measurement";

/// Growing the filesystem: the name is followed by a dot and the size in bytes, or by `.fill`. Reading
/// returns what it would do, JSON; setting (any value) does it. For root and the owner of the mount.
pub const RESIZE: &str = "system.ivers.resize";

/// The prefix of all these names.
const PREFIX: &[u8] = b"system.ivers.";

/// The length of the longest decimal of 64 bits. A caller that asks only for the size gets this, which is no
/// query.
pub(crate) const DECIMAL_MAX: u32 = 20;

/// `IVERS_IOC_CHANGE` of `include/ivers.h`: `_IOR(0xE9, 1, struct ivers_change)`.
pub const IVERS_IOC_CHANGE: u32 = (2 << 30) | ((IOCTL_BYTES as u32) << 16) | (0xE9 << 8) | 1;

const IOCTL_BYTES: usize = 24;

/// A virtual extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VirtualXattr {
    Change,
    Stored,
    Semantics,
    Stats,
    Generation,
    Mount,
    Measurement,
    /// Growing to this many bytes, or to the whole device.
    Resize(Option<u64>),
    /// The listing from this cursor on.
    Children(u64),
    /// The subvolumes from this number on.
    Subvolumes(u64),
    /// Announces a call.
    Subvolume,
    /// Flushing the files in a subvolume.
    SubvolumeFlush,
    /// The name has the prefix and is unknown.
    Unknown,
}

/// Returns the virtual attribute of a name. `None`: the name has another prefix.
pub(crate) fn asked(name: &[u8]) -> Option<VirtualXattr> {
    if !name.starts_with(PREFIX) {
        return None;
    }
    Some(match &name[PREFIX.len()..] {
        b"change" => VirtualXattr::Change,
        b"stored" => VirtualXattr::Stored,
        b"semantics" => VirtualXattr::Semantics,
        b"stats" => VirtualXattr::Stats,
        b"generation" => VirtualXattr::Generation,
        b"mount" => VirtualXattr::Mount,
        b"measurement" => VirtualXattr::Measurement,
        b"children" => VirtualXattr::Children(0),
        b"subvolumes" => VirtualXattr::Subvolumes(0),
        b"subvolume" => VirtualXattr::Subvolume,
        b"subvolume.flush" => VirtualXattr::SubvolumeFlush,
        b"resize.fill" => VirtualXattr::Resize(None),
        rest => number_after(rest, b"resize.")
            .map(|bytes| VirtualXattr::Resize(Some(bytes)))
            .or_else(|| number_after(rest, b"children.").map(VirtualXattr::Children))
            .or_else(|| number_after(rest, b"subvolumes.").map(VirtualXattr::Subvolumes))
            .unwrap_or(VirtualXattr::Unknown),
    })
}

/// Returns the decimal number after a prefix, if that is the whole name.
fn number_after(name: &[u8], prefix: &[u8]) -> Option<u64> {
    std::str::from_utf8(name.strip_prefix(prefix)?).ok()?.parse().ok()
}

/// Returns the promises of a filesystem, under the names that programs know.
pub fn semantics(vfs: &Vfs) -> Value {
    let promises = vfs.info().semantics;
    let missing = vfs.no_change_attribute();
    // Without a change attribute nothing is promised.
    let kept = |promise: bool| promise && missing.is_none();
    json!({
        "change_attribute": missing.is_none(),
        "no_change_attribute": missing,
        "data": kept(promises.data),
        "metadata": kept(promises.metadata),
        "monotonic": kept(promises.monotonic),
        "persistent": kept(promises.persistent),
        "crash_safe": kept(promises.crash_safe),
    })
}

pub(crate) fn stats(vfs: &Vfs) -> String {
    let counters = vfs.counters().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    serde_json::Value::Object(counters.collect()).to_string()
}

/// What growing would do, or why it is refused.
pub(crate) fn growth(vfs: &Vfs, bytes: Option<u64>) -> String {
    match vfs.plan_growth(bytes) {
        Ok(growth) => json!({
            "block_size": growth.block_size,
            "old_blocks": growth.old_blocks,
            "blocks": growth.blocks,
            "inodes": growth.inodes,
            "groups": growth.groups,
        }),
        Err(error) => json!({ "refused": error.to_string() }),
    }
    .to_string()
}

/// The prefix of the `instance` of a filesystem on a server.
pub const OF_SERVER: &str = "server:";

/// Describes the mount. Values may only be compared within one `instance`.
pub(crate) fn mount(vfs: &Vfs, server: &Server) -> String {
    use std::hash::{BuildHasher, RandomState};
    static THIS_PROCESS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let info = vfs.info();
    let prefix = if vfs.fs().server().is_some() { OF_SERVER } else { "" };
    let this_mount = THIS_PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let instance = prefix.to_owned() + &info.instance(&format!("{this_mount:016x}"));
    json!({
        "fs": info.fs_type,
        "uuid": dashed(&info.uuid),
        "label": info.label,
        "instance": instance,
        "pid": server.pid,
        "sandbox": server.sandbox,
        "read_only": vfs.is_read_only(),
        "iversion": match vfs.options().mode {
            ChangeMode::Lazy => "lazy",
            ChangeMode::Eager => "eager",
            ChangeMode::Off => "off",
        },
        "lazytime": vfs.options().lazytime,
        "lazyversion": vfs.policy().deferred.counter,
        "details": vfs.fs().describe().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    })
    .to_string()
}

/// Formats a UUID with dashes.
fn dashed(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (i, byte) in uuid.iter().enumerate() {
        text += if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
        text += &format!("{byte:02x}");
    }
    text
}

/// Encodes `struct ivers_change` in the machine's byte order.
pub(crate) fn ioctl_reply(vfs: &Vfs, inode: &Inode, change: Option<u64>) -> [u8; IOCTL_BYTES] {
    let promises = vfs.info().semantics;
    let mut flags = 0u32;
    for (bit, on) in [
        change.is_some(),
        promises.data,
        promises.metadata,
        promises.monotonic,
        promises.persistent,
        promises.crash_safe,
    ]
    .into_iter()
    .enumerate()
    {
        flags |= u32::from(on && change.is_some()) << bit;
    }
    let stored = if change.is_some() { vfs.stored_counter(inode) } else { 0 };
    let mut out = [0; IOCTL_BYTES];
    out[0..8].copy_from_slice(&change.unwrap_or(0).to_ne_bytes());
    out[8..16].copy_from_slice(&stored.to_ne_bytes());
    out[16..20].copy_from_slice(&inode.generation.to_ne_bytes());
    out[20..24].copy_from_slice(&flags.to_ne_bytes());
    out
}
