//! Messages between processes of this program: JSON and file descriptors over a socket that preserves message
//! boundaries.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Serialize, de::DeserializeOwned};

/// Longest message in bytes: two paths of PATH_MAX, each byte of which JSON can encode in six.
const MESSAGE_MAX: usize = 64 << 10;
/// Most descriptors in a message.
const DESCRIPTORS_MAX: usize = 32;

/// One end of the connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends; the second is for another process.
    pub fn pair() -> Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), theirs))
    }

    /// Limits the time that [`Channel::receive`] waits.
    pub fn set_timeout(&self, time: std::time::Duration) -> Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        Ok(set_socket_timeout(&self.0, Timeout::Recv, Some(time))?)
    }

    /// Returns the end that this process inherited as standard input.
    pub fn inherited() -> Result<Self> {
        Ok(Self(std::io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// Uses an end that another process sent.
    pub fn adopt(end: OwnedFd) -> Self {
        Self(end)
    }

    /// Sends a message and descriptors.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        anyhow::ensure!(
            text.len() <= MESSAGE_MAX,
            "the message to another process is too long: {} bytes",
            text.len()
        );
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            anyhow::bail!("cannot send {} descriptors in one message", fds.len());
        }
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)
        })
        .map(drop)
        .context("the other process has ended")
    }

    /// Returns another descriptor of this end.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        Ok(self.0.try_clone()?)
    }

    /// Returns whether the other end has ended its messages, or is gone, without waiting.
    pub fn is_finished(&self) -> bool {
        let mut ready = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let polled = rustix::event::poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok_and(|ready| ready > 0)
    }

    /// Ends the messages from this side.
    pub fn finish(&self) -> Result<()> {
        Ok(rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write)?)
    }

    /// Receives the next message and its descriptors. `None` if the other end is closed.
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
    fn messages_keep_their_boundaries_and_carry_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel(theirs);
        let file = tempfile::tempfile().unwrap();
        ours.send(&"first", &[file.as_fd()]).unwrap();
        ours.send(&"second", &[]).unwrap();
        let (first, fds) = theirs.receive::<String>().unwrap().unwrap();
        assert_eq!((first.as_str(), fds.len()), ("first", 1));
        let (second, fds) = theirs.receive::<String>().unwrap().unwrap();
        assert_eq!((second.as_str(), fds.len()), ("second", 0));
        let long = "x".repeat(48 << 10);
        ours.send(&long, &[]).unwrap();
        assert_eq!(theirs.receive::<String>().unwrap().unwrap().0, long);
        let too_long = ours.send(&"x".repeat(MESSAGE_MAX), &[]).unwrap_err();
        assert!(too_long.to_string().contains("too long"), "{too_long}");
        rustix::net::send(&theirs.0, b"no JSON", SendFlags::empty()).unwrap();
        assert!(ours.receive::<String>().is_err());
        assert!(!ours.is_finished());
        theirs.finish().unwrap();
        assert!(ours.is_finished());
        drop(theirs);
        assert!(ours.receive::<String>().unwrap().is_none());
        assert!(ours.send(&"first", &[]).is_err());
    }
}
