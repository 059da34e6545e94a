//! `measure`: a measurement list of files, which are read only if they changed.
//!
//! | module | what |
//! |---|---|
//! | [`host`] | files of the system, of mounts among them |
//! | [`inside`] | files of an image, in the process that parses it |
//! | [`wire`] | what that one and the command say to each other |
//! | [`kept`] | the list and the store |
//! | [`mounted`] | what a mount needs that measures |

pub mod host;
pub mod inside;
pub mod kept;
pub mod mounted;
pub mod wire;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ivers_measure::digest::Algorithm;
use ivers_measure::keys::Keyring;
use ivers_measure::list::{Aggregates, Entry};
use ivers_measure::policy::{Appraise, Decision, Func, Mask, Policy, Use};
use ivers_measure::signature;
use ivers_measure::store::{Files, Known, Store};
use serde_json::{Value, json};

use crate::failure::{CORRUPT, FAILED, REFUSED, Tally, failure, usage};
use crate::image::{self, How, Place};
use crate::keeper::{Keeper, Order};
use crate::{args, facts, progress, show, state};
use kept::List;
use wire::{Finding, Told};

/// What has been measured is kept at least this often, so that a long run that is cut off need not begin anew.
const KEEP_INTERVAL: Duration = Duration::from_secs(30);

/// No honest policy is longer.
const POLICY_MAX: u64 = 1 << 20;

/// What a policy says of a file that may be read and, if its mode has it so, run.
fn decide(policy: &Policy, used: &Use<'_>, mode: u32) -> Decision {
    let decision = policy.decide(used);
    if mode & 0o111 == 0 {
        return decision;
    }
    [Func::FileCheck, Func::BprmCheck].into_iter().fold(decision, |decision, func| {
        decision.or(policy.decide(&Use { func, mask: Mask::EXEC, ..used.clone() }))
    })
}

/// Whether a digest was taken with what would be taken now.
fn is_of(known: &Known, algorithm: Algorithm) -> bool {
    known.digest.algorithm() == signature::algorithm(&known.label, algorithm)
}

fn progress_of(files: u64, last_read: u64) -> String {
    format!("{files} files; {}", if last_read > 0 { "reading" } else { "unchanged" })
}

