//! A mount that measures: its list, policy and keys are files of the system, which the supervisor opens and hands to the worker.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use ivers_measure::digest::Algorithm;
use ivers_measure::guard::{Guard, Sink};
use ivers_measure::keys::Keyring;
use ivers_measure::list::Entry;
use ivers_measure::policy::Policy;
use ivers_vfs::Watch;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::kept::{self, List};
use super::{aggregates_json, read_keys, read_policy};
use crate::failure::usage;

/// How files are hashed whose `security.ima` does not say.
const ALGORITHM: Algorithm = Algorithm::Sha256;
/// No honest policy is longer, nor are the keys together.
const TEXT_MAX: u64 = 16 << 20;

/// What `-o` says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// `measure=FILE`
    pub policy: Option<PathBuf>,
    /// `measure_list=FILE`
    pub list: Option<PathBuf>,
    /// `appraise`
    pub appraise: bool,
    /// `appraise_key=FILE`, as often as there are
    pub keys: Vec<PathBuf>,
}

/// What the worker is told beside the descriptors: the list, the policy if there is one, the keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// What the list is called.
    list: String,
    /// There is a policy.
    policy: bool,
    /// Refuse what does not match.
    appraise: bool,
}

/// What a mount needs that measures, opened.
pub struct Opened {
    /// For the worker.
    pub orders: Orders,
    /// For the worker.
    pub files: Vec<File>,
}

impl Wish {
    /// Whether anything is to be measured.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// In the supervisor: look at the files, and open them.
    pub fn open(&self, image: &Path) -> Result<Opened> {
        if let Some(file) = &self.policy {
            let policy: Policy = read_policy(file)?.parse()?;
            // Passed over, such a rule would leave files open that somebody believes to be shut.
            if policy.appraises() && !self.appraise {
                let file = file.display();
                return Err(usage(format!(
                    "{file}: it has rules that appraise, which `-o appraise` alone enforces: add that, or leave the rules out"
                )));
            }
        }
        read_keys(&self.keys)?;
        let list = match &self.list {
            Some(list) => list.clone(),
            // One for each image: it tells what was used of that, over all its mounts.
            None => {
                let name = image.file_name().unwrap_or(image.as_os_str());
                let mut name = name.to_os_string();
                name.push(".list");
                kept::default_place("mounts")?.join(name)
            }
        };
        let orders = Orders {
            list: list.to_string_lossy().into_owned(),
            policy: self.policy.is_some(),
            appraise: self.appraise,
        };
        let mut files = vec![kept::open(&list)?.into_file()];
        for path in self.policy.iter().chain(&self.keys) {
            files.push(File::open(path).with_context(|| path.display().to_string())?);
        }
        Ok(Opened { orders, files })
    }
}

/// The list of a mount.
struct Keeping {
    path: String,
    /// Or why writing to it failed: an entry may be cut off in the middle then.
    list: Mutex<Result<List, String>>,
}

impl Sink for Keeping {
    fn record(&self, entry: &Entry) -> std::io::Result<()> {
        let mut kept = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let list = kept.as_mut().map_err(|why| std::io::Error::other(format!("it failed before: {why}")))?;
        if !list.add(entry) {
            return Ok(());
        }
        list.write().inspect_err(|error| *kept = Err(error.to_string()))
    }

    fn report(&self) -> String {
        let kept = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let list = match kept.as_ref() {
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

fn text(mut file: File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.by_ref().take(TEXT_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// In the worker: who watches the mount.
pub fn watch(orders: Orders, fds: Vec<OwnedFd>) -> Result<Arc<dyn Watch>> {
    let mut files = fds.into_iter().map(File::from);
    let mut next = || files.next().context("the list came without its descriptors");
    let list = next()?;
    let policy = match orders.policy {
        true => String::from_utf8(text(next()?)?)?.parse()?,
        // Whoever only appraises keeps an account of it too.
        false => Policy::measure_all(),
    };
    let mut keys = Keyring::default();
    for file in files {
        keys.add(&text(file)?)?;
    }
    let list = List::adopt(list)?.begin(policy.template(), ALGORITHM)?;
    let sink = Keeping { path: orders.list, list: Mutex::new(Ok(list)) };
    Ok(Arc::new(Guard::new(policy, ALGORITHM, keys, orders.appraise, Box::new(sink))))
}

/// The words behind `-o` with paths that mean the same in every directory.
pub fn absolute(words: &[String]) -> Result<Vec<String>> {
    let mut options = crate::options::split(words);
    for option in &mut options {
        if let Some((name @ ("measure" | "measure_list" | "appraise_key"), path)) = option.split_once('=') {
            let path = std::path::absolute(path).with_context(|| path.to_owned())?;
            let path = path.to_str().context("a path that is no text cannot be told another process")?;
            *option = format!("{name}={path}");
        }
    }
    Ok(options.iter().map(|option| crate::options::escape(option)).collect())
}
