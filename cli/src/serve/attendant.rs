//! A process outside the sandbox, for what a server that is locked in cannot do: read its few files again, and connect to clients of NFSv4.0 who want to be called.
//!
//! It knows what it may do before the server reads the first byte of an image, and believes nothing that it is told afterwards: it opens the files that were named then,
//! for reading, and connects to the host at the other end of a connection that it is shown, which a client has made. Whoever takes the server over gets no more by it.
//!
//! It ends with the server.

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

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::given::{self, Contents};
use crate::channel::Channel;
use crate::daemon;

/// So long the server waits for an answer. Nothing that is asked takes long, but for a file on a filesystem that hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// Below are the ports of services that trust whoever comes from such a port.
const FIRST_PORT: u16 = 1024;
/// So many connections at once, and so many a second.
const CONNECTIONS: f64 = 32.0;
const CONNECTIONS_A_SECOND: f64 = 8.0;

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Before anything else: the files, by their paths.
    Files(Vec<Vec<u8>>),
    /// Open them once more.
    Open,
    /// Connect to this port of the host at the other end of the connection that comes along.
    Connect(u16),
}

/// To the server.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Why a file is not open, in their order; the others come along.
    Opened(Vec<Option<String>>),
    /// It comes along, on its way.
    Connecting,
    /// Not that.
    Refused(String),
}

/// The server's end.
pub struct Attendant {
    child: Child,
    paths: Vec<PathBuf>,
    /// None: it did not answer, and what it says now would be the answer to something else.
    channel: Mutex<Option<Channel>>,
}

impl Attendant {
    /// Start it, before anything is given up. It may read these.
    pub fn start(paths: Vec<PathBuf>) -> Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        channel.wait_at_most(PATIENCE)?;
        let child = daemon::this_program()?
            .arg("attendant")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the process outside the sandbox")?;
        let names = paths.iter().map(|path| path.as_os_str().as_bytes().to_vec());
        channel.send(&Order::Files(names.collect()), &[])?;
        Ok(Self { child, paths, channel: Mutex::new(Some(channel)) })
    }

    fn ask(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>)> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let open = channel.as_ref().context("the process outside the sandbox has ended")?;
        let answer = open.send(order, fds).and_then(|()| open.receive());
        match answer {
            Ok(Some(answer)) => Ok(answer),
            other => {
                *channel = None;
                match other {
                    Err(error) => Err(error.context("the process outside the sandbox does not answer")),
                    _ => bail!("the process outside the sandbox has ended"),
                }
            }
        }
    }

    /// What the files hold now.
    pub fn read(&self) -> Result<Contents> {
        let (Answer::Opened(failures), fds) = self.ask(&Order::Open, &[])? else {
            bail!("it talks nonsense")
        };
        ensure!(failures.len() == self.paths.len(), "it talks nonsense");
        let mut fds = fds.into_iter();
        let files = self.paths.iter().cloned().zip(failures).map(|(path, failure)| {
            let file = match failure {
                Some(why) => Err(why),
                None => fds.next().map(File::from).ok_or_else(|| "it did not come along".to_owned()),
            };
            (path, file)
        });
        Ok(Contents::of(files))
    }

    /// A connection to this port of the host that has made `client`.
    pub fn connect(&self, to: SocketAddr, client: BorrowedFd<'_>) -> io::Result<TcpStream> {
        match self.ask(&Order::Connect(to.port()), &[client]) {
            Ok((Answer::Connecting, fds)) => fds
                .into_iter()
                .next()
                .map(TcpStream::from)
                .ok_or_else(|| io::Error::other("the connection did not come along")),
            Ok((Answer::Refused(why), _)) => Err(io::Error::other(why)),
            Ok(_) => Err(io::Error::other("the process outside the sandbox talks nonsense")),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        // It ends with the channel. In the sandbox nobody waits for it: it is the system's then.
        *self.channel.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.child.try_wait();
    }
}

/// The process itself.
pub fn attend() -> Result<()> {
    let channel = Channel::inherited()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Those of a terminal reach the server too; this ends behind it.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let Some((Order::Files(names), _)) = channel.receive()? else {
        bail!("an attendant is started by a server only");
    };
    let paths: Vec<PathBuf> =
        names.into_iter().map(|name| std::ffi::OsString::from_vec(name).into()).collect();
    let mut pace = Pace { left: CONNECTIONS, at: Instant::now() };
    while let Some((order, fds)) = channel.receive()? {
        match order {
            Order::Files(_) => bail!("it was told what it may read"),
            Order::Open => {
                let opened: Vec<io::Result<File>> = paths.iter().map(|path| given::open(path)).collect();
                let failures = opened.iter().map(|file| file.as_ref().err().map(ToString::to_string));
                let answer = Answer::Opened(failures.collect());
                let files: Vec<BorrowedFd<'_>> = opened.iter().flatten().map(AsFd::as_fd).collect();
                channel.send(&answer, &files)?;
            }
            Order::Connect(port) => match connect(&mut pace, port, fds) {
                Ok(socket) => channel.send(&Answer::Connecting, &[socket.as_fd()])?,
                Err(error) => channel.send(&Answer::Refused(error.to_string()), &[])?,
            },
        }
    }
    Ok(())
}

/// How often it may connect.
struct Pace {
    left: f64,
    at: Instant,
}

impl Pace {
    fn admit(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * CONNECTIONS_A_SECOND).min(CONNECTIONS);
        self.at = now;
        let admitted = self.left >= 1.0;
        if admitted {
            self.left -= 1.0;
        }
        admitted
    }
}

fn connect(pace: &mut Pace, port: u16, fds: Vec<OwnedFd>) -> Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let client = TcpStream::from(fds.into_iter().next().context("no connection came along")?);
    let host = client.peer_addr().context("that is no connection of a client")?.ip().to_canonical();
    ensure!(port >= FIRST_PORT, "nobody is called at port {port}: those below {FIRST_PORT} are for services");
    ensure!(pace.admit(Instant::now()), "too many connections were asked for");
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
    fn it_connects_back_and_nowhere_else() {
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        let client = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let pace = || Pace { left: CONNECTIONS, at: Instant::now() };
        let ask = |pace: &mut Pace, port, client: &TcpStream| {
            connect(pace, port, vec![client.try_clone().unwrap().into()])
        };
        // The host of the other end, whatever else listens on that port.
        let back = TcpStream::from(ask(&mut pace(), port, &client).unwrap());
        assert_eq!(other.accept().unwrap().1.ip(), back.local_addr().unwrap().ip());
        let (again, _) = other.accept().unwrap();
        assert_eq!(again.peer_addr().unwrap(), back.local_addr().unwrap());
        for wrong in [0, 22, 1023] {
            assert!(ask(&mut pace(), wrong, &client).unwrap_err().to_string().contains("for services"));
        }
        assert!(connect(&mut pace(), port, vec![]).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(connect(&mut pace(), port, vec![file.into()]).is_err());
        let mut spent = Pace { left: 0.5, at: Instant::now() };
        assert!(ask(&mut spent, port, &client).unwrap_err().to_string().contains("too many"));
    }

    #[test]
    fn connections_are_paced() {
        let begin = Instant::now();
        let mut pace = Pace { left: CONNECTIONS, at: begin };
        assert_eq!((0..100).filter(|_| pace.admit(begin)).count(), CONNECTIONS as usize);
        let later = begin + Duration::from_secs(1);
        assert_eq!((0..100).filter(|_| pace.admit(later)).count(), CONNECTIONS_A_SECOND as usize);
    }
}
