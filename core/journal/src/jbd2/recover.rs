//! Recovery: scans the log, collects its revokes and replays it.

use std::collections::HashMap;
use std::sync::Arc;

use ivers_block::{BlockNo, Device};

use super::Jbd2Log;
use super::records::{
    BLOCK_COMMIT, BLOCK_DESCRIPTOR, BLOCK_REVOKE, JBD2_MAGIC, Layout, TAG_ESCAPED, Tag, be32, crc32_be,
    crc32c, sequence_at_least,
};
use super::superblock::INCOMPAT_FAST_COMMIT;
use crate::{JournalError, Lsn, ObjectId, Replay, Result};

/// The most revoked blocks of a log. No real log comes near; a hostile one must not fill memory.
const MAX_REVOKES: usize = 8 << 20;

/// The result of a recovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Transactions replayed.
    pub transactions: u64,
    /// Writes in place, in blocks. A block counts once for each transaction that changed it.
    pub blocks: u64,
    /// Logged blocks that were not replayed because of a revoke.
    pub revoked: u64,
    /// The sequence number of the next transaction.
    pub next_sequence: u32,
    /// The wrong checksum at which recovery stopped, if there was one. The cause is damage, or a crash
    /// during a commit on a medium that tears writes.
    pub damaged: Option<Damage>,
}

/// A wrong checksum in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The sequence number of the transaction. Neither it nor any later one was replayed.
    pub sequence: u32,
    /// The block of the log.
    pub log_block: u32,
    /// `descriptor`, `data`, `revocation` or `commit`.
    pub what: &'static str,
}

/// The result of the scan.
struct Scan {
    /// The sequence number of the first transaction that is not whole.
    end_sequence: u32,
    damaged: Option<Damage>,
}

/// A record that [`Jbd2Log::walk`] visits.
enum Step<'a> {
    /// A logged block with its tag, as it is in the log.
    Data(Tag, &'a [u8]),
    Revoked(&'a [BlockNo]),
    /// The end of a transaction.
    Commit,
}

/// Writes replayed blocks in place.
struct InPlace {
    device: Arc<dyn Device>,
    block_size: u32,
}

impl Replay for InPlace {
    fn buffer(&mut self, _: Lsn, block: BlockNo, offset: u32, bytes: &[u8]) -> Result<()> {
        Ok(self.device.write_at(block.offset(self.block_size) + u64::from(offset), bytes)?)
    }

    fn object(&mut self, _: Lsn, _: ObjectId, _: &[u8]) -> Result<()> {
        Err(JournalError::ObjectsUnsupported)
    }

    fn intent(&mut self, _: Lsn, _: ObjectId, _: &[u8]) -> Result<()> {
        Err(JournalError::ObjectsUnsupported)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.device.flush()?)
    }
}

impl Jbd2Log {
    /// Replays every whole transaction onto the device, flushes, and marks the log clean. Does nothing if the
    /// log is clean.
    ///
    /// Create or invalidate caches of the device after this call. It scans the whole log before it writes.
    /// After a crash during recovery the log can be recovered again.
    pub fn recover(&mut self) -> Result<Recovered> {
        let mut in_place = InPlace { device: self.device.clone(), block_size: self.options.block_size };
        self.recover_into(&mut in_place)
    }

    /// As [`recover`](Self::recover), with a driver that writes the blocks itself. It gets whole blocks.
    pub fn recover_into(&mut self, replay: &mut dyn Replay) -> Result<Recovered> {
        if !self.needs_recovery() {
            return Ok(Recovered { next_sequence: self.next_sequence, ..Recovered::default() });
        }
        let scan = self.scan()?;
        self.check_fast_commits(scan.end_sequence)?;
        let revoked = self.collect_revokes(scan.end_sequence)?;
        let mut done = self.replay(scan.end_sequence, &revoked, replay)?;
        replay.finish()?;
        done.damaged = scan.damaged;
        // Whole transactions may follow the end of a damaged log. They must not be taken for successors of
        // new transactions. A transaction takes at least two blocks, so the log held no more than this
        // many.
        done.next_sequence = scan.end_sequence.wrapping_add((self.ring_blocks() / 2) as u32 + 1);
        self.must_recover = false;
        self.head = self.sb.first();
        self.used_blocks = 0;
        self.next_sequence = done.next_sequence;
        self.store_superblock(0, done.next_sequence)?;
        // If the log is opened again before the next transaction, that one gets a number one higher. Both are
        // correct.
        Ok(done)
    }

