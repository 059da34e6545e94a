//! Servers of other projects, and ours, each with an export on a new image.

use anyhow::{Context, Result, bail, ensure};
use ivers_oracle::machine::{Boot, Guest, Initramfs, Kernel};
use ivers_oracle::{LoopMount, run};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 1 << 30;
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The lease of servers that are killed: short, so that a restart takes seconds.
const LEASE_SECONDS: u32 = 10;
/// The series of the newer kernel.
const NEWER: &str = "6.12";
/// The name of the export, for servers that let us choose it.
const EXPORT: &str = "/data";
/// Flags of an export in Linux (include/uapi/linux/nfsd/export.h): insecure ports, no check of subtrees, and
/// `fsid=`.
const EXPORT_FLAGS: u32 = 0x2 | 0x400 | 0x2000;

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// nfs-ganesha with its VFS backend, on ext4 of the running kernel.
    Ganesha,
    /// The same, with delegations in its configuration.
    GaneshaDelegates,
    /// The NFS server of an emulated Linux kernel, on a filesystem of this type.
    Linux(&'static str),
    /// The same with a newer kernel, which has write delegations, on ext4.
    NewerLinux,
    /// `ivers serve` with an ext4 image.
    Ivers,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Ivers,
        Self::Ganesha,
        Self::GaneshaDelegates,
        Self::Linux("ext4"),
        Self::Linux("xfs"),
        Self::Linux("btrfs"),
        Self::NewerLinux,
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Ganesha => "nfs-ganesha, VFS on ext4".to_owned(),
            Self::GaneshaDelegates => "nfs-ganesha with delegations, VFS on ext4".to_owned(),
            Self::Linux(fs) => format!("Linux, {fs}"),
            Self::NewerLinux => format!("Linux {NEWER}, ext4"),
            Self::Ivers => "ivers, ext4".to_owned(),
        }
    }

    pub(super) fn is_ganesha(self) -> bool {
        matches!(self, Self::Ganesha | Self::GaneshaDelegates)
    }

    /// Returns whether the server is in an emulated machine.
    pub(super) fn is_emulated(self) -> bool {
        matches!(self, Self::Linux(_) | Self::NewerLinux)
    }

    fn format(self) -> &'static str {
        if let Self::Linux(fs) = self { fs } else { "ext4" }
    }

    /// Starts a server of this kind.
    pub(super) fn start(self, ivers: &Path, target: &Path) -> Result<Server> {
        let dir = tempfile::Builder::new().prefix("ivers-nfs-").tempdir()?;
        let image = dir.path().join("image");
        make_image(self.format(), &image)?;
        let port = free_port()?;
        let (running, export) = match self {
            Self::Ganesha | Self::GaneshaDelegates => {
                let mounted = LoopMount::new(&image, "rw")?;
                let child = self.run_ganesha(&mounted, dir.path(), port)?;
                (Running::Program { child, mounted: Some(mounted) }, EXPORT.to_owned())
            }
            Self::Linux(_) | Self::NewerLinux => (self.linux(&image, target, port)?, String::new()),
            Self::Ivers => (serve(ivers, &image, dir.path(), port)?, EXPORT.to_owned()),
        };
        let url = format!("nfs://127.0.0.1:{port}{export}");
        Ok(Server { url, running, port, image, dir })
    }

    fn run_ganesha(self, mounted: &LoopMount, dir: &Path, port: u16) -> Result<Child> {
        let [config, log, pid] = ["config", "log", "pid"].map(|name| dir.join(name));
        let delegates = self == Self::GaneshaDelegates;
        let which = if delegates { "readwrite" } else { "none" };
        fs::write(
            &config,
            format!(
                "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; \
                 Enable_NLM = false; Enable_RQUOTA = false; MNT_Port = 0; }}\n\
                 NFSV4 {{ Grace_Period = 1; Lease_Lifetime = 60; RecoveryRoot = \"{state}\"; \
                 Minor_Versions = 0, 1, 2; Only_Numeric_Owners = true; Delegations = {delegates}; }}\n\
                 EXPORT {{ Export_Id = 1; Path = \"{path}\"; Pseudo = \"{EXPORT}\"; Access_Type = RW; \
                 Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP; \
                 Delegations = {which}; FSAL {{ Name = VFS; }} }}\n",
                state = dir.display(),
                path = mounted.path().display(),
            ),
        )?;
        let mut command = Command::new("ganesha.nfsd");
        command
            .arg("-F")
            .arg("-f")
            .arg(&config)
            .arg("-L")
            .arg(&log)
            .arg("-p")
            .arg(&pid)
            .args(["-N", "EVENT"]);
        let mut child = command.stdout(Stdio::null()).spawn().context("cannot run ganesha.nfsd")?;
        wait_for(port, Some(&mut child)).with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        // Waits until its grace period has ended.
        sleep(Duration::from_secs(3));
        Ok(child)
    }

    /// Starts the kernel's server without its helper programs: their answers are written into the caches
    /// before.
    fn linux(self, image: &Path, target: &Path, port: u16) -> Result<Running> {
        let (fs, work) = (self.format(), target.join("kernel"));
        let newer = self == Self::NewerLinux;
        let kernel = if newer { Kernel::newest_of(NEWER, &work) } else { Kernel::newest(&work) }?;
        let names = kernel.with_needed(&["virtio_blk", "crc32c_generic", "md5", fs, "nfsd"])?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let boot = Boot::new(kernel, Initramfs::new()?, &names)?;
        let mut guest = boot.boot_with_disk("server", image, port, 2049)?;
        let forever = 0x7fff_ffff;
        for line in [
            // Where the kernel remembers its clients.
            "mkdir -p /var/lib/nfs/v4recovery".to_owned(),
            format!("mount -t {fs} /dev/vda /mnt"),
            "mount -t nfsd nfsd /proc/fs/nfsd".to_owned(),
            format!("echo nfsd 10.0.2.2 {forever} all > /proc/net/rpc/auth.unix.ip/channel"),
            format!(
                "echo all /mnt {forever} {EXPORT_FLAGS} 65534 65534 0 > /proc/net/rpc/nfsd.export/channel"
            ),
            format!("printf '%s\\n' 'all 1 \\x00000000 {forever} /mnt' > /proc/net/rpc/nfsd.fh/channel"),
            "echo 10 > /proc/fs/nfsd/nfsv4gracetime; echo 60 > /proc/fs/nfsd/nfsv4leasetime".to_owned(),
            "echo -2 -3 +4 +4.1 +4.2 > /proc/fs/nfsd/versions".to_owned(),
            "echo tcp 2049 > /proc/fs/nfsd/portlist".to_owned(),
            "echo 8 > /proc/fs/nfsd/threads".to_owned(),
            "echo Y > /proc/fs/nfsd/v4_end_grace".to_owned(),
        ] {
            guest.run(&line)?;
        }
        wait_for(port, None)?;
        Ok(Running::Machine(Box::new(guest)))
    }
}

