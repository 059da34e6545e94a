//! A cache that reads a file again only if it changed: `cargo run -p iversion --example cache`.

use std::sync::Mutex;

use iversion::Counter;

/// A file of a filesystem: contents and counter.
struct Inode {
    data: Mutex<String>,
    counter: Counter,
    /// How often the inode would have been logged for its counter.
    logged: Mutex<u32>,
}

impl Inode {
    /// Makes the change visible first, then tells the counter.
    fn write(&self, text: &str) {
        *self.data.lock().unwrap() = text.to_owned();
        if self.counter.maybe_inc(false) {
            *self.logged.lock().unwrap() += 1;
        }
    }
}

/// An observer: keeps contents with the value that vouches for them.
#[derive(Default)]
struct Cache {
    kept: Option<(u64, String)>,
    reads: u32,
}

impl Cache {
    /// Queries before it reads. If a change comes between, the value is older than the contents, and the next
    /// call reads again.
    fn get(&mut self, inode: &Inode) -> &str {
        let now = inode.counter.query();
        if self.kept.as_ref().is_none_or(|(value, _)| *value != now) {
            self.reads += 1;
            self.kept = Some((now, inode.data.lock().unwrap().clone()));
        }
        &self.kept.as_ref().unwrap().1
    }
}

fn main() {
    let inode = Inode { data: Mutex::default(), counter: Counter::new(1), logged: Mutex::default() };
    let mut cache = Cache::default();
    for round in 0..3 {
        for write in 0..1000 {
            inode.write(&format!("round {round}, write {write}"));
        }
        for _ in 0..1000 {
            assert_eq!(cache.get(&inode), format!("round {round}, write 999"));
        }
    }
    let logged = *inode.logged.lock().unwrap();
    println!("3000 writes, 3000 lookups: {} reads, inode logged {logged} times", cache.reads);
    assert_eq!((cache.reads, logged), (3, 2));
}
