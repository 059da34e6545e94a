//! Commands of `ivers` on an image that is not mounted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Contender;
use super::mounted::make_filled;
use crate::args::Args;
use crate::image::Image;
use crate::{memory, run};

/// Interval at which the memory of a running command is read.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// `changed --save`.
    Save,
    /// `changed --since`, after one file changed.
    Since,
    Tree,
    /// `measure` with an empty store.
    Measure,
    /// `measure` again.
    MeasureAgain,
    /// `cp -a` into another image.
    Copy,
}

pub(super) const STEPS: [(&str, Step); 6] = [
    ("changed_save", Step::Save),
    ("changed_since", Step::Since),
    ("tree", Step::Tree),
    ("measure", Step::Measure),
    ("measure_again", Step::MeasureAgain),
    ("cp", Step::Copy),
];

pub(super) struct Commands {
    program: PathBuf,
    image: PathBuf,
    /// The image that is copied to.
    copy: (PathBuf, Image),
    files: u64,
    scratch: PathBuf,
    peak_bytes: u64,
}

impl Commands {
    pub(super) fn new(image: Image, files: u64, args: &Args, scratch: &Path) -> Result<Self> {
        Ok(Self {
            program: args.ivers()?,
            image: make_filled("commands", image, files, args, scratch)?,
            copy: (scratch.join("copy.image"), image),
            files,
            scratch: scratch.to_owned(),
            peak_bytes: 0,
        })
    }

    fn tree(&self) -> String {
        format!("{}:/many", self.image.display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Writes to a file of the first directory.
    fn change(&self, name: &str) -> Result<()> {
        let (changed, image) = (self.path("changed"), self.image.display());
        std::fs::write(&changed, "changed")?;
        run(Command::new(&self.program).arg("cp").arg(changed).arg(format!("{image}:/many/d0/{name}")))
    }

    fn command(&self, step: Step) -> Command {
        let mut command = Command::new(&self.program);
        match step {
            Step::Save => command.args(["changed", &self.tree(), "--save"]).arg(self.path("state")),
            Step::Since => command.args(["changed", &self.tree(), "--since"]).arg(self.path("state")),
            Step::Tree => command.args(["tree", &self.tree()]),
            Step::Measure | Step::MeasureAgain => command
                .args(["measure", &self.tree(), "--list"])
                .arg(self.path("list"))
                .arg("--store")
                .arg(self.path("store")),
            Step::Copy => command.args(["cp", "-a", &self.tree(), &format!("{}:/", self.copy.0.display())]),
        };
        command
    }
}

impl Contender for Commands {
    fn options(&self) -> String {
        String::new()
    }

    fn prepare(&mut self, step: usize) -> Result<()> {
        match STEPS[step].1 {
            // The kernel filled the image: the first write by ivers raises the epoch, and all files change.
            Step::Save => self.change("f1"),
            Step::Since => self.change("f0"),
            Step::Measure => {
                for name in ["list", "store"] {
                    let _ = std::fs::remove_file(self.path(name));
                }
                Ok(())
            }
            Step::Copy => self.copy.1.make(&self.copy.0),
            Step::Tree | Step::MeasureAgain => Ok(()),
        }
    }

    fn run(&mut self, step: usize) -> Result<f64> {
        let step = STEPS[step].1;
        let printed = self.path("printed");
        let mut command = self.command(step);
        command.stdin(Stdio::null()).stdout(File::create(&printed)?);
        let begun = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot run {}", self.program.display()))?;
        self.peak_bytes = 0;
        let status = loop {
            // The peak of a process ends with it: read it often. A process that has just ended has none.
            let peak = memory::largest_peak_bytes(child.id()).unwrap_or(0);
            self.peak_bytes = self.peak_bytes.max(peak);
            if let Some(status) = child.try_wait()? {
                break status;
            }
            std::thread::sleep(SAMPLE_INTERVAL);
        };
        let ns = begun.elapsed().as_nanos() as f64 / self.files as f64;
        ensure!(status.success(), "{command:?} failed");
        if step == Step::Since {
            let printed = std::fs::read_to_string(&printed)?;
            ensure!(printed == "C d0/f0\n", "one file changed, and ivers changed printed {printed:?}");
        }
        Ok(ns)
    }

    fn ops(&self, _: usize) -> u64 {
        self.files
    }

    fn peak_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.peak_bytes))
    }

    /// Its processes end with the step.
    fn processor_ns(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn device_reads(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}