/// The text of a policy, which is one.
pub fn read_policy(path: &Path) -> Result<String> {
    let wrong = |why: String| usage(format!("{}: {why}", path.display()));
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(POLICY_MAX + 1).read_to_end(&mut bytes));
    read.with_context(|| path.display().to_string())?;
    if bytes.len() as u64 > POLICY_MAX {
        return Err(wrong(format!("no policy is longer than {POLICY_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        wrong(format!("line {line}: not UTF-8 (a byte of a path is written as \\ooo)"))
    })?;
    let parsed: Result<Policy, _> = text.parse();
    parsed.map_err(|error| wrong(error.to_string()))?;
    Ok(text)
}

/// Keys out of files.
pub fn read_keys(paths: &[PathBuf]) -> Result<Keyring> {
    let mut keys = Keyring::default();
    for path in paths {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        keys.add(&bytes).map_err(|error| usage(format!("{}: {error}", path.display())))?;
    }
    Ok(keys)
}

/// How a run went.
#[derive(Default)]
struct Sums {
    files: u64,
    read: u64,
    read_bytes: u64,
    not_read: u64,
    not_read_bytes: u64,
    new_entries: u64,
    verified: u64,
    refused: u64,
}

struct Run {
    policy_text: String,
    policy: Policy,
    algorithm: Algorithm,
    keys: Keyring,
    list: List,
    store: Store,
    store_path: PathBuf,
    /// There is something in the store that its file has not.
    is_store_new: bool,
    saved: Instant,
    sums: Sums,
    /// Where no change attribute vouches for anything beyond this run.
    unvouched: Vec<String>,
    tally: Tally,
}

impl Run {
    fn take(&mut self, files: &mut Files, told: Told, json: bool) -> Result<()> {
        match told {
            Told::Problem { code, line } => self.tally.take(Err(failure(code, line))),
            Told::Finding(finding) => self.count(files, &finding, json),
        }
    }

    fn count(&mut self, files: &mut Files, finding: &Finding, json: bool) -> Result<()> {
        let Finding { path, identity, digest, label, .. } = finding;
        self.sums.files += 1;
        match finding.read {
            Some(bytes) => {
                self.sums.read += 1;
                self.sums.read_bytes += bytes;
            }
            None => {
                self.sums.not_read += 1;
                self.sums.not_read_bytes += finding.size;
            }
        }
        if let Some(template) = finding.decision.measure {
            let entry = if finding.moved {
                Entry::violation(template, digest.algorithm(), path)
            } else {
                Entry::measured(template, digest, path, signature::listed(label))
            };
            self.sums.new_entries += u64::from(self.list.add(&entry));
        }
        if finding.moved {
            let line = format!("{}: it changed each time it was read", show::name(path));
            self.tally.take(Err(failure(FAILED, line)))?;
        }
        // Where the policy does not say, keys are given to check signatures with that are there.
        let signed = !self.keys.is_empty() && signature::listed(label).is_some();
        let wanted = finding.decision.appraise.or(signed.then_some(Appraise::Digest));
        let verdict = wanted.map(|wanted| signature::appraise(label, digest, wanted, &self.keys));
        match &verdict {
            Some(Ok(())) => self.sums.verified += 1,
            Some(Err(mismatch)) => {
                self.sums.refused += 1;
                self.tally.take(Err(failure(FAILED, format!("{}: {mismatch}", show::name(path)))))?;
            }
            None => {}
        }
        if finding.read.is_some() {
            files.forget(identity.ino);
            files.put(identity, digest, label);
            self.is_store_new = true;
        }
        if json {
            show::json_line(&json!({
                "path": show::json_name(path),
                "ino": identity.ino,
                "generation": identity.generation,
                "change": identity.change.map(|value| value.to_string()),
                "digest": format!("{}:{}", digest.algorithm(), digest.hex()),
                "size": finding.size,
                "read": finding.read.is_some(),
                "verified": verdict.as_ref().map(Result::is_ok),
            }))?;
        }
        Ok(())
    }

    /// The list first: see [`kept`].
    fn keep(&mut self) -> Result<()> {
        self.list.sync().context("the measurement list")?;
        self.saved = Instant::now();
        if std::mem::take(&mut self.is_store_new) {
            kept::save_store(&self.store_path, &self.store)?;
        }
        Ok(())
    }

    fn keep_now_and_then(&mut self, instance: &str, files: &Files) -> Result<()> {
        if self.saved.elapsed() < KEEP_INTERVAL {
            return Ok(());
        }
        *self.store.files(instance) = files.clone();
        self.keep()
    }

    fn host(&mut self, path: &Path, json: bool) -> Result<()> {
        let mount = host::Mount::of(path)?;
        let mut files =
            mount.instance.as_ref().map(|name| self.store.files(name).clone()).unwrap_or_default();
        if mount.instance.is_none() {
            self.unvouched.push(show::name(path.as_os_str().as_encoded_bytes()));
        }
        let policy = self.policy.clone();
        let mut walk =
            host::Walk { mount: &mount, policy: &policy, algorithm: self.algorithm, known: files.clone() };
        walk.run(path, &mut |told| {
            self.take(&mut files, told, json)?;
            mount.instance.as_ref().map_or(Ok(()), |name| self.keep_now_and_then(name, &files))
        })?;
        if let Some(name) = &mount.instance {
            *self.store.files(name) = files;
        }
        Ok(())
    }

    fn image(&mut self, image: &Path, path: &[u8], how: &How, json: bool) -> Result<()> {
        let device = image::open_image(image, how)?;
        let mut keeper = Keeper::start(&device, image, how)?;
        drop(device);
        let (ours, theirs) = UnixStream::pair()?;
        // As a file: the same calls on both sides, which the sandbox knows.
        let ours = File::from(OwnedFd::from(ours));
        let listened = std::thread::scope(|scope| {
            let ordered = scope.spawn(|| {
                let theirs = theirs;
                let order = Order::Measure { path: path.to_vec() };
                keeper.order(&order, &[theirs.as_fd()])
            });
            let listened = self.listen(ours, image, json);
            // What the keeper says of its end is the better reason.
            ordered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(listened)
        });
        listened?;
        keeper.finish().map(drop)
    }

    fn listen(&mut self, mut socket: File, image: &Path, json: bool) -> Result<()> {
        let instance = String::from_utf8(wire::receive(&mut socket, 256)?)?;
        if instance.is_empty() {
            self.unvouched.push(show::name(image.as_os_str().as_encoded_bytes()));
        }
        let mut files =
            if instance.is_empty() { Files::default() } else { self.store.files(&instance).clone() };
        wire::send(&mut socket, self.policy_text.as_bytes())?;
        wire::send(&mut socket, &files.encode())?;
        wire::send(&mut socket, &[self.algorithm.id()])?;
        let mut from = BufReader::new(socket);
        loop {
            let frame = wire::receive(&mut from, wire::FINDING_MAX)?;
            if frame.is_empty() {
                break;
            }
            let told = Told::decode(&frame).context("the process that parses talks nonsense")?;
            self.take(&mut files, told, json)?;
            if !instance.is_empty() {
                self.keep_now_and_then(&instance, &files)?;
            }
        }
        if !instance.is_empty() {
            *self.store.files(&instance) = files;
        }
        Ok(())
    }
}

/// `ivers measure`.
pub fn measure(args: &args::Measure, json: bool) -> Result<()> {
    // Of a run that finds everything unchanged a third of the time went into clearing the huge pages that the allocator asks for, and most of
    // such a page is never used. The process that parses inherits it. A kernel that refuses is slower, and that is all.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    if let Some(dir) = &args.of {
        return of_mount(dir, args, json);
    }
    let how = args.image.how()?;
    let algorithm = Algorithm::by_name(args.hash.as_bytes());
    let algorithm = algorithm.ok_or_else(|| usage("--hash: there are sha1, sha256, sha384, sha512"))?;
    let policy_text = match &args.policy {
        Some(path) => read_policy(path)?,
        None => format!("measure func=FILE_CHECK template={}\n", args.template),
    };
    let policy: Policy = policy_text.parse().map_err(|error| usage(format!("--template: {error}")))?;
    let keys = read_keys(&args.keys)?;
    let place = |given: &Option<PathBuf>, name| given.clone().map_or_else(|| kept::default_place(name), Ok);
    let list_path = place(&args.list, "list")?;
    let store_path = place(&args.store, "store")?;
    if list_path == store_path {
        return Err(usage("--list and --store are one file"));
    }
    // The lock on the list is one on the store too: two commands must not each forget what the other has measured.
    let list = kept::open(&list_path)?.begin(policy.template(), algorithm)?;
    let mut run = Run {
        policy_text,
        policy,
        algorithm,
        keys,
        list,
        store: kept::load_store(&store_path)?,
        store_path,
        is_store_new: false,
        saved: Instant::now(),
        sums: Sums::default(),
        unvouched: Vec::new(),
        tally: Tally::default(),
    };
    for word in &args.paths {
        let measured = match Place::parse(word) {
            Place::Host(path) => run.host(&path, json),
            Place::Image { image, path } => run.image(&image, &path, &how, json),
        };
        run.tally.take(measured)?;
    }
    run.keep()?;
    let aggregates = run.list.aggregates();
    write_forms(&list_path, run.list.entries(), args)?;
    let sums = &run.sums;
    if json {
        show::json_line(&json!({
            "files": sums.files,
            "read": sums.read,
            "read_bytes": sums.read_bytes,
            "not_read": sums.not_read,
            "not_read_bytes": sums.not_read_bytes,
            "verified": sums.verified,
            "refused": sums.refused,
            "unvouched": run.unvouched,
            "list": list_path.to_string_lossy(),
            "store": run.store_path.to_string_lossy(),
            "entries": run.list.entries(),
            "new_entries": sums.new_entries,
            "violations": run.list.violations(),
            "aggregates": aggregates_json(aggregates),
        }))?;
    } else {
        show::line(format_args!(
            "{} files: {} read ({}), {} not read ({}): unchanged since they were measured, by this or another name",
            sums.files,
            sums.read,
            progress::bytes(sums.read_bytes),
            sums.not_read,
            progress::bytes(sums.not_read_bytes),
        ))?;
        for place in &run.unvouched {
            let why = "no change attribute that outlives this run: all is read each time";
            show::line(format_args!("{place}: {why}"))?;
        }
        if sums.verified + sums.refused > 0 {
            show::line(format_args!("{} match their security.ima, {} do not", sums.verified, sums.refused))?;
        }
        let (entries, violations) = (run.list.entries(), run.list.violations());
        tell_list(&list_path, entries, Some(sums.new_entries), violations, aggregates)?;
    }
    run.tally.end()
}

