//! The helper of a server: a process without sandbox that reads the configuration files again and connects to
//! clients of NFSv4.0 for callbacks.
//!
//! It learns the paths before the server reads the first byte of an image, and does not trust any message
//! after that: it opens these files for reading, and connects to the peer of a connection that a client has
//! made. A client that takes over the server gains nothing more through it. The helper ends with the server.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::config_files::{self, Contents};
use crate::image::channel::Channel;
use crate::process::this_program;

/// The hidden subcommand that runs the helper.
pub const SUBCOMMAND: &str = "serve-helper";

/// Time that the server waits for a reply. Only opening a file on a hanging filesystem takes long.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The lowest port for callbacks. Lower ones belong to services, some of which trust connections from such a
/// port.
const CALLBACK_PORT_MIN: u16 = 1024;
/// Bounds of the rate of connections: burst, and connections per second.
const CONNECTIONS: f64 = 32.0;
const CONNECTIONS_PER_SECOND: f64 = 8.0;

/// A message from the server.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// The paths of the configuration files. Sent once, before all others.
    Files(Vec<Vec<u8>>),
    /// Open the files again.
    Open,
    /// Connect to this port of the peer of the connection whose descriptor is attached.
    Connect(u16),
}

/// A message to the server.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// The error of each file that could not be opened. The descriptors of the others are attached.
    Opened(Vec<Option<String>>),
    /// The socket is attached. It is not connected yet.
    Connecting,
    /// Why the connection is refused.
    Refused(String),
}

/// The server's end of the connection to the helper.
pub struct Helper {
    child: Child,
    paths: Vec<PathBuf>,
    /// `None`: a reply timed out. Later replies could belong to the wrong request.
    channel: Mutex<Option<Channel>>,
}

impl Helper {
    /// Starts the helper, which may read `paths`. Call it before the sandbox.
    pub fn start(paths: Vec<PathBuf>) -> Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        channel.set_timeout(REPLY_TIMEOUT)?;
        let child = this_program()?
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the helper process")?;
        let names = paths.iter().map(|path| path.as_os_str().as_bytes().to_vec());
        channel.send(&Request::Files(names.collect()), &[])?;
        Ok(Self { child, paths, channel: Mutex::new(Some(channel)) })
    }

    fn request(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>)> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let open = channel.as_ref().context("the helper process has ended")?;
        let reply = open.send(request, fds).and_then(|()| open.receive());
        match reply {
            Ok(Some(reply)) => Ok(reply),
            other => {
                *channel = None;
                match other {
                    Err(error) => Err(error.context("the helper process does not reply")),
                    _ => bail!("the helper process has ended"),
                }
            }
        }
    }

    /// Reads the files again.
    pub fn read(&self) -> Result<Contents> {
        let (Reply::Opened(failures), fds) = self.request(&Request::Open, &[])? else {
            return Err(protocol_error());
        };
        ensure!(failures.len() == self.paths.len(), protocol_error());
        let mut fds = fds.into_iter();
        let files = self.paths.iter().cloned().zip(failures).map(|(path, failure)| {
            let file = match failure {
                Some(why) => Err(why),
                None => fds
                    .next()
                    .map(File::from)
                    .ok_or_else(|| "the helper process sent no descriptor".to_owned()),
            };
            (path, file)
        });
        Ok(Contents::of_open(files))
    }

    /// Connects to a port of the peer of the connection `client`.
    pub fn connect(&self, to: SocketAddr, client: BorrowedFd<'_>) -> io::Result<TcpStream> {
        match self.request(&Request::Connect(to.port()), &[client]) {
            Ok((Reply::Connecting, fds)) => fds
                .into_iter()
                .next()
                .map(TcpStream::from)
                .ok_or_else(|| io::Error::other("the helper process sent no descriptor")),
            Ok((Reply::Refused(why), _)) => Err(io::Error::other(why)),
            Ok(_) => Err(io::Error::other(protocol_error())),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Closing the channel ends it. The sandbox forbids waiting for it, so init does.
        *self.channel.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.child.try_wait();
    }
}

