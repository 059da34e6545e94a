//! The stream from the process that reads a copy to the process that writes it: messages in JSON, each after
//! its length, and contents of files between them.
//!
//! ```text
//! stream   operand* Finish
//! operand  Operand (entry | Link | Problem)*
//! entry    File (Xattr | Data bytes | entry | Link | Problem)* End
//! ```
//!
//! A hostile image can take over either process, so neither trusts the other: lengths are bounded here,
//! names and order are checked where they are used.

use std::io::{BufReader, BufWriter, Read, Write};

use anyhow::{Context, Result, bail};
use ivers_vfs::{FileType, Timestamp};
use serde::{Deserialize, Serialize};

/// Most bytes of contents in one message.
pub const CHUNK_MAX: usize = 256 << 10;
/// Longest message in bytes: an attribute has at most 64 KiB, each byte of which JSON encodes in up to four.
const MESSAGE_MAX: u32 = 1 << 20;

/// The stream ended in the middle: the process that wrote it has ended.
#[derive(Debug)]
pub struct Truncated;

impl std::fmt::Display for Truncated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the stream of the copy ended early")
    }
}

impl std::error::Error for Truncated {}

/// Identifies a file of one origin: device and inode number.
pub type FileId = (u64, u64);

/// The attributes of a file, without contents and extended attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeader {
    /// The name in its directory. Ignored for an operand.
    pub name: Vec<u8>,
    /// Identifies the file.
    pub id: FileId,
    /// The file has several hard links. The others can follow as [`Message::Link`].
    pub has_links: bool,
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The numbers of a device node.
    pub rdev: u32,
    /// Access time in seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Modification time.
    pub mtime: (i64, u32),
    /// The size of a regular file in bytes, for the progress. 0 if unknown.
    pub size: u64,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

impl FileHeader {
    /// Returns the type.
    pub fn kind(&self) -> Result<FileType> {
        FileType::from_mode(self.mode).context("a file of unknown type")
    }

    /// Returns the permission bits.
    pub fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// Encodes a time.
pub fn packed(time: Timestamp) -> (i64, u32) {
    (time.sec, time.nsec)
}

/// Decodes a time.
pub fn unpacked((sec, nsec): (i64, u32)) -> Timestamp {
    Timestamp { sec, nsec: nsec.min(999_999_999) }
}

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The following messages belong to this operand of the command line.
    Operand {
        /// The scope of [`FileId`]s.
        origin: u32,
        /// The operand as the user wrote it.
        operand: Vec<u8>,
        /// The name of the copy. `None`: only the contents of a directory are copied.
        name: Option<Vec<u8>>,
    },
    /// A file or directory starts.
    File(FileHeader),
    /// Another hard link to an earlier file.
    Link {
        /// The name.
        name: Vec<u8>,
        /// The file.
        id: FileId,
    },
    /// An extended attribute of the file or directory that started last.
    Xattr(Vec<u8>, Vec<u8>),
    /// Contents: `len` bytes follow the message.
    Data {
        /// The byte offset in the file.
        offset: u64,
        /// The length in bytes.
        len: u32,
    },
    /// The file or directory that started last is complete.
    End {
        /// The size of a regular file in bytes.
        size: u64,
    },
    /// A file cannot be read.
    Problem {
        /// The path of the file below the operand.
        path: String,
        /// The exit code.
        code: u8,
        /// The error.
        line: String,
    },
    /// The stream is complete.
    Finish,
}

/// The writing end.
pub struct Sender<W: Write>(BufWriter<W>);

impl<W: Write> Sender<W> {
    /// Writes to `out`, e.g. a pipe.
    pub fn new(out: W) -> Self {
        Self(BufWriter::with_capacity(CHUNK_MAX, out))
    }

    /// Sends a message without contents.
    pub fn send(&mut self, message: &Message) -> Result<()> {
        super::interrupt::check()?;
        let text = serde_json::to_vec(message)?;
        let len = u32::try_from(text.len()).ok().filter(|&len| len <= MESSAGE_MAX);
        let len = len.context("a message of the copy is too long")?;
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(&text)?;
        Ok(())
    }

    /// Sends contents.
    pub fn data(&mut self, mut offset: u64, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(CHUNK_MAX) {
            self.send(&Message::Data { offset, len: piece.len() as u32 })?;
            self.0.write_all(piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes out the buffer.
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
    /// Reads from `from`, e.g. a pipe.
    pub fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(CHUNK_MAX, from), buffer: Vec::new() }
    }

    fn fill(&mut self, len: usize) -> Result<()> {
        self.buffer.resize(len, 0);
        self.from.read_exact(&mut self.buffer).map_err(truncated)
    }

    /// Receives the next message.
    pub fn next(&mut self) -> Result<Message> {
        let mut len = [0; 4];
        self.from.read_exact(&mut len).map_err(truncated)?;
        let len = u32::from_le_bytes(len);
        if len > MESSAGE_MAX {
            bail!("protocol error from the process that reads: a message of {len} bytes");
        }
        self.fill(len as usize)?;
        serde_json::from_slice(&self.buffer).context("protocol error from the process that reads")
    }

    /// Receives the bytes after [`Message::Data`].
    pub fn bytes(&mut self, len: u32) -> Result<&[u8]> {
        if len as usize > CHUNK_MAX {
            bail!("protocol error from the process that reads: contents of {len} bytes");
        }
        self.fill(len as usize)?;
        Ok(&self.buffer)
    }
}

fn truncated(error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof { Truncated.into() } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_invalid_ones_are_refused() {
        let mut wire = Vec::new();
        let mut out = Sender::new(&mut wire);
        let name = b"a\xff".to_vec();
        out.send(&Message::Link { name: name.clone(), id: (1, u64::MAX) }).unwrap();
        out.send(&Message::Xattr(name.clone(), vec![255; 64 << 10])).unwrap();
        out.data(1 << 40, &vec![7; CHUNK_MAX + 1]).unwrap();
        assert!(out.send(&Message::Xattr(name.clone(), vec![255; 1 << 20])).is_err());
        drop(out);
        let mut back = Receiver::new(&wire[..]);
        assert_eq!(back.next().unwrap(), Message::Link { name: name.clone(), id: (1, u64::MAX) });
        assert_eq!(back.next().unwrap(), Message::Xattr(name, vec![255; 64 << 10]));
        for (offset, len) in [(1 << 40, CHUNK_MAX as u32), ((1 << 40) + CHUNK_MAX as u64, 1)] {
            assert_eq!(back.next().unwrap(), Message::Data { offset, len });
            assert_eq!(back.bytes(len).unwrap(), vec![7; len as usize]);
        }
        assert!(back.next().unwrap_err().is::<Truncated>());
        assert!(Receiver::new(&u32::MAX.to_le_bytes()[..]).next().is_err());
        assert!(Receiver::new(&b"\x04\0\0\0null"[..]).next().is_err());
        assert!(Receiver::new(&[0; 64][..]).bytes(u32::MAX).is_err());
    }
}