    /// Finds the end of the log and checks every checksum.
    fn scan(&self) -> Result<Scan> {
        let mut damaged = None;
        // Reported only if a commit block follows: in a log without checksums, a torn descriptor of an
        // incomplete transaction may end in bytes of older blocks.
        let mut invalid_target = None;
        let end_sequence = self.walk(None, &mut damaged, |sequence, log_block, step| {
            match step {
                Step::Data(tag, _)
                    if tag.block.0 >= self.options.fs_blocks || self.map.contains(tag.block) =>
                {
                    invalid_target.get_or_insert((tag.block, log_block));
                }
                Step::Commit => {
                    if let Some((block, log_block)) = invalid_target {
                        let what = format!(
                            "transaction {sequence} changes block {block}, which is in the journal or \
                             outside the filesystem"
                        );
                        return Err(JournalError::Corrupt { what, log_block: u64::from(log_block) });
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(Scan { end_sequence, damaged })
    }

    fn collect_revokes(&self, end: u32) -> Result<HashMap<BlockNo, u32>> {
        let mut revoked: HashMap<BlockNo, u32> = HashMap::new();
        self.walk(Some(end), &mut None, |sequence, log_block, step| {
            let Step::Revoked(blocks) = step else { return Ok(()) };
            for &block in blocks {
                let newest = revoked.entry(block).or_insert(sequence);
                if sequence_at_least(sequence, *newest) {
                    *newest = sequence;
                }
            }
            if revoked.len() > MAX_REVOKES {
                let what = format!("the log revokes more than {MAX_REVOKES} blocks");
                return Err(JournalError::Corrupt { what, log_block: u64::from(log_block) });
            }
            Ok(())
        })?;
        Ok(revoked)
    }

    fn replay(
        &self,
        end: u32,
        revoked: &HashMap<BlockNo, u32>,
        replay: &mut dyn Replay,
    ) -> Result<Recovered> {
        let mut done = Recovered::default();
        let mut copy = Vec::new();
        self.walk(Some(end), &mut None, |sequence, _, step| {
            match step {
                Step::Commit => done.transactions += 1,
                Step::Revoked(_) => {}
                Step::Data(tag, data) => {
                    if revoked.get(&tag.block).is_some_and(|&r| sequence_at_least(r, sequence)) {
                        done.revoked += 1;
                        return Ok(());
                    }
                    copy.clear();
                    copy.extend_from_slice(data);
                    if tag.flags & TAG_ESCAPED != 0 {
                        copy[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
                    }
                    replay.buffer(done.transactions + 1, tag.block, 0, &copy)?;
                    done.blocks += 1;
                }
            }
            Ok(())
        })?;
        Ok(done)
    }

    /// Walks the log from its start. Returns the sequence number of the first transaction that is not whole.
    ///
    /// With `end` it stops before that transaction and checks nothing: the log was scanned before. Without
    /// `end` it checks checksums, and sets `damaged` if it stops at a wrong one. It visits at most as many
    /// blocks as the log has, so it ends for every content.
    fn walk(
        &self,
        end: Option<u32>,
        damaged: &mut Option<Damage>,
        mut visit: impl FnMut(u32, u32, Step<'_>) -> Result<()>,
    ) -> Result<u32> {
        let layout = Layout::of(&self.sb);
        let mut sequence = self.sb.sequence();
        let mut at = self.sb.start();
        let mut left = self.ring_blocks();
        let mut block = vec![0; layout.block_size];
        let mut data = vec![0; layout.block_size];
        let mut sum_v1 = !0;
        // The first wrong checksum of a data block. Reported only if a commit block follows.
        let mut bad_data: Option<Damage> = None;
        let verify = end.is_none();
        while left > 0 && end != Some(sequence) {
            self.read_log(at, &mut block)?;
            if be32(&block, 0) != JBD2_MAGIC || be32(&block, 8) != sequence {
                break;
            }
            let here = at;
            at = self.next_log_block(at);
            left -= 1;
            let damage = |what| Some(Damage { sequence, log_block: here, what });
            match be32(&block, 4) {
                BLOCK_DESCRIPTOR => {
                    if verify && !layout.tail_is_good(&block) {
                        *damaged = damage("descriptor");
                        break;
                    }
                    if verify && layout.has_csum_v1 {
                        sum_v1 = crc32_be(sum_v1, &block);
                    }
                    let tags = layout.parse_tags(&block);
                    if tags.len() as u64 > left {
                        break;
                    }
                    for tag in tags {
                        self.read_log(at, &mut data)?;
                        if verify && layout.has_csum_v1 {
                            sum_v1 = crc32_be(sum_v1, &data);
                        }
                        if verify && bad_data.is_none() && !layout.data_is_good(sequence, &data, &tag) {
                            bad_data = Some(Damage { sequence, log_block: at, what: "data" });
                        }
                        visit(sequence, at, Step::Data(tag, &data))?;
                        at = self.next_log_block(at);
                        left -= 1;
                    }
                }
                BLOCK_REVOKE => {
                    let good = !verify || layout.tail_is_good(&block);
                    let Some(blocks) = layout.parse_revokes(&block).filter(|_| good) else {
                        *damaged = damage("revocation");
                        break;
                    };
                    visit(sequence, here, Step::Revoked(&blocks))?;
                }
                BLOCK_COMMIT => {
                    if verify && !layout.commit_is_good(&block, sum_v1) {
                        *damaged = damage("commit");
                        break;
                    }
                    if bad_data.is_some() {
                        *damaged = bad_data;
                        break;
                    }
                    visit(sequence, here, Step::Commit)?;
                    sequence = sequence.wrapping_add(1);
                    sum_v1 = !0;
                }
                _ => break,
            }
        }
        Ok(sequence)
    }

    /// Returns an error if the fast-commit area continues the log with transaction `sequence`.
    ///
    /// The area holds tags: little-endian `fc_tag` and `fc_len`, then the value. It is in use if both hold:
    ///
    /// - its first tag is a HEAD (9) with the sequence number that the log expects next;
    /// - a TAIL (8) with that number and a right checksum ends it (crc32c of all bytes before the checksum).
    ///
    /// Without such a tail the fast commit is incomplete.
    fn check_fast_commits(&self, sequence: u32) -> Result<()> {
        if self.sb.incompat() & INCOMPAT_FAST_COMMIT == 0 || self.sb.last() == self.sb.max_len() {
            return Ok(());
        }
        let mut block = vec![0; self.options.block_size as usize];
        // The kernel leaves the first block after the ring unused and starts at the second. Check both.
        for first in self.sb.last()..=(self.sb.last() + 1).min(self.sb.max_len() - 1) {
            self.read_log(first, &mut block)?;
            if fast_commit_sequence(&block) == Some(sequence) && fast_commit_is_complete(&block, sequence) {
                return Err(JournalError::FastCommitPending { sequence });
            }
        }
        Ok(())
    }
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

const FC_TAG_TAIL: u16 = 8;
const FC_TAG_HEAD: u16 = 9;

/// Returns `fc_tid` of the HEAD tag at the start of a fast-commit area.
fn fast_commit_sequence(block: &[u8]) -> Option<u32> {
    (le16(block, 0) == FC_TAG_HEAD && le16(block, 2) >= 8).then(|| le32(block, 8))
}

/// Returns false only if the first fast commit is certainly incomplete: its first block has a wrong TAIL or
/// bytes that are no tag.
fn fast_commit_is_complete(block: &[u8], sequence: u32) -> bool {
    let mut at = 0;
    while at + 4 <= block.len() {
        let (tag, len) = (le16(block, at), le16(block, at + 2) as usize);
        if !(1..=FC_TAG_HEAD).contains(&tag) {
            return false;
        }
        if tag == FC_TAG_TAIL {
            // Value: fc_tid, fc_crc. The checksum starts with zero state in ext4.
            let good = |seed| at + 12 <= block.len() && crc32c(seed, &block[..at + 8]) == le32(block, at + 8);
            return at + 12 <= block.len() && le32(block, at + 4) == sequence && (good(0) || good(!0));
        }
        at += 4 + len;
    }
    true
}
