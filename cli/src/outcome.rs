//! How a mount ended, told to whoever unmounts it.
//!
//! A process cannot learn the exit status of one that it has not started, and an image that could not be closed must not look
//! safe. So the supervisor of a mount listens on a socket in the abstract namespace, named after its process; `ivers unmount`
//! connects before it detaches the mount and reads the outcome when the process has ended. Whoever connects can only wait.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::failure;

/// What is said if all went well.
const CLOSED: &str = "closed\n";
/// More than this many do not wait for one mount.
const MOST_WAITING: usize = 64;

fn address(pid: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ivers-mount-{pid}"))
}

/// The supervisor's end.
pub struct Outcome {
    waiting: Arc<Mutex<Vec<UnixStream>>>,
    listener: UnixListener,
}

impl Outcome {
    /// Listen from now on.
    pub fn listen() -> std::io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
        let waiting = Arc::new(Mutex::new(Vec::new()));
        let (theirs, accepting) = (waiting.clone(), listener.try_clone()?);
        std::thread::Builder::new().name("ivers-outcome".into()).spawn(move || {
            for stream in accepting.incoming().map_while(Result::ok) {
                keep(&theirs, stream);
            }
        })?;
        Ok(Self { waiting, listener })
    }

    /// Tell everybody who waits.
    pub fn tell(&self, result: &Result<()>) {
        // Who has connected and was not accepted yet waits too.
        if self.listener.set_nonblocking(true).is_ok() {
            while let Ok((stream, _)) = self.listener.accept() {
                keep(&self.waiting, stream);
            }
        }
        let text = match result {
            Ok(()) => CLOSED.to_owned(),
            Err(error) => format!("{} {}\n", failure::code(error), failure::line(error)),
        };
        for mut stream in self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // One line fits the socket's buffer; who is gone needs no answer.
            let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
            let _ = stream.write_all(text.as_bytes());
        }
    }
}

fn keep(waiting: &Mutex<Vec<UnixStream>>, stream: UnixStream) {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if waiting.len() < MOST_WAITING {
        waiting.push(stream);
    }
}

/// The end of who unmounts.
pub struct Ending(UnixStream);

/// Wait for the outcome of the mount that process `pid` supervises. `None`: it cannot be asked (another network namespace).
pub fn ask(pid: i32) -> Option<Ending> {
    let stream = UnixStream::connect_addr(&address(u32::try_from(pid).ok()?).ok()?).ok()?;
    // Anybody may take a name; only that process may answer.
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    (peer.pid.as_raw_nonzero().get() == pid).then_some(Ending(stream))
}

impl Ending {
    /// Once the process has ended: what went wrong, if anything did, and the exit code for it.
    pub fn complaint(mut self) -> Option<(u8, String)> {
        let mut text = String::new();
        let _ = self.0.read_to_string(&mut text);
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