fn aggregates_json(aggregates: &Aggregates) -> Value {
    let banks = aggregates.banks().iter().map(|value| (value.algorithm().name(), value.hex()));
    json!(banks.collect::<BTreeMap<_, _>>())
}

fn tell_list(
    path: &Path,
    entries: u64,
    new: Option<u64>,
    violations: u64,
    aggregates: &Aggregates,
) -> Result<()> {
    let new = new.map(|new| format!(", {new} new")).unwrap_or_default();
    let path = show::name(path.as_os_str().as_encoded_bytes());
    show::line(format_args!("{path}: {entries} entries{new}, {violations} violations; PCR 10 is"))?;
    for value in aggregates.banks() {
        show::line(format_args!("  {:<7} {}", value.algorithm().name(), value.hex()))?;
    }
    Ok(())
}

/// Write the forms of the list that were asked for.
fn write_forms(list: &Path, entries: u64, args: &args::Measure) -> Result<()> {
    if args.ascii.is_none() && args.pcrs.is_none() {
        return Ok(());
    }
    let shown = kept::show(list, entries)?;
    if let Some(path) = &args.ascii {
        state::put(path, &shown.ascii, "the list")?;
    }
    if let Some(dir) = &args.pcrs {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        for value in shown.aggregates.banks() {
            let path = dir.join(value.algorithm().name());
            state::put(&path, Aggregates::pcrs(value).as_bytes(), "the registers")?;
        }
    }
    Ok(())
}

