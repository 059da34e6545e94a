//! OPEN: a plan, what the VFS does, and the commit.

use std::sync::Arc;

use ivers_nfs4::ops::OpResult;
use ivers_nfs4::ops::v40::{
    OpenArgs, OpenClaim, OpenDelegation, Opened, ReadDelegation, WhyNone, WriteDelegation, rflags, share,
};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Ace, SpaceLimit};

use super::clients::{Front, client, principal, running};
use super::core::Core;
use crate::compound::{Context, Place};
use crate::ops::open::{Done, Found, find};
use crate::state::{self, Answer, Claim, Granted, OpenRequest, Plan, Principal, Step, Turn, Why};

/// So often a name may mean something else by the time it is used; then the client comes again.
const TRIES: usize = 8;
/// What is said beside the access since NFSv4.1.
const WANTS: u32 =
    share::WANT_MASK | share::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL | share::WANT_PUSH_DELEG_WHEN_UNCONTENDED;
/// What may be said beside since NFSv4.2 (RFC 9754). These wishes are not granted, which their clients see by what they get.
const LATER_WANTS: u32 = share::WANT_DELEG_TIMESTAMPS | share::WANT_OPEN_XOR_DELEGATION;
/// `OPEN_DELEGATE_NONE_EXT`'s `WND4_NOT_WANTED`.
const NOT_WANTED: u32 = 0;

/// A plan that is aborted unless it is committed.
struct Planned<'a> {
    core: &'a Arc<Core>,
    plan: Option<Plan>,
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            self.core.with(|state, now| state.open_abort(now, plan));
        }
    }
}

impl Planned<'_> {
    fn commit(mut self, done: &Done, who: &Principal) -> Step<state::Opened> {
        let file = done.file.file();
        // Without a change attribute its holder's answers could not be compared with anything.
        let delegate = self.core.delegations && done.file.vfs().change(&done.file.inode).is_some();
        for _ in 0..TRIES {
            let Some(plan) = self.plan.take() else { break };
            let committed = self.core.with(|state, now| {
                let opened = state.open_commit(now, plan, file, delegate)?;
                state.opened_as(&opened.stateid, who);
                Ok(opened)
            });
            match committed {
                Ok(opened) => return Ok(opened),
                Err((plan, why)) => {
                    self.plan = Some(plan);
                    // Here and not from the start: that a file was made must not be forgotten.
                    self.core.passed(why)?;
                }
            }
        }
        Err(NfsStat::Delay.into())
    }
}

impl Front {
    /// OPEN.
    pub(super) fn open(&self, context: &mut Context, args: &OpenArgs, turn: Option<&Turn>) -> Step<OpResult> {
        let claim = match &args.claim {
            OpenClaim::Null(_) | OpenClaim::Fh => Claim::Fresh,
            OpenClaim::Previous(kind) => Claim::Previous(*kind),
            OpenClaim::DelegateCur(claim) => Claim::Delegated(context.meant(&claim.stateid)?),
            OpenClaim::DelegCurFh(stateid) => Claim::Delegated(context.meant(stateid)?),
            OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => return Err(NfsStat::Notsupp.into()),
        };
        let later = matches!(args.claim, OpenClaim::Fh | OpenClaim::DelegCurFh(_));
        if later && context.minor == 0 {
            return Err(NfsStat::Badxdr.into());
        }
        let wants = match context.minor {
            0 => 0,
            1 => args.share_access & WANTS,
            _ => args.share_access & (WANTS | LATER_WANTS),
        };
        let request = OpenRequest {
            client: client(context, args.owner.clientid)?,
            owner: &args.owner.owner.0,
            access: args.share_access & !wants,
            deny: args.share_deny,
            wants,
            claim,
            running: running(context),
            turn,
        };
        let who = principal(&context.origin);
        let plan = self.0.with(|state, now| state.open_plan(now, &request))?;
        let planned = Planned { core: &self.0, plan: Some(plan) };
        for _ in 0..TRIES {
            match find(context, args)? {
                Found::There(there) => {
                    let (file, truncates) = (there.file.file(), there.truncates);
                    let Some(plan) = &planned.plan else { break };
                    self.0.with(|state, now| state.open_claim(now, plan, file, truncates))?;
                    let Some(done) = there.open(context)? else { continue };
                    let opened = planned.commit(&done, &who)?;
                    return Ok(self.opened(context, wants, done, opened));
                }
                Found::Missing(missing) => {
                    let Some(plan) = &planned.plan else { break };
                    let (mut claimed, mut asked) = (Ok(()), false);
                    // It is said under the directory's lock: what `state` asks for has to wait until that is let go.
                    let made = missing.make(context, &mut |file| {
                        (claimed, asked) =
                            self.0.section(|state, now| state.open_claim(now, plan, file, false));
                    });
                    if asked {
                        self.0.carry_out();
                    }
                    let Some(done) = made? else { continue };
                    return match claimed.and_then(|()| planned.commit(&done, &who)) {
                        Ok(opened) => Ok(self.opened(context, wants, done, opened)),
                        Err(stop) => {
                            missing.unmake(&done);
                            Err(stop)
                        }
                    };
                }
            }
        }
        Err(NfsStat::Delay.into())
    }

    fn opened(&self, context: &mut Context, wants: u32, done: Done, opened: state::Opened) -> OpResult {
        let Done { file, cinfo, attrset } = done;
        let nobody = || Ace { kind: 0, flags: 0, mask: 0, who: b"EVERYONE@".to_vec() };
        let delegation = match opened.delegation {
            Granted::Read(stateid) => {
                OpenDelegation::Read(ReadDelegation { stateid, recall: false, permissions: nobody() })
            }
            Granted::Write(stateid) => {
                // Last of all: what he is told is what he compares with.
                let change = file.vfs().change(&file.inode).unwrap_or(0);
                let base = Answer { change, size: file.inode.size() };
                self.0.with(|state, _| state.delegation_base(&stateid, base));
                OpenDelegation::Write(WriteDelegation {
                    stateid,
                    recall: false,
                    space_limit: SpaceLimit::Size(u64::MAX),
                    permissions: nobody(),
                })
            }
            // [RFC8881 18.16.3]
            Granted::None(_) if wants & share::WANT_MASK == 0 => OpenDelegation::None,
            Granted::None(Why::NotWanted) => OpenDelegation::NoneExt(WhyNone::Other(NOT_WANTED)),
            Granted::None(Why::Contention) => OpenDelegation::NoneExt(WhyNone::Contention(false)),
            Granted::None(Why::Resource) => OpenDelegation::NoneExt(WhyNone::Resource(false)),
        };
        let confirm = if opened.confirm { rflags::CONFIRM } else { 0 };
        let notify = if context.minor > 0 { rflags::MAY_NOTIFY_LOCK } else { 0 };
        context.go(Place::Object(file));
        context.stateid = opened.stateid;
        let rflags = rflags::LOCKTYPE_POSIX | confirm | notify;
        OpResult::Open(Ok(Opened { stateid: opened.stateid, cinfo, rflags, attrset, delegation }))
    }
}
