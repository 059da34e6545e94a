//! Landlock: no file, no port, no signal to others.

use crate::Guard;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus, Scope,
};

/// The newest interface whose rights are all denied here.
const KNOWN: ABI = ABI::V6;

pub(crate) fn restrict() -> Guard {
    let status = (|| -> Result<_, RulesetError> {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(KNOWN))?
            .handle_access(AccessNet::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?
            .restrict_self()
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

    /// Alone, since seccomp refuses the same calls before Landlock sees them.
    #[test]
    fn nothing_opens_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap();
        let here = path.clone();
        let thread = std::thread::spawn(move || {
            let guard = restrict();
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
}
