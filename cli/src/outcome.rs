//! How a mount ends, told to whoever unmounts it or wants its image next.
//!
//! A process cannot learn the exit status of one that it has not started, and an image that could not be closed must not look
//! safe. So the supervisor of a mount listens on a socket in the abstract namespace, named after its process; `ivers unmount`
//! connects before it detaches the mount and reads the outcome when the process has ended. umount(8) returns as soon as the kernel
//! has let go of the mount: who opens the image then learns here that it is being closed. Whoever connects can only wait.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::failure;

/// What is said when nobody can use the mount any more, a line before the outcome.
const CLOSING: &str = "closing\n";
/// What is said if all went well.
const CLOSED: &str = "closed\n";
/// More strangers than this do not wait for one mount.
const MOST_WAITING: usize = 64;
/// Who has connected before is among so many, however fast others come: a backlog is not longer.
const MOST_PENDING: usize = 8192;

fn name(pid: u32) -> String {
    format!("ivers-mount-{pid}")
}

/// The supervisor's end.
pub struct Outcome {
    asking: Arc<Mutex<Asking>>,
    listener: UnixListener,
}

#[derive(Default)]
struct Asking {
    waiting: Vec<UnixStream>,
    closing: bool,
    /// What there was to tell, for those who come late.
    told: Option<String>,
}

impl Outcome {
    /// Listen from now on.
    pub fn listen() -> std::io::Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(std::process::id()))?)?;
        listener.set_nonblocking(true)?;
        let asking = Arc::new(Mutex::new(Asking::default()));
        let (theirs, accepting) = (asking.clone(), listener.try_clone()?);
        std::thread::Builder::new().name("ivers-outcome".into()).spawn(move || {
            loop {
                let mut wanted = [PollFd::new(&accepting, PollFlags::IN)];
                if let Err(error) = rustix::io::retry_on_intr(|| rustix::event::poll(&mut wanted, None)) {
                    log::debug!("nobody will be told how the mount ended: {error}");
                    break;
                }
                if let Err(error) = lock(&theirs).take_in(&accepting) {
                    log::debug!("one who waits for the end of the mount: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        })?;
        Ok(Self { asking, listener })
    }

    /// Tell everybody who waits that the image is being closed.
    pub fn closing(&self) {
        let mut asking = lock(&self.asking);
        asking.closing = true;
        for stream in &mut asking.waiting {
            say(stream, CLOSING);
        }
    }

    /// Tell everybody who waits how it ended.
    pub fn tell(&self, result: &Result<()>) {
        let text = match result {
            Ok(()) => CLOSED.to_owned(),
            Err(error) => format!("{} {}\n", failure::code(error), failure::line(error)),
        };
        let mut asking = lock(&self.asking);
        asking.told = Some(text);
        // Who has connected and was not accepted yet waits too.
        let _ = asking.take_in(&self.listener);
        asking.answer();
    }
}

impl Asking {
    /// Take in those who have connected. All under one lock: nobody may be accepted and in no list when the list is told.
    fn take_in(&mut self, listener: &UnixListener) -> std::io::Result<()> {
        for _ in 0..MOST_PENDING {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            // A name in the abstract namespace is everybody's: others must not crowd out those who may unmount.
            let is_mine = rustix::net::sockopt::socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
            if is_mine || self.waiting.len() < MOST_WAITING {
                if self.closing {
                    say(&mut stream, CLOSING);
                }
                self.waiting.push(stream);
            }
        }
        self.answer();
        Ok(())
    }

    fn answer(&mut self) {
        let Some(text) = &self.told else { return };
        for mut stream in self.waiting.drain(..) {
            say(&mut stream, text);
        }
    }
}

/// Two lines fit the socket's buffer; who is gone needs no answer.
fn say(stream: &mut UnixStream, line: &str) {
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(line.as_bytes());
}

fn lock(asking: &Mutex<Asking>) -> MutexGuard<'_, Asking> {
    asking.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of who waits.
pub struct Ending(UnixStream);

/// Wait for the outcome of the mount that process `pid` supervises. `None`: it cannot be asked (another network namespace).
pub fn ask(pid: i32) -> Option<Ending> {
    let stream = connect(u32::try_from(pid).ok()?)?;
    // Anybody may take a name; only that process may answer.
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    (peer.pid.as_raw_nonzero().get() == pid).then_some(Ending(stream))
}

/// Never waits: whoever took the name may accept nobody.
fn connect(pid: u32) -> Option<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let name = SocketAddrUnix::new_abstract_name(name(pid).as_bytes()).ok()?;
    rustix::net::connect(&socket, &name).ok()?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).ok()?;
    Some(stream)
}

impl Ending {
    /// Whether the mount is gone, or is so within this time, so that waiting for the outcome has an end.
    pub fn is_near(&self, within: Duration) -> bool {
        let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
        let within = rustix::event::Timespec::try_from(within).ok();
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut wanted, within.as_ref()))
            .is_ok_and(|ready| ready > 0)
    }

    /// Wait no longer than this for each thing that is said.
    pub fn patient_for(self, limit: Duration) -> Self {
        let _ = self.0.set_read_timeout(Some(limit));
        self
    }

    /// Once the process has ended: what went wrong, if anything did, and the exit code for it.
    pub fn complaint(mut self) -> Option<(u8, String)> {
        let mut text = String::new();
        let _ = self.0.read_to_string(&mut text);
        let text = text.strip_prefix(CLOSING).unwrap_or(&text);
        if text == CLOSED {
            return None;
        }
        let said = text.trim_end().split_once(' ');
        let told = said.and_then(|(code, line)| Some((code.parse().ok()?, line.to_owned())));
        Some(told.unwrap_or_else(|| {
            (failure::FAILED, "the process that served it ended without a word".to_owned())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn strangers_keep_nobody_from_the_outcome() {
        let (me, squatted) = (std::process::id(), u32::MAX >> 1);
        let outcome = Outcome::listen().unwrap();
        let mut asking: Vec<_> = (0..=MOST_WAITING).map(|_| ask(me as i32).unwrap()).collect();
        assert!(!asking[0].is_near(Duration::from_millis(200)), "it is still served");
        outcome.closing();
        asking.push(ask(me as i32).unwrap());
        assert!(
            asking.iter().all(|ending| ending.is_near(Duration::from_secs(5))),
            "who came before, and who after"
        );
        outcome.tell(&Ok(()));
        assert!(asking.into_iter().all(|ending| ending.complaint().is_none()));
        // However soon after the connection.
        for round in 0..4000 {
            let ending = ask(me as i32).unwrap();
            ending.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let connected = Instant::now();
            while connected.elapsed() < Duration::from_nanos(round * 100) {}
            outcome.tell(&Ok(()));
            assert_eq!(ending.complaint(), None, "round {round}");
        }

        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(name(squatted).as_bytes()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        assert!(ask(squatted as i32).is_none(), "another process answers");
        let waiting: Vec<_> = (0..16).map_while(|_| connect(squatted)).collect();
        assert!(waiting.len() < 16 && ask(squatted as i32).is_none(), "it does not accept");
    }
}
