//! How a mount ended, for the process that unmounts it or opens its image next.
//!
//! A process cannot learn the exit status of a process that it did not start, and an image that failed to
//! close must not look safe. So the supervisor of a mount listens on a socket in the abstract namespace,
//! named after its process ID. `ivers unmount` connects before it detaches the mount, and reads the status
//! when the image is closed. umount(8) does not wait: the next process that opens the image connects here and
//! waits. A client of the socket can do nothing but wait.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::output::{failure, format};

/// Sent once the mount is gone and the image is being closed; the status follows.
const CLOSING: &str = "closing\n";
/// The status of an image that was closed without error.
const CLOSED: &str = "closed\n";
/// Begins the status of an image that was closed without error, but lacks data that programs wrote.
const LOST: &str = "lost ";
/// Files that the status names.
const NAMED_MAX: usize = 5;
/// Most waiting clients of other users.
const OTHER_CLIENTS_MAX: usize = 64;
/// Longest backlog of a socket: a client that has connected is among so many, however fast others connect.
const BACKLOG_MAX: usize = 8192;

fn socket_name(pid: u32) -> String {
    format!("ivers-mount-{pid}")
}

/// Files lack data that programs wrote, although the image was closed without error.
#[derive(Debug)]
pub struct LostData {
    files: u64,
    /// The names of the first files, escaped for output.
    names: Vec<String>,
}

impl LostData {
    /// Describes `files` files. `names` has the names of the first ones.
    pub fn of(files: u64, names: &[String]) -> Self {
        let names = names.iter().take(NAMED_MAX).map(|name| format::name(name.as_bytes())).collect();
        Self { files, names }
    }
}

impl std::fmt::Display for LostData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lack = if self.files == 1 { "file lacks" } else { "files lack" };
        write!(f, "{} {lack} data that programs wrote: it could not be stored", self.files)?;
        if !self.names.is_empty() {
            write!(f, ": {}", self.names.join(", "))?;
        }
        if self.files > self.names.len() as u64 {
            write!(f, "; the log of the mount names more of them")?;
        }
        Ok(())
    }
}

impl std::error::Error for LostData {}

/// The supervisor's end.
pub struct StatusServer {
    clients: Arc<Mutex<Clients>>,
    listener: UnixListener,
}

#[derive(Default)]
struct Clients {
    waiting: Vec<UnixStream>,
    closing: bool,
    /// The status, for clients that connect later.
    status: Option<String>,
}

impl StatusServer {
    /// Starts to listen.
    pub fn listen() -> std::io::Result<Self> {
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(socket_name(std::process::id()))?)?;
        listener.set_nonblocking(true)?;
        let clients = Arc::new(Mutex::new(Clients::default()));
        let (shared, accepting) = (clients.clone(), listener.try_clone()?);
        std::thread::Builder::new().name("ivers-status".into()).spawn(move || {
            loop {
                let mut ready = [PollFd::new(&accepting, PollFlags::IN)];
                if let Err(error) = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, None)) {
                    log::debug!("cannot report how the mount ends: {error}");
                    break;
                }
                if let Err(error) = lock(&shared).accept_all(&accepting) {
                    log::debug!("cannot accept a client that waits for the end of the mount: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        })?;
        Ok(Self { clients, listener })
    }

    /// Tells all clients that the image is being closed.
    pub fn closing(&self) {
        let mut clients = lock(&self.clients);
        clients.closing = true;
        for stream in &mut clients.waiting {
            send(stream, CLOSING);
        }
    }

    /// Tells all clients how the mount ended.
    pub fn finish(&self, result: &Result<()>) {
        let text = match result {
            Ok(()) => CLOSED.to_owned(),
            Err(error) if error.is::<LostData>() => format!("{LOST}{error}\n"),
            Err(error) => format!("{} {}\n", failure::code(error), failure::line(error)),
        };
        let mut clients = lock(&self.clients);
        clients.status = Some(text);
        // Includes clients that have connected and are not accepted yet.
        let _ = clients.accept_all(&self.listener);
        clients.send_status();
    }
}

impl Clients {
    /// Accepts the clients that have connected. The lock is held throughout, so that no client is accepted
    /// and missing in the list when the status is sent.
    fn accept_all(&mut self, listener: &UnixListener) -> std::io::Result<()> {
        for _ in 0..BACKLOG_MAX {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            // Any user can connect. Other users must not crowd out those that may unmount.
            let is_mine = rustix::net::sockopt::socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
            if is_mine || self.waiting.len() < OTHER_CLIENTS_MAX {
                if self.closing {
                    send(&mut stream, CLOSING);
                }
                self.waiting.push(stream);
            }
        }
        self.send_status();
        Ok(())
    }

    fn send_status(&mut self) {
        let Some(text) = &self.status else { return };
        for mut stream in self.waiting.drain(..) {
            send(&mut stream, text);
        }
    }
}

/// Sends a line. Two lines fit into the buffer of the socket, and errors are ignored: the client is gone.
fn send(stream: &mut UnixStream, line: &str) {
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(line.as_bytes());
}

fn lock(clients: &Mutex<Clients>) -> MutexGuard<'_, Clients> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection to the supervisor of a mount.
pub struct UnmountStatus(UnixStream);

/// Connects to the supervisor with process ID `pid`. `None` if that is impossible, e.g. from another network
/// namespace.
pub fn connect(pid: i32) -> Option<UnmountStatus> {
    let stream = connect_socket(u32::try_from(pid).ok()?)?;
    // Any process can bind the name, so the peer is checked.
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    (peer.pid.as_raw_nonzero().get() == pid).then_some(UnmountStatus(stream))
}

/// Does not block: another process can have bound the name and accept no connection.
/// Returns a connection to the supervisor of a mount that was on `dir`, is detached, and has not closed its
/// image yet.
pub fn that_left(dir: &Path) -> Option<UnmountStatus> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find_map(|pid: i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<_> = words.strip_suffix(b"\0")?.split(|&byte| byte == 0).collect();
        // The supervisor has the mount point last.
        let is_it = words.contains(&&b"mount"[..]) && words.last() == Some(&dir.as_os_str().as_bytes());
        is_it.then(|| connect(pid)).flatten().filter(|status| status.is_closing(Duration::from_secs(1)))
    })
}

