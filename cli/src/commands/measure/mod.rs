//! `measure`: a measurement list of files, which are read only if they changed.
//!
//! | module | contents |
//! |---|---|
//! | [`policy`] | policy and keys |
//! | [`storage`] | the list and the store |
//! | [`protocol`] | the protocol with an image process |
//! | [`host`] | measuring files of the host |
//! | [`image`] | measuring files of an image, in the image process |

pub mod host;
pub mod image;
pub mod policy;
pub mod protocol;
pub mod storage;

use std::fs::File;
use std::io::BufReader;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ivers_ima::digest::Algorithm;
use ivers_ima::keys::Keyring;
use ivers_ima::list::{Aggregates, Entry};
use ivers_ima::policy::{Appraise, Policy};
use ivers_ima::signature;
use ivers_ima::store::{Files, Store};
use serde_json::json;

use crate::arguments::{Completed, Operand, canonical_image, is_server};
use crate::file_info;
use crate::image::foreign_formats::contains_filesystem;
use crate::image::mount_options::ImageArgs;
use crate::image::open::start_process;
use crate::image::open_options::ImageOptions;
use crate::image::process::{Request, protocol_error};
use crate::output::failure::{CORRUPT, FAILED, Problems, REFUSED, failure, usage};
use crate::output::format::Shown;
use crate::output::{format, print, progress, save};
use policy::{read_keys, read_policy};
use protocol::{Event, Finding};
use storage::{List, aggregates_json};

/// Interval between saves of list and store, so that an interrupted run does not start from zero.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// The hashes and templates that shells complete.
const HASHES: &[&str] = &["sha1", "sha256", "sha384", "sha512"];
const TEMPLATES: &[&str] = &["ima-ng", "ima-sig"];

const HELP: &str = "\
Each regular file below PATH that the policy covers gets an entry in the measurement list, in the format of \
the kernel's IMA (ima-ng or ima-sig): its digest and its name. The list only grows; an existing entry is not \
added again. The store contains each digest by filesystem, inode number, generation and change attribute; a \
file for which all of these are unchanged is not read again. Without a change attribute files are read each \
time; if it does not outlive the mount, once per mount.

The command prints the aggregate of the list (PCR 10, computed in software) for the banks SHA-1, SHA-256 and \
SHA-512; evmctl checks it against the list.

A policy has one rule per line: measure, dont_measure, appraise or dont_appraise, and conditions, which must \
all match. The first rule that matches decides. A line that is not understood is refused with its number.
  func=FILE_CHECK         the file is opened (BPRM_CHECK: to be executed)
  mask=MAY_READ           for exactly this access (MAY_WRITE, MAY_EXEC,
                          MAY_APPEND); ^MAY_READ: for this and others
  uid=N uid>N uid<N       the user; likewise gid, fowner, fgroup
  fsuuid=UUID fsname=ext4 the filesystem
  path=/etc               the file is below this directory of the filesystem
                          (not in the kernel's policies); \\040 is a space. A
                          file that a client reached by inode number only, and
                          not by name since the mount, matches in measure and
                          appraise, and not in dont_measure and dont_appraise
  template=ima-sig        for measure: include the signature
  appraise_type=imasig    for appraise: require a signature in security.ima,
                          not only a digest

Files of a mount are listed by their path on the host, files of an image by their path in it. A file that \
the policy appraises and that does not match its security.ima is named on standard error, and the exit code \
is 1. Without a policy that appraises, --key checks existing signatures.

JSON, one object per file: path, ino, generation, change, digest, size, read, verified (null if nothing was \
checked); then one with files, read, read_bytes, not_read, not_read_bytes, verified, refused, unvouched \
(paths that are read each time), list, store, entries, new_entries, violations, aggregates.

Examples; the last one shows what a mount measured:
  ivers measure disk.img:/
  ivers measure mnt --policy policy --list list --key cert.pem
  ivers measure mnt --list list --pcrs pcrs
  evmctl ima_measurement --pcrs sha256,pcrs/sha256 list
                          (with --ignore-violations if there are any)
  ivers measure --of mnt --ascii /dev/stdout";

/// Options of `measure`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files and directories of the host, or IMAGE:/path; IMAGE alone is its root
    #[arg(required_unless_present = "of", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The files to measure and appraise, in the syntax of the kernel (see below; default: measure all)
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The binary measurement list to extend (default: a list for each image, or one for paths of the host,
    /// in ivers/measure under $XDG_STATE_HOME or ~/.local/state); with --of: write a copy there
    #[arg(short, long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// The store of known digests (default: in the directory of the default list)
    #[arg(short, long, value_name = "FILE", conflicts_with = "of")]
    store: Option<PathBuf>,
    /// Write the whole list in ASCII
    #[arg(long, value_name = "FILE")]
    ascii: Option<PathBuf>,
    /// Write the register of each bank to a file in this directory, as evmctl ima_measurement --pcrs reads
    /// them
    #[arg(long, value_name = "DIR")]
    pcrs: Option<PathBuf>,
    /// Keys to check signatures in security.ima: certificates or public keys, PEM or DER
    #[arg(short, long = "key", value_name = "FILE", conflicts_with = "of")]
    keys: Vec<PathBuf>,
    /// The hash of files whose security.ima names none: sha1, sha256, sha384 or sha512
    #[arg(
        long,
        value_name = "NAME",
        default_value = "sha256",
        conflicts_with = "of",
        value_parser = Completed(HASHES),
        hide_possible_values = true
    )]
    hash: String,
    /// The template of entries without a policy: ima-ng or ima-sig
    #[arg(
        long,
        value_name = "NAME",
        default_value = "ima-ng",
        conflicts_with_all = ["of", "policy"],
        value_parser = Completed(TEMPLATES),
        hide_possible_values = true
    )]
    template: String,
    /// Show the list of a mount that measures (mount -o measure=POLICY), checked against its registers
    #[arg(long, value_name = "DIR", conflicts_with_all = ["paths", "policy"])]
    of: Option<PathBuf>,
    #[command(flatten)]
    image: ImageArgs,
}

