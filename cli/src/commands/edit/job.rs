//! The requests of `edit` to an image process. The one-shot commands and the shell send the same ones.

use std::path::Path;

use anyhow::Result;
use ivers_vfs::Vfs;
use serde::{Deserialize, Serialize};

use super::session::{Operation, Session, Targets};
use super::{attr, chmod, chown, ln, mkdir, mv, rm, show, subvolume, touch};
use crate::image::process::EditOutcome;

/// An operation. A new one is a variant here, and an arm below.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Edit {
    Rm(rm::Rm),
    Mkdir(mkdir::Mkdir),
    Mv(mv::Mv),
    Ln(ln::Ln),
    Chmod(chmod::Chmod),
    Chown(chown::Chown),
    Touch(touch::Touch),
    GetAttr(attr::Get),
    SetAttr(attr::Set),
    RemoveAttr(attr::Remove),
    ListAttr(attr::List),
    ListSubvolumes(subvolume::List),
    CreateSubvolume(subvolume::Create),
    Snapshot(subvolume::Snapshot),
    DeleteSubvolume(subvolume::Delete),
    Show(show::Show),
}

impl Edit {
    fn operation(&self) -> &dyn Operation {
        match self {
            Edit::Rm(it) => it,
            Edit::Mkdir(it) => it,
            Edit::Mv(it) => it,
            Edit::Ln(it) => it,
            Edit::Chmod(it) => it,
            Edit::Chown(it) => it,
            Edit::Touch(it) => it,
            Edit::GetAttr(it) => it,
            Edit::SetAttr(it) => it,
            Edit::RemoveAttr(it) => it,
            Edit::ListAttr(it) => it,
            Edit::ListSubvolumes(it) => it,
            Edit::CreateSubvolume(it) => it,
            Edit::Snapshot(it) => it,
            Edit::DeleteSubvolume(it) => it,
            Edit::Show(it) => it,
        }
    }

    /// Returns whether the operation writes to the image.
    pub fn writes(&self) -> bool {
        match self {
            Edit::GetAttr(_) | Edit::ListAttr(_) | Edit::ListSubvolumes(_) | Edit::Show(_) => false,
            edit => !edit.operation().report().dry_run,
        }
    }
}

/// A request: an operation with its targets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// The operation.
    pub edit: Edit,
    /// The files.
    pub targets: Targets,
    /// Print JSON.
    pub json: bool,
    /// Permission bits that new files lack.
    pub umask: u32,
}

/// Most bytes of operands in a message. It has room for an attribute too.
const OPERANDS_MAX: usize = 16 << 10;

impl Job {
    /// Splits a job into jobs that fit into a message.
    pub fn split(self) -> Vec<Job> {
        let mut parts = Vec::new();
        let mut len = usize::MAX;
        let rest = Job { targets: Targets { operands: Vec::new(), ..self.targets.clone() }, ..self.clone() };
        for operand in self.targets.operands {
            let operand_len = operand.encoded_len() + 1;
            if len.saturating_add(operand_len) > OPERANDS_MAX {
                parts.push(rest.clone());
                len = 0;
            }
            len += operand_len;
            if let Some(part) = parts.last_mut() {
                part.targets.operands.push(operand);
            }
        }
        if parts.is_empty() { vec![rest] } else { parts }
    }

    /// Runs the job in the image process. `stop` returns whether it must end.
    pub fn run(&self, vfs: &Vfs, image: &Path, stop: &dyn Fn() -> bool) -> EditOutcome {
        let operation = self.edit.operation();
        let mut session = Session::new(vfs, image, self.json, self.umask, operation.report(), stop);
        let done: Result<()> = operation.run(&mut session, &self.targets);
        session.finish(done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Bytes;
    use super::*;

    #[test]
    fn a_job_with_many_operands_is_split() {
        let operands: Vec<_> = (0..5000).map(|at| Bytes(format!("/dir/file-{at}").into_bytes())).collect();
        let targets = Targets { operands: operands.clone(), to: Some(Bytes(b"/to".to_vec())), many: true };
        let job = Job { edit: Edit::Show(show::Show::Sync), targets, json: false, umask: 0 };
        let parts = job.split();
        assert!(parts.len() > 3);
        assert!(parts.iter().all(|part| serde_json::to_vec(part).unwrap().len() < 20 << 10));
        assert!(parts.iter().all(|part| part.targets.to.is_some() && part.targets.many));
        let all: Vec<_> = parts.into_iter().flat_map(|part| part.targets.operands).collect();
        assert_eq!(all, operands);
    }
}