fn protocol_error() -> anyhow::Error {
    anyhow!("protocol error from the helper process")
}

/// Runs the helper.
pub fn run() -> Result<()> {
    let channel = Channel::inherited()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Signals of a terminal reach the server too. The helper ends after it.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let Some((Request::Files(names), _)) = channel.receive()? else {
        bail!("a helper is started by `ivers serve` only");
    };
    let paths: Vec<PathBuf> =
        names.into_iter().map(|name| std::ffi::OsString::from_vec(name).into()).collect();
    let mut limit = RateLimit { left: CONNECTIONS, at: Instant::now() };
    while let Some((request, fds)) = channel.receive()? {
        match request {
            Request::Files(_) => bail!("the files are set already"),
            Request::Open => {
                let opened: Vec<io::Result<File>> =
                    paths.iter().map(|path| config_files::open(path)).collect();
                let failures = opened.iter().map(|file| file.as_ref().err().map(ToString::to_string));
                let reply = Reply::Opened(failures.collect());
                let files: Vec<BorrowedFd<'_>> = opened.iter().flatten().map(AsFd::as_fd).collect();
                channel.send(&reply, &files)?;
            }
            Request::Connect(port) => match connect(&mut limit, port, fds) {
                Ok(socket) => channel.send(&Reply::Connecting, &[socket.as_fd()])?,
                Err(error) => channel.send(&Reply::Refused(error.to_string()), &[])?,
            },
        }
    }
    Ok(())
}

/// A token bucket that limits connections.
struct RateLimit {
    left: f64,
    at: Instant,
}

impl RateLimit {
    fn admit(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * CONNECTIONS_PER_SECOND).min(CONNECTIONS);
        self.at = now;
        let admitted = self.left >= 1.0;
        if admitted {
            self.left -= 1.0;
        }
        admitted
    }
}

fn connect(limit: &mut RateLimit, port: u16, fds: Vec<OwnedFd>) -> Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let client = TcpStream::from(fds.into_iter().next().context("a request without a descriptor")?);
    let host =
        client.peer_addr().context("the descriptor is not a connection of a client")?.ip().to_canonical();
    ensure!(
        port >= CALLBACK_PORT_MIN,
        "port {port} is refused: ports below {CALLBACK_PORT_MIN} are for services"
    );
    ensure!(limit.admit(Instant::now()), "too many connections were requested");
    let to = SocketAddr::new(host, port);
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn it_connects_only_to_the_peer() {
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        let client = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let limit = || RateLimit { left: CONNECTIONS, at: Instant::now() };
        let connect_back = |limit: &mut RateLimit, port, client: &TcpStream| {
            connect(limit, port, vec![client.try_clone().unwrap().into()])
        };
        // The host of the peer, although another host listens on that port.
        let back = TcpStream::from(connect_back(&mut limit(), port, &client).unwrap());
        assert_eq!(other.accept().unwrap().1.ip(), back.local_addr().unwrap().ip());
        let (again, _) = other.accept().unwrap();
        assert_eq!(again.peer_addr().unwrap(), back.local_addr().unwrap());
        for wrong in [0, 22, 1023] {
            assert!(
                connect_back(&mut limit(), wrong, &client).unwrap_err().to_string().contains("for services")
            );
        }
        assert!(connect(&mut limit(), port, vec![]).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(connect(&mut limit(), port, vec![file.into()]).is_err());
        let mut spent = RateLimit { left: 0.5, at: Instant::now() };
        assert!(connect_back(&mut spent, port, &client).unwrap_err().to_string().contains("too many"));
    }

    #[test]
    fn connections_are_limited() {
        let begin = Instant::now();
        let mut limit = RateLimit { left: CONNECTIONS, at: begin };
        assert_eq!((0..100).filter(|_| limit.admit(begin)).count(), CONNECTIONS as usize);
        let later = begin + Duration::from_secs(1);
        assert_eq!((0..100).filter(|_| limit.admit(later)).count(), CONNECTIONS_PER_SECOND as usize);
    }
}
