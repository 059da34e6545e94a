//! What the shell shows: `ls`, `cat`, `stat` and `tree` in the image process, and the checks that `cd` and
//! `sync` need.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use anyhow::Result;
use ivers_vfs::{Error, FileType, NameError};
use serde::{Deserialize, Serialize};

use super::super::{cat, ls, stat, tree};
use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::output::failure::StdoutError;

/// A command that changes nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Show {
    /// `ls`
    Ls(ls::Args),
    /// `cat`
    Cat(cat::Args),
    /// `stat`
    Stat(stat::Args),
    /// `tree`
    Tree(tree::Args),
    /// Fails if the operand is not a directory.
    IsDirectory,
    /// Makes all earlier changes durable.
    Sync,
}

impl Operation for Show {
    fn report(&self) -> Report {
        let operation = match self {
            Show::Ls(_) => "ls",
            Show::Cat(_) => "cat",
            Show::Stat(_) => "stat",
            Show::Tree(_) => "tree",
            Show::IsDirectory => "cd",
            Show::Sync => "sync",
        };
        Report { operation, verbs: ("shown", "would show"), verbose: false, dry_run: false }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let (vfs, image, json) = (session.vfs, session.image, session.json);
        if let Show::Sync = self {
            return session.at(b"/", vfs.sync());
        }
        let mut paths = Vec::new();
        for operand in &targets.operands {
            paths.extend(session.expand(operand, Unmatched::Error)?);
        }
        if let Show::Ls(args) = self {
            paths.sort_by_cached_key(|path| ls::lists_names(vfs, path, args));
        }
        let words: Vec<_> =
            paths.iter().map(|path| PathBuf::from(OsString::from_vec(path.clone()))).collect();
        let mut out = std::io::stdout().lock();
        let mut follows = false;
        for word in &words {
            session.check()?;
            let path = word.as_os_str().as_bytes();
            let done = match self {
                Show::Ls(args) => {
                    let args = args.clone().with_paths(words.clone());
                    ls::list(vfs, image, path, &args, json, &mut session.problems, &mut follows)
                }
                Show::Cat(_) => cat::copy(vfs, image, path, json, &mut out),
                Show::Stat(args) => stat::of_image(vfs, image, path, args, json),
                Show::Tree(args) => tree::show(vfs, image, path, args, json, &mut session.problems),
                Show::IsDirectory => session.resolve(path, true).and_then(|inode| {
                    let is_directory = inode.kind == FileType::Directory;
                    let checked =
                        if is_directory { Ok(()) } else { Err(Error::from(NameError::NotDirectory)) };
                    session.at(path, checked)
                }),
                Show::Sync => Ok(()),
            };
            session.report(done)?;
        }
        Ok(out.flush().map_err(StdoutError)?)
    }
}
