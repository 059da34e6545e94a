//! OPEN: plan, use of the VFS, commit.

use std::sync::Arc;

use ivers_nfs4::ops::OpResult;
use ivers_nfs4::ops::v40::{
    OpenArgs, OpenClaim, OpenDelegation, Opened, ReadDelegation, WhyNone, WriteDelegation, rflags, share,
};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Ace, SpaceLimit};

use super::core::Core;
use super::state_ops::{StateFrontEnd, client, principal};
use crate::compound::{Context, CurrentFh};
use crate::ops::open::{OpenTarget, OpenedFile, find};
use crate::state::{
    self, Claim, DelegationGrant, HolderAttrs, OpenPlan, OpenRequest, Principal, Step, WhyNoDelegation,
};

/// Attempts to use a name that changes concurrently, before NFS4ERR_DELAY.
const ATTEMPTS: usize = 8;
/// Flags in the access bits since NFSv4.1.
const WANT_FLAGS: u32 =
    share::WANT_MASK | share::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL | share::WANT_PUSH_DELEG_WHEN_UNCONTENDED;
/// Flags since NFSv4.2 (RFC 9754). They are accepted but not granted.
const RFC9754_WANT_FLAGS: u32 = share::WANT_DELEG_TIMESTAMPS | share::WANT_OPEN_XOR_DELEGATION;
/// `OPEN_DELEGATE_NONE_EXT`'s `WND4_NOT_WANTED`.
const NOT_WANTED: u32 = 0;

/// A plan that is aborted unless it is committed.
struct PlanGuard<'a> {
    core: &'a Arc<Core>,
    plan: Option<OpenPlan>,
}

impl Drop for PlanGuard<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            self.core.with(|state, now| state.open_abort(now, plan));
        }
    }
}

impl PlanGuard<'_> {
    fn commit(mut self, done: &OpenedFile, who: &Principal) -> Step<state::Opened> {
        let file = done.file.file();
        // Without a change attribute, the holder's answer to CB_GETATTR could not be compared.
        let delegate = self.core.delegations && done.file.vfs().change(&done.file.inode).is_some();
        for _ in 0..ATTEMPTS {
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
                    // Do not start over: the file may have been created.
                    self.core.retry_now(why)?;
                }
            }
        }
        Err(NfsStat::Delay.into())
    }
}

impl StateFrontEnd {
    /// OPEN.
    pub(super) fn open(&self, context: &mut Context, args: &OpenArgs) -> Step<OpResult> {
        let claim = match &args.claim {
            OpenClaim::Null(_) | OpenClaim::Fh => Claim::Null,
            OpenClaim::Previous(kind) => Claim::Previous(*kind),
            OpenClaim::DelegateCur(claim) => Claim::DelegateCur(context.resolve_stateid(&claim.stateid)?),
            OpenClaim::DelegCurFh(stateid) => Claim::DelegateCur(context.resolve_stateid(stateid)?),
            OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => return Err(NfsStat::Notsupp.into()),
        };
        let since_v41 = matches!(args.claim, OpenClaim::Fh | OpenClaim::DelegCurFh(_));
        if since_v41 && context.minor == 0 {
            return Err(NfsStat::Badxdr.into());
        }
        let want_flags = match context.minor {
            0 => 0,
            1 => args.share_access & WANT_FLAGS,
            _ => args.share_access & (WANT_FLAGS | RFC9754_WANT_FLAGS),
        };
        let request = OpenRequest {
            client: client(context, args.owner.clientid)?,
            owner: &args.owner.owner.0,
            access: args.share_access & !want_flags,
            deny: args.share_deny,
            wants: want_flags,
            claim,
            running: context.session.as_ref(),
        };
        let who = principal(&context.origin);
        let plan = self.0.with(|state, now| state.open_plan(now, &request))?;
        let planned = PlanGuard { core: &self.0, plan: Some(plan) };
        for _ in 0..ATTEMPTS {
            match find(context, args)? {
                OpenTarget::Existing(existing) => {
                    let (file, truncates) = (existing.file.file(), existing.truncates);
                    let Some(plan) = &planned.plan else { break };
                    self.0.with(|state, now| state.open_claim(now, plan, file, truncates))?;
                    let Some(done) = existing.open(context)? else { continue };
                    let opened = planned.commit(&done, &who)?;
                    return Ok(self.opened(context, want_flags, done, opened));
                }
                OpenTarget::Missing(missing) => {
                    let Some(plan) = &planned.plan else { break };
                    let (mut claimed, mut asked) = (Ok(()), false);
                    // The claim runs under the directory's lock. Its effects have to wait until that is
                    // released.
                    let made = missing.create(context, &mut |file| {
                        (claimed, asked) =
                            self.0.section(|state, now| state.open_claim(now, plan, file, false));
                    });
                    if asked {
                        self.0.run_effects();
                    }
                    let Some(done) = made? else { continue };
                    return match claimed.and_then(|()| planned.commit(&done, &who)) {
                        Ok(opened) => Ok(self.opened(context, want_flags, done, opened)),
                        Err(stop) => {
                            missing.undo(&done);
                            Err(stop)
                        }
                    };
                }
            }
        }
        Err(NfsStat::Delay.into())
    }

    fn opened(
        &self,
        context: &mut Context,
        want_flags: u32,
        done: OpenedFile,
        opened: state::Opened,
    ) -> OpResult {
        let OpenedFile { file, cinfo, attrset } = done;
        let no_permissions = || Ace { kind: 0, flags: 0, mask: 0, who: b"EVERYONE@".to_vec() };
        let delegation = match opened.delegation {
            DelegationGrant::Read(stateid) => {
                OpenDelegation::Read(ReadDelegation { stateid, recall: false, permissions: no_permissions() })
            }
            DelegationGrant::Write(stateid) => {
                // Read last: the client compares since_v41 values with what it gets here.
                let change = file.vfs().change(&file.inode).unwrap_or(0);
                let base = HolderAttrs { change, size: file.inode.size() };
                self.0.with(|state, _| state.set_granted_attrs(&stateid, base));
                OpenDelegation::Write(WriteDelegation {
                    stateid,
                    recall: false,
                    space_limit: SpaceLimit::Size(u64::MAX),
                    permissions: no_permissions(),
                })
            }
            // [RFC8881 18.16.3]
            DelegationGrant::None(_) if want_flags & share::WANT_MASK == 0 => OpenDelegation::None,
            DelegationGrant::None(WhyNoDelegation::NotWanted) => {
                OpenDelegation::NoneExt(WhyNone::Other(NOT_WANTED))
            }
            DelegationGrant::None(WhyNoDelegation::Contention) => {
                OpenDelegation::NoneExt(WhyNone::Contention(false))
            }
            DelegationGrant::None(WhyNoDelegation::Resource) => {
                OpenDelegation::NoneExt(WhyNone::Resource(false))
            }
        };
        let confirm = if opened.confirm { rflags::CONFIRM } else { 0 };
        let notify = if context.minor > 0 { rflags::MAY_NOTIFY_LOCK } else { 0 };
        context.set_current_fh(CurrentFh::Object(file));
        context.stateid = opened.stateid;
        let rflags = rflags::LOCKTYPE_POSIX | confirm | notify;
        OpResult::Open(Ok(Opened { stateid: opened.stateid, cinfo, rflags, attrset, delegation }))
    }
}
