//! A real Linux kernel in an emulated machine: Debian's own, with a root of busybox and whatever a test puts beside it.
//!
//! Nothing is installed for it but qemu, busybox and cpio; the kernel's package is unpacked, not installed. It is up in a few seconds. What it says is right,
//! how fast it says so means nothing.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`] | the kernel and its modules |
//! | [`initramfs`] | what the machine finds as its root |
//! | [`guest`] | a machine that does what the host tells it, line by line |

pub mod guest;
pub mod initramfs;
pub mod kernel;

pub use guest::{Boot, Guest};
pub use initramfs::Initramfs;
pub use kernel::Kernel;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What an emulated machine needs, and the packages that have it.
pub const PROGRAMS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("cpio", "cpio")];

/// A machine that boots this, with all that its kernel says in a file. Without acceleration: what runs the tests may be emulated or nested itself.
pub fn machine(kernel: &Kernel, archive: &Path, console: &Path, append: &str) -> Result<Command> {
    let mut serial = OsString::from("file:");
    serial.push(console);
    let qemu = crate::find_program(PROGRAMS[0].0).context("qemu-system-x86_64 is not installed")?;
    let mut command = Command::new(qemu);
    command
        .args([
            "-accel",
            "tcg,thread=multi",
            "-m",
            "256",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
        ])
        .args(["-append", &format!("console=ttyS0 panic=-1 {append}")])
        .arg("-serial")
        .arg(serial)
        .args([Path::new("-kernel"), kernel.image(), Path::new("-initrd"), archive])
        .stdin(Stdio::null());
    Ok(command)
}

/// Wait for a machine to be off. One that is not in time is switched off, and that is an error.
pub fn wait(machine: &mut Child, patience: Duration) -> Result<()> {
    let begin = Instant::now();
    loop {
        match machine.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("the emulated machine: {status}"),
            None if begin.elapsed() < patience => std::thread::sleep(Duration::from_millis(50)),
            None => {
                machine.kill()?;
                machine.wait()?;
                bail!("the emulated machine was not off after {} s", patience.as_secs());
            }
        }
    }
}
