//! Failures that the concurrent suite found, reproduced deterministically.

use ivers_mem::Mem;
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A clock that once signals another thread and then blocks until the access time of a file equals the
/// clock's.
#[derive(Default)]
struct Turnstile {
    time: ManualClock,
    once: Mutex<Option<(Sender<()>, InodeRef)>>,
}

impl Clock for Turnstile {
    fn now(&self) -> Timestamp {
        let now = self.time.now();
        let once = self.once.lock().unwrap().take();
        if let Some((go, file)) = once {
            go.send(()).unwrap();
            let patience = Instant::now() + Duration::from_secs(10);
            while file.attr().atime != now {
                assert!(Instant::now() < patience, "no reader");
                thread::yield_now();
            }
        }
        now
    }
}

/// Access times change without the file's lock, also while another thread sets attributes to their current
/// values.
#[test]
fn a_read_concurrent_with_a_no_op_is_no_change() {
    let clock = Arc::new(Turnstile::default());
    let options = MountOptions {
        atime: AtimeMode::Strict,
        clock: Some(Box::new(clock.clone())),
        ..MountOptions::default()
    };
    let vfs = Vfs::mount(Arc::new(Mem::default()), options).unwrap();
    let root = vfs.root().unwrap();
    let before = vfs.change(&root);
    clock.time.set(Timestamp { sec: 5, nsec: 0 });
    let (go, gone) = channel();
    *clock.once.lock().unwrap() = Some((go, root.clone()));
    thread::scope(|scope| {
        let (vfs, root) = (&vfs, &root);
        scope.spawn(move || {
            gone.recv().unwrap();
            vfs.readdir(&Cred::root(), root, 0, &mut |_| ControlFlow::Continue(())).unwrap();
        });
        vfs.set_attr(&Cred::root(), root, &SetAttr::default()).unwrap();
    });
    assert_eq!(root.attr().atime.sec, 5);
    assert_eq!(vfs.change(&root), before);
}
