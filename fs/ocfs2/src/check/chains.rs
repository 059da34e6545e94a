//! Allocators: chains of groups, local windows, and clusters that wait to be freed.

use super::state::Checker;
use crate::layout::bytes::{u16_at, u32_at};
use crate::layout::dinode::{Dinode, ID2_AT, flags};
use crate::layout::group::{Chain, ChainList, Group};
use crate::layout::shape::GROUP;
use ivers_vfs::check::Place;
use ivers_vfs::{Error, NameError, Result};

/// The slot of inodes that come from no slot's allocator.
const NO_SLOT: u16 = u16::MAX;

/// What an allocator allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Clusters,
    /// Inodes of a slot.
    Inodes(u16),
    /// Extent blocks, and other structures of a block.
    Blocks,
}

impl Checker {
    /// Walks all allocators, and so all inodes.
    pub(super) fn check_system_files(&mut self) -> Result<()> {
        let sb = self.fs.sb.clone();
        self.owned.set_run(0, sb.cluster_of(sb.first_cluster_group) + 1);
        sb.backups().for_each(|block| {
            self.owned.set_run(sb.cluster_of(block), 1);
        });
        let per_slot = |name: &str| {
            (0..sb.max_slots).map(|slot| (format!("{name}:{slot:04}"), slot)).collect::<Vec<_>>()
        };
        let mut allocators = vec![
            ("global_bitmap".to_owned(), Unit::Clusters),
            ("global_inode_alloc".to_owned(), Unit::Inodes(NO_SLOT)),
        ];
        allocators.extend(per_slot("extent_alloc").into_iter().map(|(name, _)| (name, Unit::Blocks)));
        allocators.extend(per_slot("inode_alloc").into_iter().map(|(name, slot)| (name, Unit::Inodes(slot))));
        for (name, unit) in allocators {
            if let Some((inode, block)) = self.system_file(&name)? {
                self.check_allocator(&inode, &block, unit)?;
            }
        }
        for (name, _) in per_slot("local_alloc") {
            if let Some((inode, block)) = self.system_file(&name)? {
                self.check_local_alloc(&inode, &block[ID2_AT..]);
            }
        }
        for (name, _) in per_slot("truncate_log") {
            if let Some((inode, block)) = self.system_file(&name)? {
                self.check_truncate_log(&inode, &block[ID2_AT..]);
            }
        }
        self.charge(0)
    }

    /// Reads a system file and its block.
    fn system_file(&mut self, name: &str) -> Result<Option<(Dinode, Vec<u8>)>> {
        let Some(ino) = self.files.find(name) else {
            let place = Place::inode(self.fs.sb.system_dir);
            self.bad("system-file-missing", place, format!("there is no system file {name}"));
            return Ok(None);
        };
        let read = match self.fs.dinode(ino) {
            Err(Error::Name(NameError::Stale)) => {
                let what = format!("the system file {name} is not in use");
                self.bad("system-file-missing", Place::inode(ino), what);
                return Ok(None);
            }
            read => read,
        };
        let read = self.caught("inode-invalid", Place::inode(ino), read)?;
        Ok(read.map(|(inode, block)| (inode, block.to_vec())))
    }

    fn check_allocator(&mut self, inode: &Dinode, block: &[u8], unit: Unit) -> Result<()> {
        let place = Place::inode(inode.ino);
        if inode.flags & flags::CHAIN == 0 {
            self.bad("allocator-invalid", place, "the allocator has no chains");
            return Ok(());
        }
        let list = match ChainList::parse(&block[ID2_AT..]) {
            Ok(list) => list,
            Err(what) => {
                self.bad("allocator-invalid", place, what);
                return Ok(());
            }
        };
        let bits_per_cluster = if unit == Unit::Clusters { 1 } else { self.fs.sb.blocks_per_cluster };
        if u32::from(list.bits_per_cluster) != bits_per_cluster {
            let what = format!("cl_bpc is {}, not {bits_per_cluster}", list.bits_per_cluster);
            self.bad("allocator-invalid", place.clone(), what);
        }
        let (mut total, mut free, mut clusters) = (0u64, 0u64, 0u64);
        for (nth, chain) in (0u16..).zip(&list.chains) {
            let (has, in_clusters) = self.check_chain(inode, &list, (nth, chain), unit)?;
            clusters += in_clusters;
            total += u64::from(has.total);
            free += u64::from(has.free);
            if (has.total, has.free) != (chain.total, chain.free) {
                let what = format!(
                    "chain {nth} counts {} bits and {} free ones, its groups have {} and {}",
                    chain.total, chain.free, has.total, has.free
                );
                self.bad("chain-counts-wrong", Place::inode(inode.ino), what);
            }
        }
        let (used, counted) = (inode.id1 & u64::from(u32::MAX), inode.id1 >> 32);
        if (used, counted) != (total.saturating_sub(free), total) {
            let what = format!(
                "the allocator counts {used} used bits of {counted}, its chains have {} of {total}",
                total.saturating_sub(free)
            );
            self.bad("allocator-counts-wrong", Place::inode(inode.ino), what);
        }
        let bytes = clusters * u64::from(self.fs.sb.cluster_size());
        if (u64::from(inode.clusters), inode.size) != (clusters, bytes) {
            let what = format!(
                "the allocator has {} clusters and {} bytes, its groups have {clusters} and {bytes}",
                inode.clusters, inode.size
            );
            self.bad("allocator-size-wrong", Place::inode(inode.ino), what);
        }
        if unit == Unit::Clusters && total != u64::from(self.fs.sb.clusters) {
            let what =
                format!("the bitmap has {total} bits, the filesystem {} clusters", self.fs.sb.clusters);
            self.bad("bitmap-size-wrong", Place::inode(inode.ino), what);
        }
        Ok(())
    }