/// What is said of a list that took no more.
fn gave_up(list: &str, why: &str) -> anyhow::Error {
    let size = std::fs::metadata(list).map_or("gone".to_owned(), |meta| format!("of {} bytes", meta.len()));
    failure(
        FAILED,
        format!(
            "{list}: the list ({size}) could not take an entry ({}), so that the mount opens nothing more that would need one: make room, unmount, and mount again, which goes on with it",
            show::one_line(why)
        ),
    )
}

/// The list of a mount, checked against the aggregates that the mount itself has.
fn of_mount(dir: &Path, args: &args::Measure, json: bool) -> Result<()> {
    let told = facts::served_json_if_any(dir, ivers_fuse::MEASUREMENT)?.ok_or_else(|| {
        failure(REFUSED, format!("{}: no mount that measures (-o measure=POLICY)", dir.display()))
    })?;
    let list = told["list"].as_str().context("the mount does not say where its list is")?;
    if told["broken"] == true {
        return Err(gave_up(list, told["why"].as_str().unwrap_or("writing to it failed")));
    }
    let entries = told["entries"].as_u64().unwrap_or(0);
    let shown = kept::show(Path::new(list), entries)?;
    if aggregates_json(&shown.aggregates) != told["aggregates"] {
        let why = "somebody else has written to it: its entries do not give the aggregates of the mount";
        return Err(failure(CORRUPT, format!("{list}: {why}")));
    }
    if let Some(path) = &args.list {
        state::put(path, &shown.binary, "the list")?;
    }
    write_forms(Path::new(list), entries, args)?;
    if json {
        return show::json_line(&told);
    }
    tell_list(Path::new(list), shown.entries, None, shown.violations, &shown.aggregates)
}
