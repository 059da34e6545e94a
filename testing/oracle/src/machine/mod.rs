//! A real Linux kernel in an emulated machine: Debian's own, with busybox and the files of a test.
//!
//! Only qemu, busybox and cpio must be installed; the kernel's package is unpacked, not installed. A machine
//! boots in a few seconds. Its results are valid, its timing is not.
//!
//! | module | contents |
//! |---|---|
//! | [`kernel`] | the kernel and its modules |
//! | [`initramfs`] | the root filesystem |
//! | [`guest`] | a machine that executes commands of the host |

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

/// The programs for emulated machines, and their packages.
pub const PROGRAMS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("cpio", "cpio")];

/// Returns the command that boots a machine and writes its console to a file. It uses no acceleration: the
/// host can itself be virtual.
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
        // Without the check of the timer: on a busy machine it fails, and then the kernel panics.
        .args(["-append", &format!("console=ttyS0 panic=-1 no_timer_check {append}")])
        .arg("-serial")
        .arg(serial)
        .args([Path::new("-kernel"), kernel.image(), Path::new("-initrd"), archive])
        .stdin(Stdio::null());
    Ok(command)
}

/// Waits for a machine to power off. After the time limit it is killed, which is an error.
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
