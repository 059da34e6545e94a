//! A mount that measures. The supervisor opens list, policy and keys on the host and passes them to the
//! worker.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use ivers_ima::digest::Algorithm;
use ivers_ima::hooks::{Hooks, Sink};
use ivers_ima::keys::Keyring;
use ivers_ima::list::Entry;
use ivers_ima::policy::Policy;
use ivers_vfs::FileObserver;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{escape_option, split_options};
use crate::commands::measure::policy::{read_keys, read_policy};
use crate::commands::measure::storage::{self, List, aggregates_json};
use crate::image::mount_options::MeasureOptions;
use crate::output::failure::usage;
use crate::output::format::Shown;

/// The hash of files whose `security.ima` names none.
const ALGORITHM: Algorithm = Algorithm::Sha256;
/// Most bytes of a policy or key.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The settings that the worker gets with the descriptors of the list, the policy (if any) and the keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MeasureSetup {
    /// The path of the list.
    list: String,
    /// The second descriptor is a policy.
    policy: bool,
    /// Refuse to open files that do not match.
    appraise: bool,
}

/// The setup and the open files for the worker.
pub struct Opened {
    /// The setup.
    pub setup: MeasureSetup,
    /// The files.
    pub files: Vec<File>,
}

/// Checks and opens the files that the options name. Runs in the supervisor.
pub fn open(options: &MeasureOptions, image: &Path) -> Result<Opened> {
    if let Some(file) = &options.policy {
        let policy: Policy = read_policy(file)?.parse()?;
        // Ignoring such a rule would allow access to files that the user believes protected.
        if policy.appraises() && !options.appraise {
            let file = file.shown();
            return Err(usage(format!(
                "{file}: the policy appraises, which requires `-o appraise`: add that, or remove the rules"
            )));
        }
    }
    read_keys(&options.keys)?;
    let list = match &options.list {
        Some(list) => list.clone(),
        // One list per image, for all its mounts.
        None => {
            let name = image.file_name().unwrap_or(image.as_os_str());
            let mut name = name.to_os_string();
            name.push(".list");
            storage::default_path("mounts")?.join(name)
        }
    };
    let setup = MeasureSetup {
        list: list.to_string_lossy().into_owned(),
        policy: options.policy.is_some(),
        appraise: options.appraise,
    };
    let mut files = vec![storage::open(&list)?.into_file()];
    for path in options.policy.iter().chain(&options.keys) {
        files.push(File::open(path).with_context(|| path.shown())?);
    }
    Ok(Opened { setup, files })
}

/// The list of a mount.
struct MountList {
    path: String,
    /// The list, or the error of a failed write. After that the file can end in an incomplete entry.
    list: Mutex<Result<List, String>>,
}

impl Sink for MountList {
    fn record(&self, entry: &Entry) -> std::io::Result<()> {
        let mut state = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let list =
            state.as_mut().map_err(|why| std::io::Error::other(format!("an earlier write failed: {why}")))?;
        if !list.add(entry) {
            return Ok(());
        }
        list.write().inspect_err(|error| *state = Err(error.to_string()))
    }

    fn report(&self) -> String {
        let state = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let list = match state.as_ref() {
            Ok(list) => list,
            Err(why) => return json!({ "list": self.path, "broken": true, "why": why }).to_string(),
        };
        json!({
            "list": self.path,
            "entries": list.entries(),
            "violations": list.violations(),
            "aggregates": aggregates_json(list.aggregates()),
        })
        .to_string()
    }
}

fn read_all(mut file: File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates the observer of the mount. Runs in the worker.
pub fn observer(setup: MeasureSetup, fds: Vec<OwnedFd>) -> Result<Arc<dyn FileObserver>> {
    let mut files = fds.into_iter().map(File::from);
    let mut next = || files.next().context("a request without its descriptors");
    let list = next()?;
    let policy = match setup.policy {
        true => String::from_utf8(read_all(next()?)?)?.parse()?,
        // A mount that only appraises lists all files.
        false => Policy::measure_all(),
    };
    let mut keys = Keyring::default();
    for file in files {
        keys.add(&read_all(file)?)?;
    }
    let list = List::adopt(list)?.begin(policy.template(), ALGORITHM)?;
    let sink = MountList { path: setup.list, list: Mutex::new(Ok(list)) };
    Ok(Arc::new(Hooks::new(policy, ALGORITHM, keys, setup.appraise, Box::new(sink))))
}

/// Returns the arguments of `-o` with absolute paths: the processes of the mount have another current
/// directory.
pub fn with_absolute_paths(words: &[String]) -> Result<Vec<String>> {
    let mut options = split_options(words);
    for option in &mut options {
        if let Some((name @ ("measure" | "measure_list" | "appraise_key"), path)) = option.split_once('=') {
            let path = std::path::absolute(path).with_context(|| path.to_owned())?;
            let path = path.to_str().context("a path in a mount option must be UTF-8")?;
            *option = format!("{name}={path}");
        }
    }
    Ok(options.iter().map(|option| escape_option(option)).collect())
}
