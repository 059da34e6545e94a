//! Trees that `ivers serve` exports, as one NFSv4 client sees them.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ivers_nfs_test::client::tree::{Listed, Tree};
use ivers_nfs4::types::StateId;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Contender;
use super::mounted::make_filled;
use crate::args::Args;
use crate::image::Image;
use crate::memory;
use crate::processes;

/// The most files that are open at the same time.
const OPENS_MAX: u64 = 100_000;
/// Requests in flight where order does not matter.
const DEPTH: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// READDIR of all directories with attributes, after the start of the server.
    List,
    ListAgain,
    /// GETATTR of each file by its filehandle.
    GetAttr,
    /// LOOKUP and GETATTR of each file.
    Lookup,
    /// OPEN of files, which stay open.
    Open,
    /// GETATTR of each file beside the open files.
    GetAttrOpen,
    Close,
}

pub(super) const STEPS: [(&str, Step); 7] = [
    ("list", Step::List),
    ("list_again", Step::ListAgain),
    ("getattr", Step::GetAttr),
    ("lookup", Step::Lookup),
    ("open", Step::Open),
    ("getattr_beside_opens", Step::GetAttrOpen),
    ("close", Step::Close),
];

struct Server {
    child: Child,
    tree: Tree,
}

impl Server {
    fn start(program: &Path, image: &Path, state: &Path) -> Result<Self> {
        // The server logs to its standard error, beside the progress bar.
        let log = state.with_extension("log");
        let export = format!("{},name=/data,no_root_squash", image.display());
        let mut child = Command::new(program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--state"])
            .arg(state)
            .arg(&export)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the server has no standard output")?)
            .read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).with_context(|| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            format!("ivers serve printed {line:?}, which is not JSON, and {log}")
        })?;
        let address = said["addresses"][0].as_str().context("ivers serve printed no address")?;
        let address: SocketAddr = address.parse()?;
        Ok(Self { child, tree: Tree::connect(address, "/data/many") })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(process, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

pub(super) struct Served {
    program: PathBuf,
    image: PathBuf,
    state: PathBuf,
    files: u64,
    server: Option<Server>,
    listed: Vec<Listed>,
    opened: Vec<StateId>,
}

impl Served {
    pub(super) fn new(image: Image, files: u64, args: &Args, scratch: &Path) -> Result<Self> {
        let image = make_filled("served", image, files, args, scratch)?;
        Ok(Self {
            program: args.ivers()?,
            image,
            state: scratch.join("state"),
            files,
            server: None,
            listed: Vec::new(),
            opened: Vec::new(),
        })
    }

    /// The opens are spread over the tree.
    fn open_file(&self, number: usize) -> &Listed {
        &self.listed[number * self.listed.len() / self.files.min(OPENS_MAX) as usize]
    }
}

impl Contender for Served {
    fn options(&self) -> String {
        "no_root_squash".to_owned()
    }

    fn prepare(&mut self, step: usize) -> Result<()> {
        if STEPS[step].1 == Step::List {
            self.server = None;
            self.listed = Vec::with_capacity(self.files as usize);
            self.server = Some(Server::start(&self.program, &self.image, &self.state)?);
        }
        Ok(())
    }

    fn run(&mut self, step: usize) -> Result<f64> {
        let Some(mut server) = self.server.take() else { anyhow::bail!("the server does not run") };
        let tree = &mut server.tree;
        let ops = self.ops(step);
        let begun = Instant::now();
        match STEPS[step].1 {
            Step::List => _ = tree.walk(|file| self.listed.push(file)),
            Step::ListAgain => {
                ensure!(tree.walk(|_| ()) == self.files, "files are missing in the second list")
            }
            Step::GetAttr | Step::GetAttrOpen => {
                tree.get_attrs(DEPTH, ops, |nth| self.listed[nth as usize].handle.clone());
            }
            Step::Lookup => tree.look_up(DEPTH, ops, |nth| &self.listed[nth as usize]),
            Step::Open => {
                self.opened = (0..ops as usize).map(|nth| tree.open(self.open_file(nth))).collect();
            }
            Step::Close => {
                let opened = std::mem::take(&mut self.opened);
                opened.into_iter().enumerate().for_each(|(nth, id)| tree.close(self.open_file(nth), id));
            }
        }
        let ns = begun.elapsed().as_nanos() as f64 / ops as f64;
        ensure!(self.listed.len() as u64 == self.files, "the list has {} files", self.listed.len());
        self.server = Some(server);
        Ok(ns)
    }

    fn ops(&self, step: usize) -> u64 {
        match STEPS[step].1 {
            Step::Open | Step::Close => self.files.min(OPENS_MAX),
            _ => self.files,
        }
    }

    fn peak_bytes(&self) -> Result<Option<u64>> {
        self.server.as_ref().map(|server| memory::largest_peak_bytes(server.child.id())).transpose()
    }

    fn processor_ns(&self) -> Result<Option<u64>> {
        processes::processor_ns(self.server.as_ref().map(|server| server.child.id()))
    }

    fn device_reads(&self) -> Result<Option<u64>> {
        let mut stats = Command::new(&self.program);
        let output = stats.args(["stats", "--json"]).arg(&self.state).output()?;
        ensure!(output.status.success(), "{stats:?}: {}", String::from_utf8_lossy(&output.stderr));
        let stats: Value = serde_json::from_slice(&output.stdout)?;
        let reads = stats["exports"]["/data"]["device_reads"].as_u64();
        Ok(Some(reads.context("the statistics of the server lack device_reads")?))
    }

    fn end(&mut self) -> Result<()> {
        self.server = None;
        Ok(())
    }
}
