//! What a copy is made of on its way from the process that reads to the one that writes: messages in JSON, each behind its length, and raw
//! bytes of files between them.
//!
//! ```text
//! stream  source* Finish
//! source  Source (entry | Link | Problem)*
//! entry   Item (Xattr | Data bytes | entry | Link | Problem)* End
//! ```
//!
//! One of the two may be in the hands of a hostile image, so neither believes the other: lengths are bounded here, names and order are
//! checked where they are used.

use std::io::{BufReader, BufWriter, Read, Write};

use anyhow::{Context, Result, bail};
use ivers_vfs::{FileType, Timestamp};
use serde::{Deserialize, Serialize};

/// Bytes that travel in one piece.
pub const PIECE_MAX: usize = 256 << 10;
/// No honest message is longer: an attribute has at most 64 KiB, and JSON makes four of each byte.
const MESSAGE_MAX: u32 = 1 << 20;

/// The stream ended in the middle: whoever wrote it is gone.
#[derive(Debug)]
pub struct BrokeOff;

impl std::fmt::Display for BrokeOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the copy broke off")
    }
}

impl std::error::Error for BrokeOff {}

/// Which file of a filesystem: device and inode number.
pub type Number = (u64, u64);

/// A file as it is copied, without contents and extended attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its name in its directory; of no meaning for what the command line names.
    pub name: Vec<u8>,
    /// Which file it is.
    pub number: Number,
    /// It has other names too, which may follow as [`Message::Link`].
    pub has_twins: bool,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device node.
    pub rdev: u32,
    /// Access time, seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Modification time.
    pub mtime: (i64, u32),
    /// Of a symbolic link.
    pub target: Vec<u8>,
}

impl Item {
    /// What it is.
    pub fn kind(&self) -> Result<FileType> {
        FileType::from_mode(self.mode).context("a file of no known type")
    }

    /// Its permission bits.
    pub fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// A time in a message.
pub fn packed(time: Timestamp) -> (i64, u32) {
    (time.sec, time.nsec)
}

/// A time out of a message.
pub fn unpacked((sec, nsec): (i64, u32)) -> Timestamp {
    Timestamp { sec, nsec: nsec.min(999_999_999) }
}

/// One step of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// What follows belongs to this word of the command line.
    Source {
        /// Numbers of files mean something within one origin.
        origin: u32,
        /// The word.
        shown: String,
        /// The name to copy under; none for a directory whose contents are meant.
        name: Option<Vec<u8>>,
    },
    /// A file begins, or a directory.
    Item(Item),
    /// Another name of a file that has been there already.
    Link {
        /// The name.
        name: Vec<u8>,
        /// The file.
        number: Number,
    },
    /// An extended attribute of what was begun last.
    Xattr(Vec<u8>, Vec<u8>),
    /// Contents; so many bytes follow the message.
    Data {
        /// Where in the file.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// What was begun last is complete.
    End {
        /// Of a regular file.
        size: u64,
    },
    /// Something cannot be read.
    Problem {
        /// Which file, below the word of the command line.
        path: String,
        /// The exit code that it deserves.
        code: u8,
        /// Why.
        line: String,
    },
    /// There is nothing more.
    Finish,
}

/// The writing end.
pub struct Sender<W: Write>(BufWriter<W>);

impl<W: Write> Sender<W> {
    /// Into a pipe, say.
    pub fn new(out: W) -> Self {
        Self(BufWriter::with_capacity(PIECE_MAX, out))
    }

    /// Send a message that no bytes follow.
    pub fn send(&mut self, message: &Message) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        let len = u32::try_from(text.len()).ok().filter(|&len| len <= MESSAGE_MAX);
        let len = len.context("a message of the copy is too long")?;
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(&text)?;
        Ok(())
    }

    /// Send contents.
    pub fn data(&mut self, mut offset: u64, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(PIECE_MAX) {
            self.send(&Message::Data { offset, len: piece.len() as u32 })?;
            self.0.write_all(piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Nothing is held back any more.
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

/// The reading end.
pub struct Receiver<R: Read> {
    from: BufReader<R>,
    buffer: Vec<u8>,
}

impl<R: Read> Receiver<R> {
    /// From a pipe, say.
    pub fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(PIECE_MAX, from), buffer: Vec::new() }
    }

    fn fill(&mut self, len: usize) -> Result<()> {
        self.buffer.resize(len, 0);
        self.from.read_exact(&mut self.buffer).map_err(broken)
    }

    /// The next message.
    pub fn next(&mut self) -> Result<Message> {
        let mut len = [0; 4];
        self.from.read_exact(&mut len).map_err(broken)?;
        let len = u32::from_le_bytes(len);
        if len > MESSAGE_MAX {
            bail!("the process that reads talks nonsense: a message of {len} bytes");
        }
        self.fill(len as usize)?;
        serde_json::from_slice(&self.buffer).context("the process that reads talks nonsense")
    }

    /// The bytes behind [`Message::Data`].
    pub fn bytes(&mut self, len: u32) -> Result<&[u8]> {
        if len as usize > PIECE_MAX {
            bail!("the process that reads talks nonsense: a piece of {len} bytes");
        }
        self.fill(len as usize)?;
        Ok(&self.buffer)
    }
}

fn broken(error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof { BrokeOff.into() } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_and_nonsense_is_refused() {
        let mut wire = Vec::new();
        let mut out = Sender::new(&mut wire);
        let name = b"a\xff".to_vec();
        out.send(&Message::Link { name: name.clone(), number: (1, u64::MAX) }).unwrap();
        out.send(&Message::Xattr(name.clone(), vec![255; 64 << 10])).unwrap();
        out.data(1 << 40, &vec![7; PIECE_MAX + 1]).unwrap();
        assert!(out.send(&Message::Xattr(name.clone(), vec![255; 1 << 20])).is_err());
        drop(out);
        let mut back = Receiver::new(&wire[..]);
        assert_eq!(back.next().unwrap(), Message::Link { name: name.clone(), number: (1, u64::MAX) });
        assert_eq!(back.next().unwrap(), Message::Xattr(name, vec![255; 64 << 10]));
        for (offset, len) in [(1 << 40, PIECE_MAX as u32), ((1 << 40) + PIECE_MAX as u64, 1)] {
            assert_eq!(back.next().unwrap(), Message::Data { offset, len });
            assert_eq!(back.bytes(len).unwrap(), vec![7; len as usize]);
        }
        assert!(back.next().unwrap_err().is::<BrokeOff>());
        assert!(Receiver::new(&u32::MAX.to_le_bytes()[..]).next().is_err());
        assert!(Receiver::new(&b"\x04\0\0\0null"[..]).next().is_err());
        assert!(Receiver::new(&[0; 64][..]).bytes(u32::MAX).is_err());
    }
}