/// The sums of a run.
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
    /// Whether the store differs from its file.
    store_changed: bool,
    saved: Instant,
    sums: Sums,
    /// Paths whose digests are valid for this run only.
    unvouched: Vec<String>,
    problems: Problems,
}

impl Run {
    fn handle(&mut self, files: &mut Files, event: Event, json: bool) -> Result<()> {
        match event {
            Event::Problem { code, line } => self.problems.report(Err(failure(code, line))),
            Event::Finding(finding) => self.count(files, &finding, json),
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
            let entry = if finding.changing {
                Entry::violation(template, digest.algorithm(), path)
            } else {
                Entry::measured(template, digest, path, signature::signature_field(label))
            };
            self.sums.new_entries += u64::from(self.list.add(&entry));
        }
        if finding.changing {
            let line = format!("{}: it changed during each attempt to read it", format::name(path));
            self.problems.report(Err(failure(FAILED, line)))?;
        }
        // If the policy does not decide, existing signatures are checked with the given keys.
        let signed = !self.keys.is_empty() && signature::signature_field(label).is_some();
        let wanted = finding.decision.appraise.or(signed.then_some(Appraise::Digest));
        let verdict = wanted.map(|wanted| signature::appraise(label, digest, wanted, &self.keys));
        match &verdict {
            Some(Ok(())) => self.sums.verified += 1,
            Some(Err(mismatch)) => {
                self.sums.refused += 1;
                self.problems.report(Err(failure(FAILED, format!("{}: {mismatch}", format::name(path)))))?;
            }
            None => {}
        }
        if finding.read.is_some() {
            files.forget(identity.ino);
            files.put(identity, digest, label);
            self.store_changed = true;
        }
        if json {
            let object = json!({
                "ino": identity.ino,
                "generation": identity.generation,
                "change": identity.change.map(|value| value.to_string()),
                "digest": format!("{}:{}", digest.algorithm(), digest.hex()),
                "size": finding.size,
                "read": finding.read.is_some(),
                "verified": verdict.as_ref().map(Result::is_ok),
            });
            print::json_line(&format::with_names(object, [("path", Some(path.as_slice()))]))?;
        }
        Ok(())
    }

    /// Saves the list, then the store: see [`storage`].
    fn save(&mut self) -> Result<()> {
        self.list.sync().context("cannot write the measurement list")?;
        self.saved = Instant::now();
        if std::mem::take(&mut self.store_changed) {
            storage::save_store(&self.store_path, &self.store)?;
        }
        Ok(())
    }

    fn save_sometimes(&mut self, instance: &str, files: &mut Files) -> Result<()> {
        if self.saved.elapsed() < SAVE_INTERVAL {
            return Ok(());
        }
        *self.store.files(instance) = std::mem::take(files);
        let saved = self.save();
        *files = std::mem::take(self.store.files(instance));
        saved
    }

    fn host(&mut self, path: &Path, json: bool) -> Result<()> {
        let mount = host::Mount::of(path)?;
        // Taken out of the store until the end: there can be millions.
        let mut files =
            mount.instance.as_ref().map(|name| std::mem::take(self.store.files(name))).unwrap_or_default();
        if mount.instance.is_none() {
            self.unvouched.push(format::name(path.as_os_str().as_encoded_bytes()));
        }
        let policy = self.policy.clone();
        let mut walk =
            host::Walk { mount: &mount, policy: &policy, algorithm: self.algorithm, known: files.clone() };
        let walked = walk.run(path, &mut |event| {
            self.handle(&mut files, event, json)?;
            mount.instance.as_ref().map_or(Ok(()), |name| self.save_sometimes(name, &mut files))
        });
        if let Some(name) = &mount.instance {
            *self.store.files(name) = files;
        }
        walked
    }

