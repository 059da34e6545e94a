//! The contract over NFSv4.2, with two clients: one changes files, the other observes them.

mod common;

use common::serving::Serving;
use common::*;
use ivers_block::{Device, MemDevice};
use ivers_contract::{Promise, Restart, Served, Subject, observe};
use std::sync::Arc;
use std::time::Duration;

/// Serves ext4 on a device in memory; each start takes the next of `hows`.
fn ext4_served(base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<dyn Subject> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    let state = tempfile::tempdir().expect("a directory for the server's state");
    let path = state.path().to_owned();
    let mut hows_in_turn = hows.iter().cycle();
    let mut start = move || {
        let how = *hows_in_turn.next().expect("a cycle");
        let budget = how.budget();
        Serving::start(&path, how, open_ext4(how.device(&device), budget.clone()), budget)
    };
    let first = start();
    let address = first.address();
    let mut serving = Some(first);
    let restart: Restart = Box::new(move || {
        serving.take().expect("it is served").stop();
        serving.insert(start()).address()
    });
    let labels: Vec<_> = hows.iter().map(|how| how.label()).collect();
    let name = format!("ext4 over NFSv4.2, {}", labels.join(" then "));
    Box::new(Served::new(name, address, Some(restart)).keeping(state))
}

fn mem_served(how: How) -> Box<dyn Subject> {
    let state = tempfile::tempdir().expect("a directory for the server's state");
    let fs: Arc<dyn ivers_vfs::FileSystem> = Arc::new(ivers_mem::Mem::default());
    let serving = Serving::start(state.path(), how, fs, how.budget());
    Box::new(Served::new("mem over NFSv4.2", serving.address(), None).keeping((serving, state)))
}

#[test]
fn two_clients_keep_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let base = Arc::new(image("ext4", &["-b", "4096"]));
    for (nth, hows) in [&[LAZY] as &[How], &[EAGER], &[TIGHT, LAZYTIME, LAZYVERSION]].into_iter().enumerate()
    {
        let report = hold(&mut || ext4_served(&base, hows), seed() + nth as u64, steps(1500));
        let checked = |promise| report.tallies.of(promise).checked;
        assert!(checked(Promise::Data) > 60 && checked(Promise::Rests) > 60, "{report:?}");
        assert!(checked(Promise::Persistent) > 0, "{report:?}");
    }
    let report = hold(&mut || mem_served(LAZY), seed(), steps(1500));
    assert!(report.succeeded > 200, "{report:?}");
}

#[test]
fn served_reads_are_current() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let base = Arc::new(image("ext4", &[]));
    for mut subject in [mem_served(LAZY), ext4_served(&base, &[LAZY])] {
        for pages in [1, 5, 60] {
            let file = subject.share(&format!("shared{pages}")).unwrap();
            let found = observe(&*file, 2, pages, Duration::from_millis(600));
            hold_threads(&format!("{}, {pages} pages", subject.name()), &found);
            assert!(found.of(Promise::Monotonic).checked > 5);
        }
    }
}

/// Several actors, each with two clients: one to change files and one to observe them.
#[test]
fn concurrent_clients_keep_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let base = Arc::new(image("ext4", &["-b", "4096"]));
    for hows in [&[LAZY] as &[How], &[TIGHT, EAGER]] {
        hold_together(&mut || ext4_served(&base, hows), seed(), phases(60));
    }
    hold_together(&mut || mem_served(LAZY), seed(), phases(60));
}
