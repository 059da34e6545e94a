//! The servers: started on images of their own, stopped in good order, their images looked at by e2fsck.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 2 << 30;
const PATIENCE: Duration = Duration::from_secs(30);

/// What our servers count, as rows call it.
pub const COUNTED: [&str; 3] = ["inode_updates", "journal_blocks", "queries"];

/// One that is measured.
pub struct Server {
    /// As rows call it.
    pub name: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// The path of its export.
    pub export: &'static str,
    child: Child,
    image: PathBuf,
    /// Where the kernel has mounted the image.
    mounted: Option<PathBuf>,
    /// Ours: the program, and its state directory.
    asked: Option<(PathBuf, PathBuf)>,
    _dir: TempDir,
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    ensure!(
        output.status.success(),
        "{program} {}: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn word(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

fn image(dir: &TempDir) -> Result<PathBuf> {
    let image = dir.path().join("image");
    fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    run("/sbin/mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", lazy, word(&image)?])?;
    Ok(image)
}

impl Server {
    /// `ivers serve` with these options of the export.
    pub fn ivers(program: &Path, name: &'static str, options: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (image, state) = (image(&dir)?, dir.path().join("state"));
        let export = format!("{},name=/data,no_root_squash,{options}", word(&image)?);
        let mut child = Command::new(program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--state", word(&state)?, &export])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let told: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("ivers serve said {line:?}"))?;
        let address = told["addresses"][0].as_str().context("an address")?.parse()?;
        let asked = Some((program.to_owned(), state));
        Ok(Self { name, address, export: "/data", child, image, mounted: None, asked, _dir: dir })
    }

    /// `ganesha.nfsd` with its VFS backend on the kernel's ext4, mounted with these options.
    pub fn ganesha(name: &'static str, options: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (image, mounted) = (image(&dir)?, dir.path().join("mounted"));
        fs::create_dir(&mounted)?;
        run("mount", &["-o", options, word(&image)?, word(&mounted)?])?;
        // Free a moment ago; it takes no port 0.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let [config, log, pid] = ["config", "log", "pid"].map(|name| dir.path().join(name));
        fs::write(
            &config,
            format!(
                "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Enable_NLM = false; \
                 Enable_RQUOTA = false; MNT_Port = 0; }}\n\
                 NFSV4 {{ Grace_Period = 1; Lease_Lifetime = 60; RecoveryRoot = \"{state}\"; Minor_Versions = 0, 1, 2; }}\n\
                 EXPORT {{ Export_Id = 1; Path = \"{path}\"; Pseudo = \"/data\"; Access_Type = RW; \
                 Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}\n",
                state = dir.path().display(),
                path = mounted.display(),
            ),
        )?;
        let child = Command::new("ganesha.nfsd")
            .args(["-F", "-f", word(&config)?, "-L", word(&log)?, "-p", word(&pid)?, "-N", "EVENT"])
            .stdout(Stdio::null())
            .spawn()
            .context("ganesha.nfsd (Debian's nfs-ganesha and nfs-ganesha-vfs)")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Self {
            name,
            address,
            export: "/data",
            child,
            image,
            mounted: Some(mounted),
            asked: None,
            _dir: dir,
        };
        server.wait_for_port(&log)?;
        // Its grace period.
        sleep(Duration::from_secs(3));
        Ok(server)
    }

    fn wait_for_port(&mut self, log: &Path) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > end {
                bail!("ganesha.nfsd does not serve: {}", fs::read_to_string(log).unwrap_or_default());
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Seconds that its threads have worked (proc(5): utime and stime of `stat`, in hundredths of a second).
    pub fn processor_time(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("a name in parentheses")?;
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }

    /// What it has counted, by the names of [`COUNTED`]; of ours alone.
    pub fn counts(&self) -> Result<Option<[u64; 3]>> {
        let Some((program, state)) = &self.asked else { return Ok(None) };
        let output = Command::new(program).args(["stats", "--json"]).arg(state).output()?;
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("its statistics")?;
        let mut counts = [0; 3];
        for (count, name) in counts.iter_mut().zip(COUNTED) {
            *count = told["exports"][self.export][name].as_u64().with_context(|| name.to_owned())?;
        }
        Ok(Some(counts))
    }

    /// End it, and have its image looked at.
    pub fn stop(mut self) -> Result<()> {
        self.end()?;
        run("/sbin/e2fsck", &["-fn", word(&self.image)?])
    }

    fn end(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            let pid = Pid::from_raw(self.child.id().cast_signed()).context("a process")?;
            kill_process(pid, Signal::TERM)?;
            self.child.wait()?;
        }
        match self.mounted.take() {
            Some(mounted) => run("umount", &[word(&mounted)?]),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only where something failed before: that is what is reported.
        let _ = self.end();
    }
}
