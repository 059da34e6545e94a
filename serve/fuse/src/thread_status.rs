//! What /proc shows about the threads that make requests: their groups and signals.
//!
//! The protocol carries no supplementary groups, and a program may change its groups between two requests. So
//! the file of a thread is read for each request that needs them. A sandboxed process cannot open this file,
//! but can read it once it is open. So [the helper](crate::privileged_helper) opens the file once for each
//! thread, and sends the descriptor.
//!
//! Thread numbers are reused, but the open file of a thread that ended cannot be read.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;

/// Usually about 1.5 KiB. Each group adds up to 11 bytes.
const STATUS: usize = 4 << 10;
/// 65,536 groups (NGROUPS_MAX) and the other lines.
const STATUS_MAX: usize = 1 << 20;

/// Files that stay open. Further threads replace the files of others.
const FILES: usize = 64;

/// The lines of `/proc/TID/status`, see proc_pid_status(5).
pub(crate) struct ThreadStatus(String);

impl ThreadStatus {
    /// Opens the file of a thread; `None`: it has ended, or /proc hides it.
    pub(crate) fn open(thread: u32) -> Option<File> {
        File::open(format!("/proc/{thread}/status")).ok()
    }

    /// Returns whether no such thread exists. /proc may hide a thread that exists (proc(5), hidepid).
    pub(crate) fn is_unknown(thread: u32) -> bool {
        let number = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
        number.is_none_or(|number| rustix::process::test_kill_process(number) == Err(Errno::SRCH))
    }

    /// Reads the file. `None`: the thread has ended.
    ///
    /// One call reads it to the end, because two calls can read two states.
    pub(crate) fn read(file: &File) -> Option<Self> {
        let mut bytes = vec![0; STATUS];
        loop {
            let length = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *bytes, 0)).ok()?;
            if length < bytes.len() {
                bytes.truncate(length);
                break;
            }
            if bytes.len() >= STATUS_MAX {
                break;
            }
            bytes.resize(bytes.len() * 4, 0);
        }
        let status = Self(String::from_utf8_lossy(&bytes).into_owned());
        // A zombie has only its number left.
        (!status.field("State:").starts_with(['Z', 'X'])).then_some(status)
    }

    fn field(&self, name: &str) -> &str {
        self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim_start()
    }

    /// Returns the supplementary groups.
    pub(crate) fn groups(&self) -> Vec<u32> {
        self.field("Groups:").split_whitespace().filter_map(|group| group.parse().ok()).collect()
    }

    /// Returns whether the thread, or its process, has a pending signal that is not blocked.
    pub(crate) fn has_signal(&self) -> bool {
        let signals = |name| u64::from_str_radix(self.field(name), 16).unwrap_or(0);
        (signals("SigPnd:") | signals("ShdPnd:")) & !signals("SigBlk:") != 0
    }
}

/// The open files of the threads that made requests.
#[derive(Debug, Default)]
pub(crate) struct StatusFiles(Mutex<Files>);

#[derive(Debug, Default)]
struct Files {
    files: Vec<(u32, Arc<File>)>,
    /// The place of the file that is replaced next.
    next: usize,
}

impl StatusFiles {
    /// Reads the file of a thread. Calls `open` if the file is not open yet. `None`: the thread has ended, or
    /// its file is hidden.
    pub(crate) fn read(&self, thread: u32, open: impl FnOnce() -> Option<File>) -> Option<ThreadStatus> {
        let known = self.0.lock().find(thread);
        if let Some(status) = known.and_then(|file| ThreadStatus::read(&file)) {
            return Some(status);
        }
        let file = Arc::new(open()?);
        self.0.lock().keep(thread, file.clone());
        ThreadStatus::read(&file)
    }
}

impl Files {
    fn find(&self, thread: u32) -> Option<Arc<File>> {
        self.files.iter().find(|(of, _)| *of == thread).map(|(_, file)| file.clone())
    }

    fn keep(&mut self, thread: u32, file: Arc<File>) {
        if let Some(old) = self.files.iter_mut().find(|(of, _)| *of == thread) {
            old.1 = file;
        } else if self.files.len() < FILES {
            self.files.push((thread, file));
        } else {
            self.files[self.next] = (thread, file);
            self.next = (self.next + 1) % FILES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileged_helper::own_number;
    use std::cell::Cell;

    #[test]
    fn a_file_is_opened_once_and_again_for_a_new_thread_with_its_number() {
        let (files, opened) = (StatusFiles::default(), Cell::new(0));
        let read = |thread: u32, really: u32| {
            files.read(thread, || {
                opened.set(opened.get() + 1);
                ThreadStatus::open(really)
            })
        };
        assert!(read(own_number(), own_number()).is_some());
        assert!(read(own_number(), own_number()).is_some());
        assert_eq!(opened.get(), 1);
        // Afterwards the file of this number is that of a process that has ended.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let number = 7;
        assert!(read(number, other.id()).is_some());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(opened.get(), 2);
        assert!(read(number, own_number()).is_some());
        assert_eq!(opened.get(), 3);
        assert!(read(number, own_number()).is_some());
        assert_eq!(opened.get(), 3);
    }

    #[test]
    fn few_files_stay_open() {
        let files = StatusFiles::default();
        for thread in 0..2 * FILES as u32 + 3 {
            assert!(files.read(thread, || ThreadStatus::open(own_number())).is_some());
        }
        let files = files.0.lock();
        assert_eq!(files.files.len(), FILES);
        assert!(files.find(2 * FILES as u32 + 2).is_some());
        assert!(files.find(0).is_none());
    }

    #[test]
    fn zombies_and_signals_are_seen() {
        let mut other = std::process::Command::new("sleep").arg("0").spawn().unwrap();
        let file = ThreadStatus::open(other.id()).unwrap();
        while ThreadStatus::read(&file).is_some() {
            std::thread::yield_now();
        }
        assert!(!ThreadStatus::is_unknown(other.id()));
        other.wait().unwrap();
        assert!(ThreadStatus::is_unknown(other.id()));
        assert!(ThreadStatus::is_unknown(0));
        let status = |text: &str| ThreadStatus(text.into());
        assert!(status("SigPnd:\t0000000000000004\nShdPnd:\t0\nSigBlk:\t0000000000000002\n").has_signal());
        assert!(!status("SigPnd:\t0000000000000004\nShdPnd:\t0\nSigBlk:\t0000000000000006\n").has_signal());
        assert_eq!(status("Name:\tx\nGroups:\t4 20 1000 \n").groups(), [4, 20, 1000]);
    }
}
