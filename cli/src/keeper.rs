//! A process that parses an image for a command, locked in, while the command itself works with the system's files.
//!
//! The command opens the image and hands the descriptor over; the keeper enters the sandbox before it reads the first byte. What it reads it
//! writes to a pipe, and what it shall write to the image comes through one: it opens no file. Whoever takes it over through
//! a damaged image holds that image and the pipe, and what comes out of the pipe is checked as the image itself would be.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use ivers_block::FileDevice;
use ivers_vfs::{Cred, MountOptions, Vfs};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::channel::Channel;
use crate::copy::sink::{self, Outcome};
use crate::copy::source::{self, Emitter, Wish};
use crate::copy::stream::{BrokeOff, Number, Sender};
use crate::failure::{FAILED, failure};
use crate::image::{self, How};
use crate::{changed, confine, daemon, measure, mount, progress, state};

/// What a command asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Open the image, whose descriptor comes along.
    Open {
        /// What errors call it: a path, which need not be text.
        image: Vec<u8>,
        /// How.
        how: How,
        /// No bars.
        silent: bool,
    },
    /// Write the state of a tree into the pipe that comes along.
    Walk {
        /// The tree.
        path: Vec<u8>,
        /// For another time: refused where nothing lasts until then.
        to_save: bool,
    },
    /// Measure a tree; the job comes, and what was found goes, through the socket that comes along.
    Measure {
        /// The tree.
        path: Vec<u8>,
    },
    /// From now on write into the image what comes out of the pipe.
    Absorb(Absorb),
    /// Read a word of the command line into the pipe.
    Emit(Emit),
}

/// See [`Order::Absorb`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Absorb {
    /// Where to.
    pub path: Vec<u8>,
    /// More than one thing comes.
    pub many: bool,
    /// With attributes.
    pub preserve: bool,
    /// Of this image, when it is read as well.
    pub origin: u32,
}

/// See [`Order::Emit`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Emit {
    /// Of this image.
    pub origin: u32,
    /// The word as it was written.
    pub shown: String,
    /// What it names in the image.
    pub path: Vec<u8>,
    /// Directories with all that is in them; otherwise a symbolic link is followed.
    pub recursive: bool,
    /// With attributes.
    pub preserve: bool,
}

/// What a keeper answers, once to each order; the last answer comes when no more orders can.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// That is done, or begun.
    Done,
    /// The image is closed. If something was written into it: how that went.
    Closed(Option<Outcome>),
    /// It did not work.
    Failed {
        /// The exit code.
        code: u8,
        /// What is said.
        line: String,
    },
}

/// The command's end.
pub struct Keeper {
    child: Child,
    channel: Channel,
}

impl Keeper {
    /// Start one for an image that was opened as `how` says.
    pub fn start(device: &FileDevice, image: &Path, how: &How) -> Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let child = daemon::this_program()?
            .arg("keeper")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the process that parses")?;
        let mut keeper = Self { child, channel };
        let order = Order::Open {
            image: image.as_os_str().as_bytes().to_vec(),
            how: how.clone(),
            silent: progress::is_silent(),
        };
        keeper.order(&order, &[device.lend()])?;
        Ok(keeper)
    }

    /// Have an order carried out.
    pub fn order(&mut self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<()> {
        // A keeper that is gone has left its answer.
        let sent = self.channel.send(order, fds);
        match self.answer()? {
            Answer::Done => sent,
            _ => bail!("the process that parses talks nonsense"),
        }
    }

    /// No more orders: let it close the image.
    pub fn finish(mut self) -> Result<Option<Outcome>> {
        self.channel.finish()?;
        let Answer::Closed(outcome) = self.answer()? else { bail!("the process that parses talks nonsense") };
        self.child.wait()?;
        Ok(outcome)
    }

    fn answer(&mut self) -> Result<Answer> {
        match self.channel.receive()? {
            Some((Answer::Failed { code, line }, _)) => Err(failure(code, line)),
            Some((answer, _)) => Ok(answer),
            None => bail!("the process that parses {}", mount::ending(self.child.wait()?)),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Ended already, or about to: it has nobody left to listen to.
        let _ = self.channel.finish();
        let _ = self.child.wait();
    }
}

/// The keeper itself.
pub fn keep() -> Result<()> {
    let channel = Channel::inherited()?;
    // Those of a terminal reach the command too; its end closes the pipes, and then the image is closed in good order.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let answer = match serve(&channel) {
        Ok(outcome) => Answer::Closed(outcome),
        Err(error) => failed(&error),
    };
    // A command that is gone has nobody left who waits; the image is closed all the same.
    let _ = channel.send(&answer, &[]);
    Ok(())
}

