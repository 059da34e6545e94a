//! What two processes of this program say to each other: JSON over a socket that keeps messages apart, with descriptors beside it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::measure::mounted::Orders;

/// From the supervisor to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Measure what will be opened in the mount; the list and other files come along.
    Measure(Orders),
    /// Open what is in the image, whose descriptor comes along.
    Open {
        /// It can only be read, whatever the options say.
        read_only: bool,
    },
    /// Serve: the device and the sockets of `ivers_fuse::Connection` come along.
    Serve {
        /// The other part of the connection.
        thread_ids: Vec<u32>,
        /// The supervisor.
        pid: u32,
    },
}

/// From the worker to the supervisor, who believes none of it more than he must.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The filesystem is open.
    Opened {
        /// Why it cannot be written, if it cannot.
        read_only: Option<String>,
    },
    /// Requests are being answered.
    Serving,
    /// Nobody can ask any more: the mount is gone, and the image is being closed.
    Ended,
    /// The image is closed and safe.
    Closed,
    /// It did not work, and how this program ends then.
    Failed {
        /// The exit code.
        code: u8,
        /// What is said.
        line: String,
    },
}

/// No honest message is longer: two paths of PATH_MAX, of which JSON makes up to six times as much.
const MESSAGE_MAX: usize = 64 << 10;
/// Nor does one bring more descriptors.
const DESCRIPTORS_MAX: usize = 32;

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Two ends.
    pub fn pair() -> Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), theirs))
    }

    /// Wait for no answer longer than this.
    pub fn wait_at_most(&self, time: std::time::Duration) -> Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        Ok(set_socket_timeout(&self.0, Timeout::Recv, Some(time))?)
    }

    /// The end that this process was started with.
    pub fn inherited() -> Result<Self> {
        Ok(Self(std::io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// Send a message and descriptors.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        anyhow::ensure!(text.len() <= MESSAGE_MAX, "a path is too long to be told another process");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            anyhow::bail!("{} descriptors are too many for one message", fds.len());
        }
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)
        })
        .map(drop)
        .context("the other process is gone")
    }

    /// Say that nothing more will be said.
    pub fn finish(&self) -> Result<()> {
        Ok(rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write)?)
    }

    /// The next message and what came with it. `None`: the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut text = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut text)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        let length = match received {
            Ok(received) if received.bytes > 0 => received.bytes,
            Ok(_) | Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        Ok(Some((serde_json::from_slice(&text[..length])?, fds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_apart_and_bring_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel(theirs);
        let file = tempfile::tempfile().unwrap();
        ours.send(&Order::Open { read_only: false }, &[file.as_fd()]).unwrap();
        ours.send(&Order::Serve { thread_ids: vec![7], pid: 1 }, &[]).unwrap();
        let (first, fds) = theirs.receive::<Order>().unwrap().unwrap();
        assert!(matches!(first, Order::Open { read_only: false }) && fds.len() == 1, "{first:?}");
        let (second, fds) = theirs.receive::<Order>().unwrap().unwrap();
        assert!(matches!(second, Order::Serve { pid: 1, .. }) && fds.is_empty(), "{second:?}");
        let long = |len| Report::Failed { code: 1, line: "x".repeat(len) };
        ours.send(&long(48 << 10), &[]).unwrap();
        assert!(
            matches!(theirs.receive().unwrap(), Some((Report::Failed { line, .. }, _)) if line.len() == 48 << 10)
        );
        assert!(ours.send(&long(MESSAGE_MAX), &[]).unwrap_err().to_string().contains("too long"));
        rustix::net::send(&theirs.0, b"no JSON", SendFlags::empty()).unwrap();
        assert!(ours.receive::<Report>().is_err());
        drop(theirs);
        assert!(ours.receive::<Report>().unwrap().is_none());
        assert!(ours.send(&Order::Open { read_only: false }, &[]).is_err());
    }
}
