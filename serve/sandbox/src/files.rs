//! Landlock: no files (except those of one directory, if needed), no ports, no signals to other processes.

use std::path::Path;

use crate::Guard;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest Landlock ABI whose rights are all denied here.
const KNOWN: ABI = ABI::V6;

/// The rights for files below the kept directory.
fn kept() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile
}

pub(crate) fn restrict(files_in: Option<&Path>) -> Guard {
    let directory = match files_in.map(PathFd::new).transpose() {
        Ok(directory) => directory,
        Err(error) => return Guard::Off(error.to_string()),
    };
    let status = (|| -> Result<_, RulesetError> {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(KNOWN))?
            .handle_access(AccessNet::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?;
        let rules = match directory {
            Some(directory) => rules.add_rule(PathBeneath::new(directory, kept()))?,
            None => rules,
        };
        rules.restrict_self()
    })();
    match status.map(|status| status.ruleset) {
        Ok(RulesetStatus::FullyEnforced) => Guard::On,
        Ok(RulesetStatus::PartiallyEnforced) => Guard::Partly,
        Ok(RulesetStatus::NotEnforced) => Guard::Off("this kernel has none, or it is not switched on".into()),
        Err(error) => Guard::Off(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// In isolation, since seccomp refuses the same calls before Landlock sees them.
    #[test]
    fn a_restricted_thread_cannot_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap();
        let here = path.clone();
        let thread = std::thread::spawn(move || {
            let guard = restrict(None);
            (guard, File::open(&here).map(drop), File::create(here.with_extension("new")).map(drop))
        });
        let (guard, opened, made) = thread.join().unwrap();
        if let Guard::Off(why) = guard {
            assert!(std::env::var_os("CI").is_none(), "no Landlock here: {why}");
            return;
        }
        for result in [opened, made] {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EACCES));
        }
        File::open(&path).expect("other threads keep their rights");
    }

    #[test]
    fn the_allowed_directory_stays_accessible() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, other) = (dir.path().join("kept"), dir.path().join("other"));
        std::fs::create_dir(&kept).unwrap();
        File::create(&other).unwrap();
        let thread = std::thread::spawn(move || {
            let guard = restrict(Some(&kept));
            let made = File::create(kept.join("new")).map(drop);
            let replaced = std::fs::rename(kept.join("new"), kept.join("file"));
            let removed = std::fs::remove_file(kept.join("file"));
            (guard, [made, replaced, removed], File::open(&other).map(drop))
        });
        let (guard, inside, outside) = thread.join().unwrap();
        for result in inside {
            result.unwrap();
        }
        if !matches!(guard, Guard::Off(_)) {
            assert_eq!(outside.unwrap_err().raw_os_error(), Some(libc::EACCES));
        }
    }
}
