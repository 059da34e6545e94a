//! Opens, planned and committed.

use std::collections::BTreeSet;

use ivers_nfs4::types::{ClientId, StateId};

use super::super::ids::Principal;
use super::slot::RequestId;

#[derive(Debug)]
pub(in crate::state) struct Open {
    pub owner: u64,
    pub access: u32,
    pub deny: u32,
    /// The (access, deny) pairs of its OPENs: bit `access * 4 + deny`. A downgrade must return to some of
    /// them.
    pub combinations: u16,
    /// The lock stateids under this open.
    pub locks: BTreeSet<u32>,
    /// The principals that opened it, hardly ever more than one.
    pub openers: Vec<Principal>,
}

impl Open {
    /// The access and deny bits.
    pub fn shares(&self) -> (u32, u32) {
        (self.access, self.deny)
    }

    pub fn add(&mut self, access: u32, deny: u32) {
        self.access |= access;
        self.deny |= deny;
        self.combinations |= 1 << (access * 4 + deny);
    }

    /// Returns the combinations within (access, deny), or `None` if their union is different.
    pub fn reduced(&self, access: u32, deny: u32) -> Option<u16> {
        let within = |bit: &u32| (bit / 4) & !access == 0 && (bit % 4) & !deny == 0;
        let left = (4..16).filter(|bit| self.combinations & 1 << bit != 0).filter(within);
        let (mut sum, mut union) = (0, (0, 0));
        for bit in left {
            sum |= 1 << bit;
            union = (union.0 | (bit / 4), union.1 | (bit % 4));
        }
        (union == (access, deny)).then_some(sum)
    }
}

/// The claim of an OPEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// CLAIM_NULL, CLAIM_FH.
    Null,
    /// CLAIM_PREVIOUS, with the requested delegation (`open_delegation_type4`).
    Previous(u32),
    /// CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH.
    DelegateCur(StateId),
}

/// The arguments of a planned OPEN.
#[derive(Debug, Clone)]
pub(in crate::state) struct PlannedOpen {
    pub client: ClientId,
    pub owner: Vec<u8>,
    pub access: u32,
    pub deny: u32,
    pub wants: u32,
    pub claim: Claim,
    pub request_id: Option<RequestId>,
    /// Its access to the file, including the write access of a truncation.
    pub effective_access: u32,
}
