//! Measurement and appraisal at the opens and closes of a mounted filesystem, through all front ends, with
//! the rules of the kernel's ima_main.c.
//!
//! Each file has a lock that is held while the file is measured. So of an open for reading and a concurrent
//! open for writing, the second sees the first; and two readers measure the file once. The lock ranks above
//! all locks of the VFS, because the VFS calls a [`FileObserver`] without holding any. Races and failures are
//! described in docs/ima.md.

use crate::digest::{Algorithm, Digest};
use crate::hash::{self, MeasuredFile, VfsFile};
use crate::keys::Keyring;
use crate::list::{Entry, Template};
use crate::policy::{Appraise, Decision, FileAccess, Func, Mask, Policy};
use crate::signature::{self, Label, SECURITY_IMA};
use ivers_vfs::{
    Cred, Error, FileObserver, FileType, Ino, Inode, InodeRef, NameError, OpenMode, Result, Vfs, XattrMode,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The measurement list of a mount.
pub trait Sink: Send + Sync {
    /// Adds an entry unless the list has it. On error the open fails, so that every used file is in the list.
    fn record(&self, entry: &Entry) -> std::io::Result<()>;
    /// Returns a description of the list, in JSON.
    fn report(&self) -> String;
}

/// How many files are remembered. Above that, files that are not open are forgotten and measured again at
/// their next open.
const IDLE_MAX: usize = 1 << 20;

/// How long an open waits for the close of the last writer or reader. FUSE reports a close to the front end
/// only after close(2) has returned.
const CLOSE_LAG: Duration = Duration::from_millis(50);

/// The observer of a mount's opens and closes.
pub struct Hooks {
    policy: Policy,
    algorithm: Algorithm,
    keys: Keyring,
    /// Refuses opens of files that do not match their label.
    enforce: bool,
    sink: Box<dyn Sink>,
    files: Mutex<HashMap<Ino, Arc<TrackedFile>>>,
    /// A thread waits for a close. Only one may: if all threads of a front end waited, none could serve the
    /// close.
    is_waiting: AtomicBool,
}

/// What is remembered of a file that is open or was measured.
struct TrackedFile {
    generation: u32,
    state: Mutex<FileState>,
    /// Signalled when the last reader or the last writer closes.
    closed: Condvar,
}

#[derive(Default)]
struct FileState {
    /// Opens for reading only, like the kernel's `i_readcount`.
    readers: u32,
    /// Opens for writing.
    writers: u32,
    /// Created in this mount, before the last writer's first close (IMA_NEW_FILE).
    is_new: bool,
    /// The latest measurement.
    measurement: Option<Measurement>,
    /// The template of the list entry for the latest measurement, if there is one.
    recorded: Option<Template>,
    /// An open for writing is a violation, because a measured file is open for reading (IMA_MAY_EMIT_TOMTOU).
    /// Recording the violation clears this.
    may_emit_tomtou: bool,
    /// The violation `open_writers` is recorded (IMA_EMITTED_OPENWRITERS).
    emitted_open_writers: bool,
    /// User and group of the last open for writing: the policy judges the last close by them.
    writer_ids: Option<(u32, u32)>,
}

struct Measurement {
    /// The change attribute that the digest is valid for, if there is one.
    change: Option<u64>,
    digest: Digest,
    label: Vec<u8>,
    verdict: Option<(Appraise, std::result::Result<(), String>)>,
}

impl FileState {
    fn is_idle(&self) -> bool {
        self.readers == 0 && self.writers == 0
    }
}

impl Hooks {
    /// Creates an observer. `enforce` refuses opens of files that do not match their label; without it the
    /// policy's rules on appraisal are ignored. `algorithm` is for files whose label names none.
    pub fn new(
        policy: Policy,
        algorithm: Algorithm,
        keys: Keyring,
        enforce: bool,
        sink: Box<dyn Sink>,
    ) -> Self {
        let policy = if enforce { policy.with_appraise_all() } else { policy.without_appraise() };
        let files = Mutex::default();
        Self { policy, algorithm, keys, enforce, sink, files, is_waiting: AtomicBool::new(false) }
    }

    fn tracked(&self, inode: &Inode) -> Arc<TrackedFile> {
        let mut files = self.files.lock();
        if let Some(tracked) = files.get(&inode.ino)
            && tracked.generation == inode.generation
        {
            return tracked.clone();
        }
        if files.len() >= IDLE_MAX {
            // A second reference means that the file is being opened at this moment.
            files.retain(|_, tracked| {
                Arc::strong_count(tracked) > 1
                    || tracked.state.try_lock().is_none_or(|state| !state.is_idle())
            });
        }
        let tracked = Arc::new(TrackedFile::new(inode, FileState::default()));
        files.insert(inode.ino, tracked.clone());
        tracked
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
        let access = FileAccess {
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
        let decision = self.policy.decide(&access);
        if mode.contains(OpenMode::EXECUTE) {
            decision.or(self.policy.decide(&FileAccess { func: Func::BprmCheck, mask: Mask::EXEC, ..access }))
        } else {
            decision
        }
    }

    fn record(&self, entry: &Entry) -> Result<()> {
        self.sink.record(entry).map_err(|error| {
            Error::Io(format!("measurement list: cannot add an entry, so the open fails: {error}").into())
        })
    }

    fn record_violation(&self, template: Template, path: &[u8], cause: &str) -> Result<()> {
        log::warn!("{}: {cause}", String::from_utf8_lossy(path));
        self.record(&Entry::violation(template, self.algorithm, path))
    }

    /// Makes `state.measurement` current: reads the file unless its change attribute shows that it is.
    fn measure(&self, vfs: &Vfs, inode: &InodeRef, state: &mut FileState, path: &[u8]) -> Result<()> {
        let mut file = VfsFile { vfs, inode };
        let now = file.identity()?.change;
        // A file without a change attribute is read each time.
        if now.is_some() && state.measurement.as_ref().is_some_and(|measurement| measurement.change == now) {
            return Ok(());
        }
        let hashed = hash::hash_file(&mut file, self.algorithm)?;
        state.recorded = None;
        if hashed.unstable {
            self.record_violation(self.policy.template(), path, "changed during every attempt to read it")?;
        }
        let change = hashed.identity.change;
        state.measurement =
            Some(Measurement { change, digest: hashed.digest, label: hashed.label, verdict: None });
        Ok(())
    }

    /// Adds the latest measurement to the list unless that was done.
    fn add_to_list(&self, state: &mut FileState, template: Template, path: &[u8]) -> Result<()> {
        let Some(measurement) = state.measurement.as_ref().filter(|_| state.recorded != Some(template))
        else {
            return Ok(());
        };
        let signature = signature::signature_field(&measurement.label);
        self.record(&Entry::measured(template, &measurement.digest, path, signature))?;
        state.recorded = Some(template);
        Ok(())
    }

    /// Refuses a file whose latest measurement does not match its label.
    fn appraise(&self, state: &mut FileState, required: Appraise, size: u64, path: &[u8]) -> Result<()> {
        let is_new = state.is_new;
        let Some(measurement) = &mut state.measurement else { return Ok(()) };
        // A new file gets its label at the last writer's close.
        if is_new && measurement.label.is_empty() && (required == Appraise::Digest || size == 0) {
            return Ok(());
        }
        let verdict = match &measurement.verdict {
            Some((for_required, verdict)) if *for_required == required => verdict.clone(),
            _ => {
                let verdict =
                    signature::appraise(&measurement.label, &measurement.digest, required, &self.keys);
                let verdict = verdict.map_err(|mismatch| mismatch.to_string());
                measurement.verdict = Some((required, verdict.clone()));
                verdict
            }
        };
        verdict.map_err(|why| {
            log::warn!("{}: open refused: {why}", String::from_utf8_lossy(path));
            NameError::Access.into()
        })
    }

    /// Waits up to [`CLOSE_LAG`] until `is_open` is false, because the last close may arrive late. One open
    /// at a time waits: others return at once.
    fn wait_for_closes(
        &self,
        tracked: &TrackedFile,
        state: &mut MutexGuard<'_, FileState>,
        is_open: impl Fn(&FileState) -> bool,
    ) {
        if self.is_waiting.swap(true, Ordering::Acquire) {
            return;
        }
        let until = Instant::now() + CLOSE_LAG;
        while is_open(state) && !tracked.closed.wait_until(state, until).timed_out() {}
        self.is_waiting.store(false, Ordering::Release);
    }

    /// Measures a file after its last writer's close, so that the list has the new contents even if the file
    /// is never opened again.
    fn after_last_writer(&self, vfs: &Vfs, inode: &InodeRef, state: &mut FileState) -> Result<()> {
        let is_new = std::mem::take(&mut state.is_new);
        if !is_new && state.measurement.is_none() {
            return Ok(());
        }
        if vfs.stat(inode).nlink == 0 {
            state.measurement = None;
            return Ok(());
        }
        let path = vfs.path_of(inode);
        // The policy is consulted as for a reader. A file that was measured before is measured in any case.
        let decision =
            self.decide(vfs, state.writer_ids.unwrap_or_default(), inode, OpenMode::READ, path.as_deref());
        let path = entry_path(inode, path);
        let measure = state.recorded.or(decision.measure);
        let before = state.measurement.as_ref().map(|found| (found.change, found.label.clone()));
        if measure.is_none() && decision.appraise.is_none() {
            state.measurement = None;
            return Ok(());
        }
        self.measure(vfs, inode, state, &path)?;
        if let Some(template) = measure {
            self.add_to_list(state, template, &path)?;
        }
        let Some(measurement) = &state.measurement else { return Ok(()) };
        let is_unchanged = before.is_some_and(|(change, _)| change.is_some() && change == measurement.change);
        let is_signed = signature::signature_field(&measurement.label).is_some();
        if self.enforce && !is_unchanged && decision.appraise == Some(Appraise::Digest) && !is_signed {
            self.update_label(vfs, inode, state);
        }
        Ok(())
    }

    /// Sets the label to the digest of the new contents (ima_update_xattr). The writer passed appraisal when
    /// it opened the file. The caller excludes signed files, because a digest would replace the signature.
    fn update_label(&self, vfs: &Vfs, inode: &InodeRef, state: &mut FileState) {
        let Some(measurement) = &mut state.measurement else { return };
        let label = Label::encode_digest(&measurement.digest);
        if measurement.label == label || vfs.is_read_only() {
            return;
        }
        if let Err(error) = vfs.set_xattr(&Cred::root(), inode, SECURITY_IMA, &label, XattrMode::Any) {
            log::warn!("inode {}: cannot set security.ima, so later opens are refused: {error}", inode.ino);
        }
        // Setting the label changed the file, so the measurement is no longer valid.
        (measurement.change, measurement.verdict) = (None, None);
    }
}

impl TrackedFile {
    fn new(inode: &Inode, state: FileState) -> Self {
        Self { generation: inode.generation, state: Mutex::new(state), closed: Condvar::new() }
    }
}

/// Returns the path for a list entry.
fn entry_path(inode: &Inode, path: Option<Vec<u8>>) -> Vec<u8> {
    path.unwrap_or_else(|| format!("inode:{}", inode.ino).into_bytes())
}

impl FileObserver for Hooks {
    fn on_open(&self, vfs: &Vfs, cred: &Cred, inode: &InodeRef, mode: OpenMode) -> Result<()> {
        let tracked = self.tracked(inode);
        let mut state = tracked.state.lock();
        let writes = mode.contains(OpenMode::WRITE);
        let path = vfs.path_of(inode);
        let ids = (cred.uid, cred.gid);
        let decision = self.decide(vfs, ids, inode, mode, path.as_deref());
        let path = entry_path(inode, path);
        if writes {
            if state.readers > 0 && state.may_emit_tomtou {
                self.wait_for_closes(&tracked, &mut state, |state| state.readers > 0);
            }
            if state.readers > 0 && std::mem::take(&mut state.may_emit_tomtou) {
                let template = state.recorded.unwrap_or(self.policy.template());
                self.record_violation(template, &path, "ToMToU: opened for writing while open for reading")?;
            }
        } else if let Some(template) = decision.measure
            && state.writers > 0
            && !state.emitted_open_writers
        {
            self.wait_for_closes(&tracked, &mut state, |state| state.writers > 0);
            // Another reader may have recorded it meanwhile.
            if state.writers > 0 && !state.emitted_open_writers {
                self.record_violation(
                    template,
                    &path,
                    "open_writers: opened for reading while open for writing",
                )?;
                state.emitted_open_writers = true;
            }
        }
        // A new file is measured at the last writer's close, not at its creator's open.
        let is_creator = state.is_new && writes;
        if !decision.is_empty() && !is_creator {
            self.measure(vfs, inode, &mut state, &path)?;
            if let Some(template) = decision.measure {
                self.add_to_list(&mut state, template, &path)?;
            }
            if let Some(required) = decision.appraise {
                self.appraise(&mut state, required, inode.size(), &path)?;
            }
        }
        if writes {
            state.writers += 1;
            state.writer_ids = Some(ids);
        } else {
            state.readers += 1;
            state.may_emit_tomtou |= decision.measure.is_some();
        }
        Ok(())
    }

    fn on_close(&self, vfs: &Vfs, inode: &InodeRef, mode: OpenMode) {
        let tracked = self.tracked(inode);
        let mut state = tracked.state.lock();
        if !mode.contains(OpenMode::WRITE) {
            state.readers = state.readers.saturating_sub(1);
            if state.readers == 0 {
                tracked.closed.notify_all();
            }
            return;
        }
        state.writers = state.writers.saturating_sub(1);
        if state.writers > 0 {
            return;
        }
        state.emitted_open_writers = false;
        if let Err(error) = self.after_last_writer(vfs, inode, &mut state) {
            // The next open measures the file or fails.
            state.measurement = None;
            state.recorded = None;
            log::error!(
                "inode {}: cannot measure at the last writer's close; the next open does: {error}",
                inode.ino
            );
        }
        tracked.closed.notify_all();
    }

    fn on_create(&self, inode: &Inode) {
        if inode.kind == FileType::Regular {
            let state = FileState { is_new: true, ..FileState::default() };
            self.files.lock().insert(inode.ino, Arc::new(TrackedFile::new(inode, state)));
        }
    }

    fn on_delete(&self, ino: Ino) {
        self.files.lock().remove(&ino);
    }

    fn report(&self) -> String {
        self.sink.report()
    }
}