    /// Checks a chain. Returns its counts and its clusters.
    fn check_chain(
        &mut self,
        inode: &Dinode,
        list: &ChainList,
        (nth, chain): (u16, &Chain),
        unit: Unit,
    ) -> Result<(Chain, u64)> {
        let (mut has, mut clusters) = (Chain { free: 0, total: 0, first: chain.first }, 0);
        let mut at = chain.first;
        while at != 0 {
            let place = Place::inode(inode.ino).at(at);
            if !self.groups.insert(at) {
                self.bad("group-claimed-twice", place, format!("group {at} is in two places of the chains"));
                break;
            }
            let read = self.fs.structure(at, &GROUP);
            let Some(block) = self.caught("group-invalid", place.clone(), read)? else { break };
            let group = match Group::parse(&block, &self.fs.sb) {
                Ok(group) => group,
                Err(what) => {
                    self.bad("group-invalid", place, what);
                    break;
                }
            };
            let most = u32::from(list.clusters_per_group) * u32::from(list.bits_per_cluster);
            if group.parent != inode.ino || group.chain != nth || u32::from(group.bits) > most {
                let what = format!(
                    "the group is of allocator {} and chain {}, with {} bits; it must be {} and {nth}, with \
                     up to {most}",
                    group.parent, group.chain, group.bits, inode.ino
                );
                self.bad("group-invalid", place.clone(), what);
                break;
            }
            has.total = has.total.saturating_add(group.bits.into());
            has.free = has.free.saturating_add(group.free.into());
            clusters += self.check_group(inode, &group, unit)?;
            at = group.next;
        }
        Ok((has, clusters))
    }

    /// Checks a group, and claims its clusters. Returns how many these are.
    fn check_group(&mut self, inode: &Dinode, group: &Group<'_>, unit: Unit) -> Result<u64> {
        let sb = self.fs.sb.clone();
        let runs = group.used();
        let used: u32 = runs.iter().map(|(_, len)| u32::from(*len)).sum();
        if used + u32::from(group.free) != u32::from(group.bits) {
            let free = u32::from(group.bits) - used;
            let what = format!("the group counts {} free bits, its bitmap has {free}", group.free);
            self.bad("group-free-wrong", Place::inode(inode.ino).at(group.number), what);
        }
        if unit == Unit::Clusters {
            let is_first = group.number == sb.first_cluster_group;
            let base = if is_first { 0 } else { sb.cluster_of(group.number) };
            if !is_first {
                self.claim(inode.ino, base, 1);
            }
            for (first, len) in runs {
                self.used.set_run(base + u64::from(first), len.into());
            }
            return Ok(group.bits.into());
        }
        let mut clusters = 0;
        for (cluster, count) in group.clusters(&sb) {
            self.claim(inode.ino, cluster, count);
            clusters += count;
        }
        for bit in runs.iter().flat_map(|(first, len)| *first..first + len) {
            let Some(block) = group.block_of(bit, &sb) else {
                let what = format!("bit {bit} is in no piece of the group");
                self.bad("group-invalid", Place::inode(inode.ino).at(group.number), what);
                continue;
            };
            match unit {
                // Its own descriptor.
                _ if block == group.number => {}
                Unit::Inodes(slot) => self.check_inode(block, (slot, bit))?,
                _ => {
                    self.used_blocks.set_run(block, 1);
                }
            }
        }
        Ok(clusters)
    }

    /// Claims the clusters of a window that are free: the bitmap marks all of them as used.
    fn check_local_alloc(&mut self, inode: &Dinode, window: &[u8]) {
        let total = inode.id1 >> 32;
        let (start, bytes) = (u64::from(u32_at(window, 0)), u64::from(u16_at(window, 4)));
        if total == 0 {
            return;
        }
        let bitmap = &window[16..];
        if total > bytes * 8 || bytes > bitmap.len() as u64 || start + total > self.fs.sb.clusters.into() {
            let what =
                format!("the window of {total} clusters from {start} on is outside its bitmap or the device");
            return self.bad("local-alloc-invalid", Place::inode(inode.ino), what);
        }
        let mut used = 0;
        for bit in 0..total {
            if bitmap[(bit / 8) as usize] >> (bit % 8) & 1 == 0 {
                self.claim(inode.ino, start + bit, 1);
            } else {
                used += 1;
            }
        }
        let counted = inode.id1 & u64::from(u32::MAX);
        if used != counted {
            let what = format!("the window counts {counted} used clusters, its bitmap has {used}");
            self.bad("local-alloc-invalid", Place::inode(inode.ino), what);
        }
        self.found.note(format!("{total} clusters from {start} on are set aside for a slot"));
    }

    fn check_truncate_log(&mut self, inode: &Dinode, log: &[u8]) {
        let (count, used) = (usize::from(u16_at(log, 0)), usize::from(u16_at(log, 2)));
        let records = log[8..].chunks_exact(8);
        if used > count || count > records.len() {
            let what = format!("the log has {used} of {count} records, and room for {}", records.len());
            return self.bad("truncate-log-invalid", Place::inode(inode.ino), what);
        }
        let mut waiting = 0;
        for record in records.take(used) {
            let (start, clusters) = (u64::from(u32_at(record, 0)), u64::from(u32_at(record, 4)));
            // It was freed already.
            if start == 0 {
                continue;
            }
            if start + clusters > self.fs.sb.clusters.into() {
                let what = format!("{clusters} clusters from {start} on are outside the filesystem");
                self.bad("truncate-log-invalid", Place::inode(inode.ino), what);
                continue;
            }
            self.claim(inode.ino, start, clusters);
            waiting += clusters;
        }
        if waiting > 0 {
            self.found.note(format!("{waiting} clusters wait to be freed"));
        }
    }
}
