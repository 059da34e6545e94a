//! Measurement and appraisal at the opens and closes of a mounted filesystem, as the kernel does it
//! (ima_main.c), whichever front end they come through.
//!
//! One lock a file, held while it is measured: an open for reading and one for writing see each other, in one
//! order or the other, and two readers measure it once. It ranks above all locks of the VFS, which calls a
//! [`FileObserver`] without any. What can go wrong, and what then: docs/ima.md.

use crate::digest::{Algorithm, Digest};
use crate::hash::{self, Subject, VfsFile};
use crate::keys::Keyring;
use crate::list::{Entry, Template};
use crate::policy::{Appraise, Decision, Func, Mask, Policy, Use};
use crate::signature::{self, Label, SECURITY_IMA};
use ivers_vfs::{
    Cred, Error, FileObserver, FileType, Ino, Inode, InodeRef, NameError, OpenMode, Result, Vfs, XattrMode,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where entries go.
pub trait Sink: Send + Sync {
    /// Keep an entry, unless it is there already. An error refuses the open that it is about, so that nothing
    /// is used that is in no list.
    fn record(&self, entry: &Entry) -> std::io::Result<()>;
    /// What is told of the list, in JSON.
    fn report(&self) -> String;
}

/// Files that are remembered while nobody has them open. More, and some are measured again.
const IDLE_MAX: usize = 1 << 20;

/// A front end may learn of a close only after close(2) has returned (FUSE): so long an open for reading
/// waits for the last writer to be gone.
const CLOSE_LAG: Duration = Duration::from_millis(50);

/// What to do, and how.
pub struct Hooks {
    policy: Policy,
    algorithm: Algorithm,
    keys: Keyring,
    /// Opens of what does not match are refused.
    enforce: bool,
    sink: Box<dyn Sink>,
    files: Mutex<HashMap<Ino, Arc<Known>>>,
    /// Somebody waits for a close: one at a time, or closes would find nobody to serve them.
    waits: AtomicBool,
}

/// A file that is open, or was measured.
struct Known {
    generation: u32,
    state: Mutex<State>,
    /// The last writer has gone.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    /// Opens that can read and not write, as the kernel's `i_readcount`.
    readers: u32,
    /// Opens that can write.
    writers: u32,
    /// Made in this mount, and not complete yet (IMA_NEW_FILE).
    is_new: bool,
    /// What was found when it was read last.
    found: Option<Found>,
    /// The template of the entry that says so, if one does.
    recorded: Option<Template>,
    /// Somebody reads what was measured: a writer spoils that, once (IMA_MAY_EMIT_TOMTOU).
    may_spoil: bool,
    /// That it was read while it was open for writing has been said (IMA_EMITTED_OPENWRITERS).
    spoilt: bool,
    /// Who opened it for writing last: on whose behalf it is measured once it is complete.
    writer: Option<(u32, u32)>,
}

struct Found {
    /// None: nothing vouches for it.
    change: Option<u64>,
    digest: Digest,
    label: Vec<u8>,
    verdict: Option<(Appraise, std::result::Result<(), String>)>,
}

impl State {
    fn is_idle(&self) -> bool {
        self.readers == 0 && self.writers == 0
    }
}

impl Hooks {
    /// Measure as the policy says. With `enforce` what it appraises is refused if it does not match.
    pub fn new(
        policy: Policy,
        algorithm: Algorithm,
        keys: Keyring,
        enforce: bool,
        sink: Box<dyn Sink>,
    ) -> Self {
        let policy = if enforce { policy.with_appraise_all() } else { policy.without_appraise() };
        let files = Mutex::default();
        Self { policy, algorithm, keys, enforce, sink, files, waits: AtomicBool::new(false) }
    }

    fn known(&self, inode: &Inode) -> Arc<Known> {
        let mut files = self.files.lock();
        if let Some(known) = files.get(&inode.ino)
            && known.generation == inode.generation
        {
            return known.clone();
        }
        if files.len() >= IDLE_MAX {
            // Who is being opened is counted by the reference that he holds.
            files.retain(|_, known| {
                Arc::strong_count(known) > 1 || known.state.try_lock().is_none_or(|state| !state.is_idle())
            });
        }
        let known = Arc::new(Known::new(inode, State::default()));
        files.insert(inode.ino, known.clone());
        known
    }

    fn decide(
        &self,
        vfs: &Vfs,
        (uid, gid): (u32, u32),
        inode: &InodeRef,
        mode: OpenMode,
        path: Option<&[u8]>,
    ) -> Decision {
        let attr = vfs.stat(inode);
        let info = vfs.info();
        let used = Use {
            func: Func::FileCheck,
            mask: Mask::from_bits_truncate(mode.bits()),
            uid,
            gid,
            fowner: attr.uid,
            fgroup: attr.gid,
            fsuuid: info.uuid,
            fsname: info.fs_type,
            path,
        };
        let decision = self.policy.decide(&used);
        if mode.contains(OpenMode::EXECUTE) {
            decision.or(self.policy.decide(&Use { func: Func::BprmCheck, mask: Mask::EXEC, ..used }))
        } else {
            decision
        }
    }

    fn record(&self, entry: &Entry) -> Result<()> {
        self.sink.record(entry).map_err(|error| {
            Error::Io(format!("the measurement list takes no more, so nothing may be opened: {error}").into())
        })
    }

    fn violate(&self, template: Template, path: &[u8], cause: &str) -> Result<()> {
        log::warn!("{}: {cause}", String::from_utf8_lossy(path));
        self.record(&Entry::violation(template, self.algorithm, path))
    }

    /// Have `found` say what the file contains now.
    fn refresh(&self, vfs: &Vfs, inode: &InodeRef, state: &mut State, path: &[u8]) -> Result<()> {
        let mut inside = VfsFile { vfs, inode };
        let now = inside.identity()?.change;
        // Compared with what vouched when it was read: no number is no "unchanged".
        if now.is_some() && state.found.as_ref().is_some_and(|found| found.change == now) {
            return Ok(());
        }
        let taken = hash::hash_file(&mut inside, self.algorithm)?;
        state.recorded = None;
        if taken.moved {
            self.violate(self.policy.template(), path, "it changed each time it was read")?;
        }
        let change = taken.identity.change;
        state.found = Some(Found { change, digest: taken.digest, label: taken.label, verdict: None });
        Ok(())
    }

    /// Put what was found into the list, once.
    fn list(&self, state: &mut State, template: Template, path: &[u8]) -> Result<()> {
        let Some(found) = state.found.as_ref().filter(|_| state.recorded != Some(template)) else {
            return Ok(());
        };
        let signature = signature::listed(&found.label);
        self.record(&Entry::measured(template, &found.digest, path, signature))?;
        state.recorded = Some(template);
        Ok(())
    }

    /// Whether what was found is what its label says.
    fn appraise(&self, state: &mut State, wanted: Appraise, size: u64, path: &[u8]) -> Result<()> {
        let is_new = state.is_new;
        let Some(found) = &mut state.found else { return Ok(()) };
        // A new file gets its label when it is complete.
        if is_new && found.label.is_empty() && (wanted == Appraise::Digest || size == 0) {
            return Ok(());
        }
        let verdict = match &found.verdict {
            Some((was_wanted, verdict)) if *was_wanted == wanted => verdict.clone(),
            _ => {
                let verdict = signature::appraise(&found.label, &found.digest, wanted, &self.keys);
                let verdict = verdict.map_err(|mismatch| mismatch.to_string());
                found.verdict = Some((wanted, verdict.clone()));
                verdict
            }
        };
        verdict.map_err(|why| {
            log::warn!("{}: not opened: {why}", String::from_utf8_lossy(path));
            NameError::Access.into()
        })
    }

    /// The close of the last writer may be on its way behind this open.
    fn wait_for_writers(&self, known: &Known, state: &mut MutexGuard<'_, State>) {
        if self.waits.swap(true, Ordering::Acquire) {
            return;
        }
        let until = Instant::now() + CLOSE_LAG;
        while state.writers > 0 && !known.closed.wait_until(state, until).timed_out() {}
        self.waits.store(false, Ordering::Release);
    }

    /// The last writer is gone: what he changed is measured now, so that the list has it although nobody may
    /// ever open it again.
    fn complete(&self, vfs: &Vfs, inode: &InodeRef, state: &mut State) -> Result<()> {
        let is_new = std::mem::take(&mut state.is_new);
        if !is_new && state.found.is_none() {
            return Ok(());
        }
        if vfs.stat(inode).nlink == 0 {
            state.found = None;
            return Ok(());
        }
        let path = vfs.path_of(inode);
        // What a reader would ask for; what was measured before is measured again in any case.
        let decision =
            self.decide(vfs, state.writer.unwrap_or_default(), inode, OpenMode::READ, path.as_deref());
        let path = name_of(inode, path);
        let measure = state.recorded.or(decision.measure);
        let before = state.found.as_ref().map(|found| (found.change, found.label.clone()));
        if measure.is_none() && decision.appraise.is_none() {
            state.found = None;
            return Ok(());
        }
        self.refresh(vfs, inode, state, &path)?;
        if let Some(template) = measure {
            self.list(state, template, &path)?;
        }
        let Some(found) = &state.found else { return Ok(()) };
        let rests = before.is_some_and(|(change, _)| change.is_some() && change == found.change);
        let is_signed = signature::listed(&found.label).is_some();
        if self.enforce && !rests && decision.appraise == Some(Appraise::Digest) && !is_signed {
            self.relabel(vfs, inode, state);
        }
        Ok(())
    }

    /// A file that was written by somebody who could open it is what it shall be (ima_update_xattr). Signed
    /// ones are not: whoever writes to one has spoilt it.
    fn relabel(&self, vfs: &Vfs, inode: &InodeRef, state: &mut State) {
        let Some(found) = &mut state.found else { return };
        let label = Label::encode_digest(&found.digest);
        if found.label == label || vfs.is_read_only() {
            return;
        }
        if let Err(error) = vfs.set_xattr(&Cred::root(), inode, SECURITY_IMA, &label, XattrMode::Any) {
            log::warn!("inode {}: security.ima cannot be set, it will not open again: {error}", inode.ino);
        }
        // The label is a change too: what vouched before does so no longer.
        (found.change, found.verdict) = (None, None);
    }
}

impl Known {
    fn new(inode: &Inode, state: State) -> Self {
        Self { generation: inode.generation, state: Mutex::new(state), closed: Condvar::new() }
    }
}

/// The name that an entry gets.
fn name_of(inode: &Inode, path: Option<Vec<u8>>) -> Vec<u8> {
    path.unwrap_or_else(|| format!("inode:{}", inode.ino).into_bytes())
}

impl FileObserver for Hooks {
    fn on_open(&self, vfs: &Vfs, cred: &Cred, inode: &InodeRef, mode: OpenMode) -> Result<()> {
        let known = self.known(inode);
        let mut state = known.state.lock();
        let writes = mode.contains(OpenMode::WRITE);
        let path = vfs.path_of(inode);
        let who = (cred.uid, cred.gid);
        let decision = self.decide(vfs, who, inode, mode, path.as_deref());
        let path = name_of(inode, path);
        if writes {
            if state.readers > 0 && std::mem::take(&mut state.may_spoil) {
                let template = state.recorded.unwrap_or(self.policy.template());
                self.violate(template, &path, "ToMToU: opened for writing while it is read")?;
            }
        } else if let Some(template) = decision.measure
            && state.writers > 0
            && !state.spoilt
        {
            self.wait_for_writers(&known, &mut state);
            if state.writers > 0 {
                self.violate(template, &path, "open_writers: read while it is open for writing")?;
                state.spoilt = true;
            }
        }
        // Its maker has nothing to be told of it: it is measured when it is complete.
        let is_its_maker = state.is_new && writes;
        if !decision.is_idle() && !is_its_maker {
            self.refresh(vfs, inode, &mut state, &path)?;
            if let Some(template) = decision.measure {
                self.list(&mut state, template, &path)?;
            }
            if let Some(wanted) = decision.appraise {
                self.appraise(&mut state, wanted, inode.size(), &path)?;
            }
        }
        if writes {
            state.writers += 1;
            state.writer = Some(who);
        } else {
            state.readers += 1;
            state.may_spoil |= decision.measure.is_some();
        }
        Ok(())
    }

    fn on_close(&self, vfs: &Vfs, inode: &InodeRef, mode: OpenMode) {
        let known = self.known(inode);
        let mut state = known.state.lock();
        if !mode.contains(OpenMode::WRITE) {
            state.readers = state.readers.saturating_sub(1);
            return;
        }
        state.writers = state.writers.saturating_sub(1);
        if state.writers > 0 {
            return;
        }
        state.spoilt = false;
        if let Err(error) = self.complete(vfs, inode, &mut state) {
            // Whoever opens it next measures it, or is refused.
            state.found = None;
            state.recorded = None;
            log::error!("inode {}: not measured at its last writer's close: {error}", inode.ino);
        }
        known.closed.notify_all();
    }

    fn on_create(&self, inode: &Inode) {
        if inode.kind == FileType::Regular {
            let state = State { is_new: true, ..State::default() };
            self.files.lock().insert(inode.ino, Arc::new(Known::new(inode, state)));
        }
    }

    fn on_delete(&self, ino: Ino) {
        self.files.lock().remove(&ino);
    }

    fn report(&self) -> String {
        self.sink.report()
    }
}