    fn image(&mut self, image: &Path, path: &[u8], options: &ImageOptions, json: bool) -> Result<()> {
        let mut process = start_process(image, path, options, Stdio::null())?;
        let (ours, theirs) = UnixStream::pair()?;
        // Both sides use it as a file: the sandbox allows read and write.
        let ours = File::from(OwnedFd::from(ours));
        let received = std::thread::scope(|scope| {
            let request = scope.spawn(|| {
                let theirs = theirs;
                process.request(&Request::Measure { path: path.to_vec() }, theirs.as_fd())
            });
            let received = self.receive(ours, image, json);
            // If the process failed, its own error says more.
            request.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(received)
        });
        received?;
        process.finish()
    }

    fn receive(&mut self, mut socket: File, image: &Path, json: bool) -> Result<()> {
        let instance = String::from_utf8(protocol::receive(&mut socket, 256)?)?;
        if instance.is_empty() {
            self.unvouched.push(format::name(image.as_os_str().as_encoded_bytes()));
        }
        // Taken out of the store until the end: there can be millions.
        let mut files = match instance.as_str() {
            "" => Files::default(),
            instance => std::mem::take(self.store.files(instance)),
        };
        let received = self.receive_events(&mut files, socket, &instance, json);
        if !instance.is_empty() {
            *self.store.files(&instance) = files;
        }
        received
    }

    fn receive_events(
        &mut self,
        files: &mut Files,
        mut socket: File,
        instance: &str,
        json: bool,
    ) -> Result<()> {
        protocol::send(&mut socket, self.policy_text.as_bytes())?;
        protocol::send(&mut socket, &files.encode())?;
        protocol::send(&mut socket, &[self.algorithm.id()])?;
        let mut from = BufReader::new(socket);
        loop {
            let frame = protocol::receive(&mut from, protocol::EVENT_MAX)?;
            if frame.is_empty() {
                return Ok(());
            }
            let event = Event::decode(&frame).ok_or_else(|| protocol_error("an invalid event"))?;
            self.handle(files, event, json)?;
            if !instance.is_empty() {
                self.save_sometimes(instance, files)?;
            }
        }
    }
}

/// Returns the name of the default list: that of the image, if all paths are in one image, so that the list
/// of an image has no entries of others.
fn list_name(paths: &[PathBuf]) -> String {
    let image = |word: &PathBuf| match Operand::parse_image(word) {
        Operand::Image { image, .. } if is_server(&image) => Some(image),
        Operand::Image { image, .. } => canonical_image(&image).ok(),
        Operand::Host(_) => None,
    };
    let images: Option<Vec<_>> = paths.iter().map(image).collect();
    let Some([first, rest @ ..]) = images.as_deref() else { return "list".to_owned() };
    if rest.iter().any(|other| other != first) {
        return "list".to_owned();
    }
    // A name of a file has at most 255 bytes.
    let path = first.as_os_str().as_encoded_bytes();
    let end: String = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().escape_ascii().to_string();
    let end: String =
        end.chars().filter(|c| c.is_ascii_alphanumeric() || ".-_@".contains(*c)).take(64).collect();
    let digest = Algorithm::Sha256.digest(path);
    format!("list-{}-{end}", &digest.hex()[..16])
}

