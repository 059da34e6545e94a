//! The policy and keys of a run, and what they say of a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_ima::digest::Algorithm;
use ivers_ima::keys::Keyring;
use ivers_ima::policy::{Decision, FileAccess, Func, Mask, Policy};
use ivers_ima::signature;
use ivers_ima::store::Record;

use crate::output::failure::usage;
use crate::output::format::Shown;

/// Longest policy in bytes.
const POLICY_MAX: u64 = 1 << 20;

/// Returns the decision of a policy on a file that is read and, if its mode allows that, executed.
pub fn decide(policy: &Policy, used: &FileAccess<'_>, mode: u32) -> Decision {
    let decision = policy.decide(used);
    if mode & 0o111 == 0 {
        return decision;
    }
    [Func::FileCheck, Func::BprmCheck].into_iter().fold(decision, |decision, func| {
        decision.or(policy.decide(&FileAccess { func, mask: Mask::EXEC, ..used.clone() }))
    })
}

/// Returns whether a known digest has the algorithm that would be used now.
pub fn has_current_algorithm(known: &Record, algorithm: Algorithm) -> bool {
    known.digest.algorithm() == signature::algorithm(&known.label, algorithm)
}

/// Reads the text of a policy and checks its syntax.
pub fn read_policy(path: &Path) -> Result<String> {
    let invalid = |why: String| usage(format!("{}: {why}", path.shown()));
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(POLICY_MAX + 1).read_to_end(&mut bytes));
    read.with_context(|| path.shown())?;
    if bytes.len() as u64 > POLICY_MAX {
        return Err(invalid(format!("a policy has at most {POLICY_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        invalid(format!("line {line}: not UTF-8; write such a byte of a path as \\ooo"))
    })?;
    let parsed: Result<Policy, _> = text.parse();
    parsed.map_err(|error| invalid(error.to_string()))?;
    Ok(text)
}

/// Reads keys from files.
pub fn read_keys(paths: &[PathBuf]) -> Result<Keyring> {
    let mut keys = Keyring::default();
    for path in paths {
        let bytes = std::fs::read(path).with_context(|| path.shown())?;
        keys.add(&bytes).map_err(|error| usage(format!("{}: {error}", path.shown())))?;
    }
    Ok(keys)
}

/// Returns the message of the progress bar after `files` files, the last of which needed `last_read` bytes.
pub fn progress_message(files: u64, last_read: u64) -> String {
    format!("{files} files; {}", if last_read > 0 { "reading" } else { "unchanged" })
}