fn connect_socket(pid: u32) -> Option<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let name = SocketAddrUnix::new_abstract_name(socket_name(pid).as_bytes()).ok()?;
    rustix::net::connect(&socket, &name).ok()?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).ok()?;
    Some(stream)
}

impl UnmountStatus {
    /// Returns whether the mount is gone, or ends within this time. If so, waiting for the status terminates.
    pub fn is_closing(&self, within: Duration) -> bool {
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        let within = rustix::event::Timespec::try_from(within).ok();
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, within.as_ref()))
            .is_ok_and(|ready| ready > 0)
    }

    /// Limits the time to wait for each line.
    pub fn with_timeout(self, limit: Duration) -> Self {
        let _ = self.0.set_read_timeout(Some(limit));
        self
    }

    /// Waits until the image is closed. Returns the exit code and the error if that failed, or if data is
    /// missing.
    pub fn wait(mut self) -> Option<(u8, String)> {
        let mut text = String::new();
        let _ = self.0.read_to_string(&mut text);
        let text = text.strip_prefix(CLOSING).unwrap_or(&text);
        if text == CLOSED {
            return None;
        }
        let text = text.trim_end();
        if let Some(why) = text.strip_prefix(LOST) {
            return Some((failure::FAILED, format!("the image is closed, but {why}")));
        }
        let status = text.split_once(' ').and_then(|(code, line)| {
            Some((code.parse().ok()?, format!("the image was not closed without error: {line}")))
        });
        Some(status.unwrap_or_else(|| {
            (failure::FAILED, {
                let why = "the process that served the mount ended without a status";
                format!("the image was not closed without error: {why}")
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn other_clients_cannot_hide_the_status() {
        let (me, other) = (std::process::id(), u32::MAX >> 1);
        let server = StatusServer::listen().unwrap();
        let mut clients: Vec<_> = (0..=OTHER_CLIENTS_MAX).map(|_| connect(me as i32).unwrap()).collect();
        assert!(!clients[0].is_closing(Duration::from_millis(200)), "the mount still serves");
        server.closing();
        clients.push(connect(me as i32).unwrap());
        assert!(
            clients.iter().all(|status| status.is_closing(Duration::from_secs(5))),
            "clients that connected before and after"
        );
        server.finish(&Ok(()));
        assert!(clients.into_iter().all(|status| status.wait().is_none()));
        // Also immediately after the connection.
        for round in 0..4000 {
            let status = connect(me as i32).unwrap();
            status.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let connected = Instant::now();
            while connected.elapsed() < Duration::from_nanos(round * 100) {}
            server.finish(&Ok(()));
            assert_eq!(status.wait(), None, "round {round}");
        }

        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(socket_name(other).as_bytes()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        assert!(connect(other as i32).is_none(), "another process has bound the name");
        let waiting: Vec<_> = (0..16).map_while(|_| connect_socket(other)).collect();
        assert!(waiting.len() < 16 && connect(other as i32).is_none(), "that process accepts no connection");
    }
}