enum Running {
    Program { child: Child, mounted: Option<LoopMount> },
    Machine(Box<Guest>),
}

/// A running server.
pub(super) struct Server {
    /// The name of the exported directory.
    pub(super) url: String,
    running: Running,
    port: u16,
    image: PathBuf,
    dir: TempDir,
}

/// Returns a port that was free a moment ago: the servers do not choose one themselves.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn make_image(fs: &str, image: &Path) -> Result<()> {
    File::create(image)?.set_len(IMAGE_BYTES)?;
    let (program, options) = match fs {
        "ext4" => ("mkfs.ext4", &["-q", "-F", "-b", "4096"][..]),
        "xfs" => ("mkfs.xfs", &["-q", "-f"][..]),
        "btrfs" => ("mkfs.btrfs", &["-q", "-f"][..]),
        other => bail!("no program makes {other}"),
    };
    let image = image.to_str().context("the image's name is not UTF-8")?;
    run(program, options.iter().chain([&image])).map(drop)
}

/// Waits until a server accepts connections.
fn wait_for(port: u16, child: Option<&mut Child>) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut child = child;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(child) = child.as_deref_mut() {
            ensure!(child.try_wait()?.is_none(), "the server has ended");
        }
        ensure!(Instant::now() < deadline, "the server does not accept connections");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns major and minor version of nfs-ganesha.
