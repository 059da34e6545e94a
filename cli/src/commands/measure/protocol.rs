//! The protocol between `measure` and an image process that measures, over one socket.
//!
//! ```text
//! image process  instance  frame: the filesystem; empty if change attributes end with this opening
//! command        job       frames: policy, known digests of that filesystem, algorithm
//! image process  events    frames: an Event each; an empty frame ends them
//!
//! frame          length u32, little-endian, and bytes
//! ```
//!
//! A hostile image can take over the image process, so lengths are bounded and events are validated. It
//! can still report wrong digests of its own image.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use ivers_ima::digest::{Algorithm, Digest};
use ivers_ima::file_id::{Identity, put, put_bytes, take, take_bytes};
use ivers_ima::list::Template;
use ivers_ima::policy::{Appraise, Decision};
use ivers_ima::store::Record;

use crate::image::process::protocol_error;

/// Longest event in bytes: a path, a `security.ima`, some numbers.
pub const EVENT_MAX: u32 = 128 << 10;
/// Longest frame of a job in bytes.
pub const JOB_MAX: u32 = u32::MAX;

/// A file that the policy covers, and its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The name of the file in the list.
    pub path: Vec<u8>,
    /// The requirements of the policy.
    pub decision: Decision,
    /// The inode number, the generation, and the change attribute. The change attribute is present if the
    /// digest is valid until the change attribute changes.
    pub identity: Identity,
    /// The digest of the contents.
    pub digest: Digest,
    /// The file's `security.ima`.
    pub label: Vec<u8>,
    /// The size of the file in bytes.
    pub size: u64,
    /// The bytes read; `None` if the digest was known.
    pub read: Option<u64>,
    /// The file changed during each attempt to read it.
    pub changing: bool,
}

impl Finding {
    /// Creates the finding of a file with a known digest, which was not read.
    pub fn unread(path: Vec<u8>, decision: Decision, identity: Identity, known: &Record, size: u64) -> Self {
        let (digest, label) = (known.digest, known.label.clone());
        Self { path, decision, identity, digest, label, size, read: None, changing: false }
    }
}

/// An event of a walk.
#[derive(Debug)]
pub enum Event {
    /// A file was measured.
    Finding(Finding),
    /// A file could not be measured.
    Problem {
        /// The exit code.
        code: u8,
        /// The error.
        line: String,
    },
}

/// Sends a frame.
pub fn send(to: &mut impl Write, bytes: &[u8]) -> Result<()> {
    let len = u32::try_from(bytes.len())
        .context("a message between the command and the image process is longer than 4 GiB")?;
    to.write_all(&len.to_le_bytes())?;
    Ok(to.write_all(bytes)?)
}

/// Receives a frame of at most `most` bytes.
pub fn receive(from: &mut impl Read, most: u32) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > most {
        return Err(protocol_error(format!("a frame of {len} bytes")));
    }
    let mut bytes = Vec::new();
    from.take(len.into()).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != u64::from(len) {
        return Err(protocol_error("an incomplete frame"));
    }
    Ok(bytes)
}

const FINDING: u8 = 1;
const PROBLEM: u8 = 2;

impl Event {
    /// Encodes the event as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Event::Problem { code, line } => {
                out.extend_from_slice(&[PROBLEM, *code]);
                out.extend_from_slice(line.as_bytes());
            }
            Event::Finding(finding) => {
                let measure = match finding.decision.measure {
                    None => 0,
                    Some(Template::ImaNg) => 1,
                    Some(Template::ImaSig) => 2,
                };
                let appraise = match finding.decision.appraise {
                    None => 0,
                    Some(Appraise::Digest) => 1,
                    Some(Appraise::Signature) => 2,
                };
                out.extend_from_slice(&[FINDING, measure, appraise, finding.digest.algorithm().id()]);
                out.extend_from_slice(finding.digest.bytes());
                finding.identity.put(&mut out);
                put(&mut out, finding.size);
                put(&mut out, finding.read.map_or(0, |read| read.saturating_add(1)));
                put(&mut out, u64::from(finding.changing));
                put_bytes(&mut out, &finding.label);
                out.extend_from_slice(&finding.path);
            }
        }
        out
    }

    /// Decodes a frame. `None` if it is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [PROBLEM, code, line @ ..] => {
                Some(Event::Problem { code: *code, line: String::from_utf8_lossy(line).into_owned() })
            }
            [FINDING, measure, appraise, algorithm, rest @ ..] => {
                let algorithm = Algorithm::by_id(*algorithm)?;
                let (digest, mut rest) = rest.split_at_checked(algorithm.digest_len())?;
                Some(Event::Finding(Finding {
                    decision: Decision {
                        measure: match measure {
                            0 => None,
                            1 => Some(Template::ImaNg),
                            2 => Some(Template::ImaSig),
                            _ => return None,
                        },
                        appraise: match appraise {
                            0 => None,
                            1 => Some(Appraise::Digest),
                            2 => Some(Appraise::Signature),
                            _ => return None,
                        },
                    },
                    digest: Digest::new(algorithm, digest)?,
                    identity: Identity::take(&mut rest)?,
                    size: take(&mut rest)?,
                    read: take(&mut rest)?.checked_sub(1),
                    changing: take(&mut rest)? != 0,
                    label: take_bytes(&mut rest)?.to_vec(),
                    path: rest.to_vec(),
                }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip() {
        let finding = Finding {
            path: b"/a".to_vec(),
            decision: Decision { measure: Some(Template::ImaSig), appraise: Some(Appraise::Digest) },
            identity: Identity { ino: 12, generation: 3, change: Some(1 << 50) },
            digest: Algorithm::Sha512.digest(b"x"),
            label: vec![3, 2],
            size: 9,
            read: Some(0),
            changing: true,
        };
        let bytes = Event::Finding(finding.clone()).encode();
        assert!(matches!(Event::decode(&bytes), Some(Event::Finding(decoded)) if decoded == finding));
        for at in 0..bytes.len() - 2 {
            assert!(Event::decode(&bytes[..at]).is_none(), "{at}");
        }
        let mut pipe = Vec::new();
        send(&mut pipe, &bytes).unwrap();
        assert_eq!(receive(&mut &pipe[..], EVENT_MAX).unwrap(), bytes);
        assert!(receive(&mut &pipe[..], 8).is_err() && receive(&mut &pipe[..9], EVENT_MAX).is_err());
    }
}
