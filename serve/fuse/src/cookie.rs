//! The change attribute as programs see it.

use crate::session::Server;
use ivers_vfs::{ChangeMode, Inode, Vfs};
use serde_json::{Value, json};

/// The change attribute, decimal.
pub const CHANGE: &str = "system.ivers.change";
/// The stored counter, decimal.
pub const STORED: &str = "system.ivers.stored";
/// The promises, JSON.
pub const SEMANTICS: &str = "system.ivers.semantics";
/// The counters of the mount, JSON.
pub const STATS: &str = "system.ivers.stats";
/// The generation of the inode, decimal: with its number it names one life of a file.
pub const GENERATION: &str = "system.ivers.generation";
/// What is mounted and who serves it, JSON.
pub const MOUNT: &str = "system.ivers.mount";

/// What a mount that measures tells of its list, JSON.
pub const MEASUREMENT: &str = "system.ivers.measurement";

/// What all names of ours begin with.
const PREFIX: &[u8] = b"system.ivers.";

/// Longest decimal of 64 bits: what a caller that asks for the size alone is told, without being counted as one who looked.
pub(crate) const DECIMAL_MAX: u32 = 20;

/// `IVERS_IOC_CHANGE` of `include/ivers.h`: `_IOR(0xE9, 1, struct ivers_change)`.
pub const IVERS_IOC_CHANGE: u32 = (2 << 30) | ((IOCTL_BYTES as u32) << 16) | (0xE9 << 8) | 1;

const IOCTL_BYTES: usize = 24;

/// Which of our attributes a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Change,
    Stored,
    Semantics,
    Stats,
    Generation,
    Mount,
    Measurement,
    /// From this cursor on.
    Children(u64),
    /// Ours by its prefix, but there is none of that name.
    Unknown,
}

/// `None`: not one of ours.
pub(crate) fn asked(name: &[u8]) -> Option<Asked> {
    if !name.starts_with(PREFIX) {
        return None;
    }
    Some(match &name[PREFIX.len()..] {
        b"change" => Asked::Change,
        b"stored" => Asked::Stored,
        b"semantics" => Asked::Semantics,
        b"stats" => Asked::Stats,
        b"generation" => Asked::Generation,
        b"mount" => Asked::Mount,
        b"measurement" => Asked::Measurement,
        b"children" => Asked::Children(0),
        rest => {
            match rest.strip_prefix(b"children.").map(|number| std::str::from_utf8(number).map(str::parse)) {
                Some(Ok(Ok(cursor))) => Asked::Children(cursor),
                _ => Asked::Unknown,
            }
        }
    })
}

/// The promises of a filesystem, under the names that programs know.
pub fn semantics(vfs: &Vfs) -> Value {
    let promises = vfs.info().semantics;
    let missing = vfs.no_cookie();
    // Nothing is promised of a number that is not there.
    let kept = |promise: bool| promise && missing.is_none();
    json!({
        "cookie": missing.is_none(),
        "no_cookie": missing,
        "data": kept(promises.data),
        "metadata": kept(promises.metadata),
        "monotonic": kept(promises.monotonic),
        "persistent": kept(promises.persistent),
        "crash_safe": kept(promises.crash_safe),
    })
}

pub(crate) fn stats(vfs: &Vfs) -> String {
    let mut map = serde_json::Map::new();
    for (name, value) in vfs.stats().fields() {
        map.insert(name.into(), value.into());
    }
    let (blocks, bytes) = vfs.fs().journal_stats();
    map.insert("journal_blocks".into(), blocks.into());
    map.insert("journal_bytes".into(), bytes.into());
    serde_json::Value::Object(map).to_string()
}

/// `instance` tells apart what values may not be compared across: the UUID, and where values do not outlive the mount
/// a number that is another one each time.
pub(crate) fn mount(vfs: &Vfs, server: &Server) -> String {
    use std::hash::{BuildHasher, RandomState};
    static THIS_PROCESS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let info = vfs.info();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut instance = hex(&info.uuid);
    if !info.semantics.persistent {
        instance += &format!(
            "-{:016x}",
            THIS_PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
        );
    }
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
        "lazyversion": vfs.options().lazyversion,
        "details": vfs.fs().describe().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    })
    .to_string()
}

/// A UUID as everybody writes it.
fn dashed(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (i, byte) in uuid.iter().enumerate() {
        text += if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
        text += &format!("{byte:02x}");
    }
    text
}

/// `struct ivers_change` in the machine's byte order.
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
    let stored = if change.is_some() { vfs.stored_version(inode) } else { 0 };
    let mut out = [0; IOCTL_BYTES];
    out[0..8].copy_from_slice(&change.unwrap_or(0).to_ne_bytes());
    out[8..16].copy_from_slice(&stored.to_ne_bytes());
    out[16..20].copy_from_slice(&inode.generation.to_ne_bytes());
    out[20..24].copy_from_slice(&flags.to_ne_bytes());
    out
}