pub(super) fn version_of_ganesha() -> Result<(u32, u32)> {
    let output = run("ganesha.nfsd", ["-v"])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers =
        said.split(" = V").nth(1).unwrap_or_default().split(|digit: char| !digit.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    next().zip(next()).with_context(|| format!("nfs-ganesha does not tell its version: {said}"))
}

fn serve(ivers: &Path, image: &Path, dir: &Path, port: u16) -> Result<Running> {
    let export = format!("data={},no_root_squash", image.display());
    let mut command = Command::new(ivers);
    command.args(["serve", "--json", "--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--lease", &LEASE_SECONDS.to_string(), "--export", &export, "--state"]);
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut child = command.arg(dir.join("state")).stdout(Stdio::piped()).stderr(log).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    ensure!(line.starts_with('{'), "{}", fs::read_to_string(dir.join("log")).unwrap_or_default());
    Ok(Running::Program { child, mounted: None })
}

impl Server {
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns how the program of the server has ended, if it has.
    pub(super) fn has_ended(&mut self) -> Option<String> {
        let Running::Program { child, .. } = &mut self.running else { return None };
        child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Starts a server again that has ended by itself.
    pub(super) fn start_again(&mut self, kind: Kind, ivers: &Path) -> Result<()> {
        if self.has_ended().is_none() {
            return Ok(());
        }
        let Running::Program { child, mounted } = &mut self.running else { return Ok(()) };
        *child = match mounted {
            Some(mounted) => kind.run_ganesha(mounted, self.dir.path(), self.port)?,
            None => match serve(ivers, &self.image, self.dir.path(), self.port)? {
                Running::Program { child, .. } => child,
                Running::Machine(_) => bail!("not a program"),
            },
        };
        Ok(())
    }

    /// Kills a server of ours and starts it again at the same address, after `between` with its image.
    pub(super) fn kill_and_restart(
        &mut self,
        ivers: &Path,
        between: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let Running::Program { child, .. } = &mut self.running else { bail!("not a program") };
        child.kill()?;
        child.wait()?;
        between(&self.image)?;
        self.running = serve(ivers, &self.image, self.dir.path(), self.port)?;
        Ok(())
    }

    /// Stops the server, and lets the checker of its filesystem judge the image.
    pub(super) fn stop(mut self, kind: Kind) -> Result<()> {
        match &mut self.running {
            Running::Program { child, mounted } => {
                let pid = Pid::from_raw(child.id().cast_signed()).context("invalid process ID")?;
                kill_process(pid, Signal::TERM)?;
                child.wait()?;
                if let Some(mounted) = mounted.take() {
                    mounted.unmount()?;
                }
            }
            Running::Machine(guest) => {
                let complaints = guest.complaints();
                ensure!(complaints.is_empty(), "the server's kernel: {complaints:#?}");
                guest.run("echo 0 > /proc/fs/nfsd/threads")?;
                guest.run("umount /mnt")?;
            }
        }
        let image = self.image.as_path();
        match kind.format() {
            "xfs" => run("xfs_repair", [Path::new("-n"), image]).map(drop),
            "btrfs" => run("btrfs", [Path::new("check"), Path::new("--check-data-csum"), image]).map(drop),
            _ => ivers_oracle::e2fsck(image),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This happens only after an earlier error, and that error is reported.
        if let Running::Program { child, .. } = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