fn failed(error: &anyhow::Error) -> Answer {
    Answer::Failed { code: crate::failure::code(error), line: crate::failure::short_line(error) }
}

fn only(fds: Vec<OwnedFd>) -> Result<File> {
    Ok(File::from(fds.into_iter().next().context("an order without its descriptor")?))
}

fn serve(channel: &Channel) -> Result<Option<Outcome>> {
    let Some((Order::Open { image, how, silent }, fds)) = channel.receive()? else {
        bail!("a keeper is started by other commands only");
    };
    let image = PathBuf::from(OsString::from_vec(image));
    if silent {
        progress::silence();
    }
    let device = FileDevice::adopt(only(fds)?, image.clone(), how.open_mode())?;
    if how.read_only {
        // Nothing is to be closed in good order, and a long walk would keep the lock of the image for nobody.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    confine::enter(how.sandbox);
    let options = MountOptions { background: !how.read_only, ..MountOptions::default() };
    let vfs = image::open_on(Some(device), &image, &how, options)?;
    if let Some(why) = vfs.info().read_only.as_ref().filter(|_| !how.read_only) {
        return Err(failure(FAILED, format!("{}: read-only: {why}", image.display())));
    }
    channel.send(&Answer::Done, &[])?;
    let mut work = Work { vfs: vfs.clone(), image, emitter: None, avoid: None, writer: None };
    let served = work.orders(channel);
    let written = work.writer.map(|writer| writer.join().unwrap_or_else(|_| bail!("the writer panicked")));
    // Whatever went wrong: what was written goes to the image.
    let closed = if how.read_only { Ok(()) } else { vfs.unmount() };
    let outcome = match (written, served) {
        // Where it broke off, those who wrote into the pipe know why.
        (Some(Err(error)), served) if error.is::<BrokeOff>() => served.map(|()| None)?,
        (Some(Err(error)), _) => return Err(error),
        (written, served) => served.and_then(|()| written.transpose())?,
    };
    closed.with_context(|| format!("{}: closing the image", work.image.display()))?;
    Ok(outcome)
}

struct Work {
    vfs: Arc<Vfs>,
    image: PathBuf,
    emitter: Option<Emitter>,
    avoid: Option<Number>,
    writer: Option<JoinHandle<Result<Outcome>>>,
}

impl Work {
    fn orders(&mut self, channel: &Channel) -> Result<()> {
        while let Some((order, fds)) = channel.receive()? {
            self.carry_out(order, only(fds)?)?;
            channel.send(&Answer::Done, &[])?;
        }
        Ok(())
    }

    fn carry_out(&mut self, order: Order, mut pipe: File) -> Result<()> {
        match order {
            Order::Open { .. } => bail!("an image is open already"),
            Order::Walk { path, to_save } => {
                let state = changed::walk_image(&self.vfs, &self.image, &path, to_save)?;
                Ok(pipe.write_all(&state::encode(&state)?)?)
            }
            Order::Measure { path } => measure::inside::measure(&self.vfs, &self.image, &path, pipe),
            Order::Absorb(Absorb { path, many, preserve, origin }) => {
                let shown = image::name(&self.image, &path);
                let target = sink::Image::new(self.vfs.clone(), origin, &path, &shown, many, preserve)?;
                self.avoid = Some(target.number());
                let writer = std::thread::Builder::new().name("ivers-writer".into());
                self.writer = Some(writer.spawn(move || sink::absorb(&target, pipe))?);
                Ok(())
            }
            Order::Emit(Emit { origin, shown, path, recursive, preserve }) => {
                let wish = Wish { recursive, preserve, avoid: self.avoid };
                let emitter = self.emitter.get_or_insert_with(|| Emitter::new(origin, wish));
                let source = source::Image(self.vfs.clone());
                let node = self.vfs.resolve(&Cred::root(), &path, !recursive).map_err(Into::into);
                let name = image::last_name(&path);
                emitter.emit(&source, node, &shown, name, &mut Sender::new(pipe))
            }
        }
    }
}
