//! Transactions and their items, put together from the operations in records.

use super::ring::{Lsn, Record};
use super::wire::{client, op};
use crate::layout::bytes::read;
use crate::layout::raw::RawLogOp;
use std::collections::HashMap;
use std::mem::size_of;

/// The most memory for transactions whose end was not read, in bytes. Linux starts a new one long before.
const OPEN_BYTES_MAX: usize = 256 << 20;
/// The most regions of an item.
const REGIONS_MAX: usize = 1000;

/// A transaction whose end is in the log.
pub(super) struct Transaction {
    /// Of the record in which it starts.
    pub lsn: Lsn,
    /// The first is the header of the transaction; then those of the items.
    regions: Vec<Vec<u8>>,
}

/// An item: its regions, of which the first says what it is.
pub(super) struct Item<'a> {
    pub kind: u16,
    pub regions: &'a [Vec<u8>],
}

/// Transactions that are being put together.
#[derive(Default)]
pub(super) struct Assembly {
    open: HashMap<u32, Transaction>,
    open_bytes: usize,
}

impl Assembly {
    /// Takes the operations of a record, and calls `done` with each transaction that ends in it.
    pub(super) fn add<E: From<String>>(
        &mut self,
        record: &Record,
        mut done: impl FnMut(&Transaction) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        for _ in 0..record.operations {
            let op: RawLogOp =
                read(&record.data, at).ok_or_else(|| "an operation ends past its record".to_owned())?;
            at += size_of::<RawLogOp>();
            let len = op.oh_len.get() as usize;
            let data = record
                .data
                .get(at..)
                .and_then(|rest| rest.get(..len))
                .ok_or_else(|| "an operation ends past its record".to_owned())?;
            at += len;
            if !client::ALL.contains(&op.oh_clientid) {
                return Err(format!("an operation has the client {:#x}", op.oh_clientid).into());
            }
            let tid = op.oh_tid.get();
            if op.oh_flags & op::START != 0 {
                if let Some(left) =
                    self.open.insert(tid, Transaction { lsn: record.lsn, regions: Vec::new() })
                {
                    self.open_bytes -= left.bytes();
                }
                continue;
            }
            if op.oh_flags & op::UNMOUNT != 0 {
                continue;
            }
            if op.oh_flags & op::COMMIT != 0 {
                // Without its start, it was before the tail.
                let Some(transaction) = self.open.remove(&tid) else { continue };
                self.open_bytes -= transaction.bytes();
                done(&transaction)?;
                continue;
            }
            let Some(transaction) = self.open.get_mut(&tid) else { continue };
            self.open_bytes += len;
            if self.open_bytes > OPEN_BYTES_MAX {
                return Err("a transaction is too large".to_owned().into());
            }
            match transaction.regions.last_mut().filter(|_| op.oh_flags & op::WAS_CONTINUED != 0) {
                Some(last) => last.extend_from_slice(data),
                None => transaction.regions.push(data.to_vec()),
            }
        }
        Ok(())
    }
}

impl Transaction {
    fn bytes(&self) -> usize {
        self.regions.iter().map(Vec::len).sum()
    }

    /// Splits the regions into items.
    pub(super) fn items(&self) -> Result<Vec<Item<'_>>, String> {
        let mut items = Vec::new();
        let mut rest = self.regions.get(1..).unwrap_or_default();
        while let Some(first) = rest.first() {
            // The items have the byte order of the machine that wrote them.
            let field = |at: usize| Some(u16::from_le_bytes(first.get(at..at + 2)?.try_into().ok()?));
            let (kind, count) = field(0).zip(field(2)).ok_or("a log item is too short")?;
            let count = usize::from(count);
            if !(1..=REGIONS_MAX).contains(&count) || count > rest.len() {
                return Err(format!("a log item of type {kind:#x} has {count} regions"));
            }
            let (regions, after) = rest.split_at(count);
            items.push(Item { kind, regions });
            rest = after;
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(tid: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = tid.to_be_bytes().to_vec();
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend([0x69, flags, 0, 0]);
        bytes.extend(data);
        bytes
    }

    fn record(operations: &[Vec<u8>]) -> Record {
        let lsn = Lsn { cycle: 1, sector: 8 };
        Record {
            lsn,
            tail: lsn,
            operations: operations.len() as u32,
            sectors: 2,
            longest: 0,
            data: operations.concat(),
        }
    }

    #[test]
    fn operations_form_items() {
        let mut assembly = Assembly::default();
        let mut seen = Vec::new();
        let mut add = |assembly: &mut Assembly, operations: &[Vec<u8>]| {
            assembly.add::<String>(&record(operations), |transaction| {
                for item in transaction.items()? {
                    seen.push((item.kind, item.regions.iter().map(Vec::len).collect::<Vec<_>>()));
                }
                Ok(())
            })
        };
        let first =
            [operation(7, op::START, b""), operation(7, 0, &[0; 16]), operation(7, 4, &[0x3c, 0x12, 2, 0])];
        add(&mut assembly, &first).unwrap();
        // Another transaction started before the tail.
        let rest = [
            operation(9, 0, b"ignored"),
            operation(7, op::WAS_CONTINUED | 0x10, &[1; 20]),
            operation(7, 0, &[5; 128]),
            operation(7, op::COMMIT, b""),
        ];
        add(&mut assembly, &rest).unwrap();
        assert_eq!(assembly.open_bytes, 0);
        let cut = record(&[operation(7, 0, b"abc")]);
        let cut = Record { data: cut.data[..13].to_vec(), ..cut };
        assert!(assembly.add::<String>(&cut, |_| Ok(())).unwrap_err().contains("past its record"));
        assert_eq!(seen, [(0x123c, vec![24, 128])]);
    }

    #[test]
    fn an_item_without_its_regions_is_damage() {
        let lsn = Lsn { cycle: 1, sector: 0 };
        let broken = |item: &[u8]| {
            Transaction { lsn, regions: vec![vec![], item.to_vec()] }.items().map(|items| items.len())
        };
        assert_eq!(broken(&[0x3c, 0x12, 1, 0]), Ok(1));
        assert!(broken(&[0x3c, 0x12, 2, 0]).is_err() && broken(&[0x3c, 0x12, 0, 0]).is_err());
        assert!(broken(&[0x3c]).is_err());
    }
}
