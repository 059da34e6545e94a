//! Blocks that are claimed before a transaction takes them.

use super::common::V5;
use super::harness::*;
use super::space::{change, have_tools};
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::write::alloc::{AllocRequest, Run};
use crate::write::claims::Claim;
use crate::write::space::Space;

const MOST_CLAIMS: usize = 8;

fn run_of(space: &Space, claim: &Claim<'_>) -> Run {
    Run { start: space.sb.fs_block(claim.ag, claim.extent.start), len: claim.extent.len }
}

fn overlap(a: Run, b: Run) -> bool {
    a.start.0 < b.start.0 + u64::from(b.len) && b.start.0 < a.start.0 + u64::from(a.len)
}

/// Random changes beside claims: no file gets claimed blocks, and no B-tree, or the claims could not be
/// allocated. Returns how many were, and how often there was no space for a change.
fn change_beside_claims(random: &mut Seeded, image: &Image, longest: u32) -> (u32, u32) {
    let mut files = TestFile::all(image);
    let space = image.open();
    let (mut claims, mut allocated, mut refused) = (Vec::<Claim<'_>>::new(), 0, 0);
    for _ in 0..600 {
        let mut tx = space.begin(space.credits_of_change()).unwrap();
        let at = random.below(files.len() as u32) as usize;
        let file = &mut files[at];
        let ag = random.below(space.sb.ag_count);
        if random.one_in(4) {
            tx.fill_pool(space.sb.fs_block(ag, random.below(space.sb.ag_len(ag)))).unwrap();
        }
        let full = file.extents.len() + 1 >= TestFile::most_extents(&space.sb);
        let mut used = None;
        if !full && random.one_in(2) && !claims.is_empty() {
            let claim = claims.swap_remove(random.below(claims.len() as u32) as usize);
            let extent =
                FileExtent { file_block: file.next_block(), run: run_of(&space, &claim), unwritten: false };
            if tx.allocate_claim(&claim, extent.owner(file.ino)).unwrap() {
                file.extents.push(extent);
                allocated += 1;
            }
            used = Some(claim);
        } else {
            let before = file.extents.len();
            change(random, &mut tx, file, longest);
            refused += u32::from(!full && file.extents.len() == before);
        }
        files[at].store(&mut tx);
        tx.finish().unwrap();
        drop(used);
        if claims.len() < MOST_CLAIMS {
            claims.extend(space.claims.take(ag, 1 + random.below(16)));
        }
        let runs = files.iter().flat_map(|file| &file.extents).map(|extent| extent.run);
        for run in runs {
            let taken = claims.iter().find(|claim| overlap(run, run_of(&space, claim)));
            assert!(taken.is_none(), "{run:?} overlaps {taken:?}");
        }
    }
    drop(claims);
    close(space);
    image.judge("claims");
    image.empty(&mut files, "claims");
    (allocated, refused)
}

#[test]
fn nobody_gets_claimed_blocks() {
    if !have_tools() {
        return;
    }
    for (name, args) in V5 {
        let mut random = Seeded::new(name);
        let (allocated, _) = change_beside_claims(&mut random, &Image::new(args, 40), 40);
        assert!(allocated > 50, "{name}: {allocated} claims");
    }
}

#[test]
fn a_full_filesystem_gives_its_pools_to_files() {
    if !have_tools() {
        return;
    }
    for (name, args) in V5.iter().take(6) {
        let mut random = Seeded::new(name);
        let (allocated, refused) = change_beside_claims(&mut random, &Image::new(args, 200), 8000);
        assert!(allocated > 5 && refused > 5, "{name}: {allocated} claims, {refused} refused");
    }
    // All that is free for a file, with and without a pool.
    let image = Image::new(&[], 1);
    let most = |with_pool: bool| {
        let space = image.open();
        let mut tx = space.begin(space.credits_of_change()).unwrap();
        if with_pool {
            tx.fill_pool(FsBlock(100)).unwrap();
            drop(space.claims.take(0, 1).unwrap());
        }
        let owner = Owner::data(image.inos[0], 0);
        let mut sum = 0;
        loop {
            let request = AllocRequest { goal: FsBlock(0), min: 1, max: 1 << 20, alignment: 1, owner };
            match tx.allocate(request).unwrap() {
                Some(run) => sum += u64::from(run.len),
                None => return sum,
            }
        }
    };
    // More extents have more records in B-trees. The pool alone is 256 blocks.
    let (with_pool, without) = (most(true), most(false));
    assert!(with_pool + 16 > without, "{with_pool} blocks, and {without} without a pool");
}