/// Runs `ivers measure`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    // The allocator asks for huge pages of which it uses little. Clearing them took a third of the time of a
    // run without changes. The image process inherits the setting. Without it the command is only slower.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    if let Some(dir) = &args.of {
        return show_mount(dir, args, json);
    }
    let options = args.image.options()?;
    let algorithm = Algorithm::by_name(args.hash.as_bytes());
    let algorithm = algorithm.ok_or_else(|| usage("--hash: choose sha1, sha256, sha384 or sha512"))?;
    let policy_text = match &args.policy {
        Some(path) => read_policy(path)?,
        None => format!("measure func=FILE_CHECK template={}\n", args.template),
    };
    let policy: Policy = policy_text.parse().map_err(|error| usage(format!("--template: {error}")))?;
    let keys = read_keys(&args.keys)?;
    let path = |given: &Option<PathBuf>, name| given.clone().map_or_else(|| storage::default_path(name), Ok);
    let list_name = list_name(&args.paths);
    let list_path = path(&args.list, &list_name)?;
    let store_path = path(&args.store, "store")?;
    if list_path == store_path {
        return Err(usage("--list and --store must not be the same file"));
    }
    // The lock on the list protects the store too: two commands must not overwrite each other's digests.
    let list = storage::open(&list_path)?.begin(policy.template(), algorithm)?;
    let mut run = Run {
        policy_text,
        policy,
        algorithm,
        keys,
        list,
        store: storage::load_store(&store_path)?,
        store_path,
        store_changed: false,
        saved: Instant::now(),
        sums: Sums::default(),
        unvouched: Vec::new(),
        problems: Problems::default(),
    };
    for word in &args.paths {
        let operand = match Operand::parse(word) {
            // An image alone is its root, as in the other commands.
            Operand::Host(image) if contains_filesystem(&image) => Operand::parse_image(&image),
            operand => operand,
        };
        let measured = match operand {
            Operand::Host(path) => run.host(&path, json),
            Operand::Image { image, path } => run.image(&image, &path, &options, json),
        };
        run.problems.report(measured)?;
    }
    run.save()?;
    let aggregates = run.list.aggregates();
    write_formats(&list_path, run.list.entries(), args)?;
    let sums = &run.sums;
    if json {
        print::json_line(&json!({
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
        print::line(format_args!(
            "{}: {} read ({}), {} not read ({}) because they are unchanged since they were measured",
            format::count(sums.files, "file"),
            sums.read,
            progress::bytes(sums.read_bytes),
            sums.not_read,
            progress::bytes(sums.not_read_bytes),
        ))?;
        for path in &run.unvouched {
            let why = "no change attribute that outlives this run; files are read each time";
            print::line(format_args!("{path}: {why}"))?;
        }
        if sums.verified + sums.refused > 0 {
            print::line(format_args!("{} match their security.ima, {} do not", sums.verified, sums.refused))?;
        }
        let (entries, violations) = (run.list.entries(), run.list.violations());
        print_list(&list_path, entries, Some(sums.new_entries), violations, aggregates)?;
    }
    run.problems.into_result()
}

fn print_list(
    path: &Path,
    entries: u64,
    new: Option<u64>,
    violations: u64,
    aggregates: &Aggregates,
) -> Result<()> {
    let new = new.map(|new| format!(", {new} new")).unwrap_or_default();
    let path = format::name(path.as_os_str().as_encoded_bytes());
    let (entries, violations) = (format::count(entries, "entry"), format::count(violations, "violation"));
    print::line(format_args!("{path}: {entries}{new}, {violations}; PCR 10 is"))?;
    for value in aggregates.banks() {
        print::line(format_args!("  {:<7} {}", value.algorithm().name(), value.hex()))?;
    }
    Ok(())
}

/// Writes the list in the formats of --ascii and --pcrs.
fn write_formats(list: &Path, entries: u64, args: &Args) -> Result<()> {
    if args.ascii.is_none() && args.pcrs.is_none() {
        return Ok(());
    }
    let rendered = storage::render(list, entries)?;
    if let Some(path) = &args.ascii {
        save::save(path, &rendered.ascii, "the list")?;
    }
    if let Some(dir) = &args.pcrs {
        std::fs::create_dir_all(dir).with_context(|| dir.shown())?;
        for value in rendered.aggregates.banks() {
            let path = dir.join(value.algorithm().name());
            save::save(&path, Aggregates::pcrs(value).as_bytes(), "the registers")?;
        }
    }
    Ok(())
}

/// Returns the error for a list that a mount could not extend.
fn list_failed(list: &str, why: &str) -> anyhow::Error {
    let size = std::fs::metadata(list).map_or("gone".to_owned(), |meta| format!("of {} bytes", meta.len()));
    failure(
        FAILED,
        format!(
            "{list}: cannot add an entry to the list ({size}): {}. \
             The mount refuses to open files that need an entry; \
             free space, unmount, and mount again",
            format::one_line(why)
        ),
    )
}

/// Shows the list of a mount, checked against the aggregates of the mount.
fn show_mount(dir: &Path, args: &Args, json: bool) -> Result<()> {
    let info = file_info::served_json_if_any(dir, ivers_fuse::MEASUREMENT)?.ok_or_else(|| {
        failure(REFUSED, format!("{}: not a mount that measures (-o measure=POLICY)", dir.shown()))
    })?;
    let list = info["list"].as_str().context("the mount does not name its list")?;
    if info["broken"] == true {
        return Err(list_failed(list, info["why"].as_str().unwrap_or("writing to it failed")));
    }
    let entries = info["entries"].as_u64().unwrap_or(0);
    let rendered = storage::render(Path::new(list), entries)?;
    if aggregates_json(&rendered.aggregates) != info["aggregates"] {
        let why = "another program wrote to it: its entries do not match the aggregates of the mount";
        return Err(failure(CORRUPT, format!("{list}: {why}")));
    }
    if let Some(path) = &args.list {
        save::save(path, &rendered.binary, "the list")?;
    }
    write_formats(Path::new(list), entries, args)?;
    if json {
        return print::json_line(&info);
    }
    print_list(Path::new(list), rendered.entries, None, rendered.violations, &rendered.aggregates)
}
