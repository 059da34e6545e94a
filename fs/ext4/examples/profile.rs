//! A program to profile: one-byte overwrites of a file in one mode of the counter, with queries at intervals.
//!
//! Run `profile new|old|none WRITES QUERIES` in the release build, for example under `valgrind
//! --tool=callgrind --toggle-collect='*Vfs*write*'`. Its clock is simulated: it advances by 4 ms every 20,000
//! writes, about as many as an idle machine does in a tick. So a profiler that slows everything by a factor
//! of fifty sees the same number of ticks.

use ivers_block::{Device, MemDevice};
use ivers_ext4::mkfs::{MkfsOptions, mkfs};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::{ChangeMode, CreateSpec, Cred, ManualClock, MountOptions, Timestamp, Vfs, WriteFlags};
use std::sync::Arc;

const WRITES_A_TICK: u64 = 20_000;
const TICK_NS: u64 = 4_000_000;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, writes, queries] = args.as_slice() else {
        anyhow::bail!("profile new|old|none WRITES QUERIES");
    };
    let mode = match mode.as_str() {
        "old" => ChangeMode::Eager,
        "new" => ChangeMode::Lazy,
        "none" => ChangeMode::Off,
        other => anyhow::bail!("{other}: there are old, new and none"),
    };
    let (writes, queries): (u64, u64) = (writes.parse()?, queries.parse()?);

    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
    mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() })?;
    let fs = Ext4::open(device, OpenOptions::default())?;
    let clock = Arc::new(ManualClock::default());
    let options = MountOptions { mode, clock: Some(Box::new(clock.clone())), ..MountOptions::default() };
    let vfs = Vfs::mount(fs, options)?;
    let cred = Cred::root();
    let (file, _) = vfs.create(&cred, &vfs.root()?, b"file", &CreateSpec::file(0o644), true)?;
    vfs.write(&cred, &file, 0, b"0", WriteFlags::empty())?;

    let before = vfs.stats();
    for nth in 0..writes {
        if nth % WRITES_A_TICK == 0 {
            let now = nth / WRITES_A_TICK * TICK_NS;
            clock.set(Timestamp {
                sec: (1_000_000_000 + now / 1_000_000_000) as i64,
                nsec: (now % 1_000_000_000) as u32,
            });
        }
        vfs.write(&cred, &file, 0, b"1", WriteFlags::empty())?;
        // Spread the queries evenly.
        if (nth + 1) * queries / writes > nth * queries / writes {
            std::hint::black_box(vfs.change(&file));
        }
    }
    let after = vfs.stats();
    println!(
        "{writes} writes, {} queries, {} inode updates",
        after.queries - before.queries,
        after.inode_updates - before.inode_updates
    );
    drop(file);
    Ok(vfs.unmount()?)
}
