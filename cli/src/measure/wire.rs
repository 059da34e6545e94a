//! What a keeper that measures and the command say to each other, through one socket.
//!
//! ```text
//! keeper   instance     frame: which filesystem; empty: nothing vouches beyond this opening
//! command  job          frames: policy, what is known of that filesystem, algorithm
//! keeper   findings     frames: a Finding, or a problem; an empty one ends them
//!
//! frame    length u32, little-endian, and bytes
//! ```
//!
//! The keeper may be in the hands of a hostile image, so lengths are bounded and findings taken apart with care: what it can do is lie about its
//! own image.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use ivers_measure::digest::{Algorithm, Digest};
use ivers_measure::list::Template;
use ivers_measure::policy::{Appraise, Decision};
use ivers_measure::record::{Identity, put, put_bytes, take, take_bytes};
use ivers_measure::store::Known;

/// No honest finding is longer: a path, a label, some numbers.
pub const FINDING_MAX: u32 = 128 << 10;
/// What is known of a filesystem.
pub const KNOWN_MAX: u32 = u32::MAX;

/// A file that a policy is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name in the list.
    pub path: Vec<u8>,
    /// What the policy asks for.
    pub decision: Decision,
    /// Who it is. It has a change attribute if that vouches for the digest.
    pub identity: Identity,
    /// Of its contents.
    pub digest: Digest,
    /// Its `security.ima`.
    pub label: Vec<u8>,
    /// Its size.
    pub size: u64,
    /// How much of it was read, if it was.
    pub read: Option<u64>,
    /// It changed each time it was read.
    pub moved: bool,
}

impl Finding {
    /// Of a file for which its change attribute vouches: nothing of it was read.
    pub fn unread(path: Vec<u8>, decision: Decision, identity: Identity, known: &Known, size: u64) -> Self {
        let (digest, label) = (known.digest, known.label.clone());
        Self { path, decision, identity, digest, label, size, read: None, moved: false }
    }
}

/// What a walk tells.
#[derive(Debug)]
pub enum Told {
    /// Of a file.
    Finding(Finding),
    /// What went wrong with one.
    Problem {
        /// The exit code.
        code: u8,
        /// What is said.
        line: String,
    },
}

/// Send a frame.
pub fn send(to: &mut impl Write, bytes: &[u8]) -> Result<()> {
    let len = u32::try_from(bytes.len()).context("more is known than can be told another process")?;
    to.write_all(&len.to_le_bytes())?;
    Ok(to.write_all(bytes)?)
}

/// Take one of at most so many bytes.
pub fn receive(from: &mut impl Read, most: u32) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > most {
        bail!("the process that parses talks nonsense");
    }
    let mut bytes = Vec::new();
    from.take(len.into()).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != u64::from(len) {
        bail!("the process that parses broke off");
    }
    Ok(bytes)
}

const FINDING: u8 = 1;
const PROBLEM: u8 = 2;

impl Told {
    /// The bytes of a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Told::Problem { code, line } => {
                out.extend_from_slice(&[PROBLEM, *code]);
                out.extend_from_slice(line.as_bytes());
            }
            Told::Finding(finding) => {
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
                put(&mut out, u64::from(finding.moved));
                put_bytes(&mut out, &finding.label);
                out.extend_from_slice(&finding.path);
            }
        }
        out
    }

    /// What the bytes of a frame say.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [PROBLEM, code, line @ ..] => {
                Some(Told::Problem { code: *code, line: String::from_utf8_lossy(line).into_owned() })
            }
            [FINDING, measure, appraise, algorithm, rest @ ..] => {
                let algorithm = Algorithm::by_id(*algorithm)?;
                let (digest, mut rest) = rest.split_at_checked(algorithm.digest_len())?;
                Some(Told::Finding(Finding {
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
                    moved: take(&mut rest)? != 0,
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
    fn what_is_told_arrives() {
        let finding = Finding {
            path: b"/a".to_vec(),
            decision: Decision { measure: Some(Template::ImaSig), appraise: Some(Appraise::Digest) },
            identity: Identity { ino: 12, generation: 3, change: Some(1 << 50) },
            digest: Algorithm::Sha512.digest(b"x"),
            label: vec![3, 2],
            size: 9,
            read: Some(0),
            moved: true,
        };
        let bytes = Told::Finding(finding.clone()).encode();
        assert!(matches!(Told::decode(&bytes), Some(Told::Finding(told)) if told == finding));
        for at in 0..bytes.len() - 2 {
            assert!(Told::decode(&bytes[..at]).is_none(), "{at}");
        }
        let mut pipe = Vec::new();
        send(&mut pipe, &bytes).unwrap();
        assert_eq!(receive(&mut &pipe[..], FINDING_MAX).unwrap(), bytes);
        assert!(receive(&mut &pipe[..], 8).is_err() && receive(&mut &pipe[..9], FINDING_MAX).is_err());
    }
}
