//! Starts each server on a new image, stops it, and checks the image with e2fsck.

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
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The counters of our server that rows report.
pub const COUNTERS: [&str; 3] = ["inode_updates", "journal_blocks", "queries"];

/// A running server.
pub struct Server {
    /// The name of the server in rows.
    pub name: &'static str,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The path of the export.
    pub export: &'static str,
    child: Child,
    image: PathBuf,
    /// The directory where the kernel has mounted the image, for ganesha.
    mounted: Option<PathBuf>,
    /// The program and its state directory, for our server.
    stats_source: Option<(PathBuf, PathBuf)>,
    _dir: TempDir,
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str().context("the path is not UTF-8")
}

fn make_image(dir: &TempDir) -> Result<PathBuf> {
    let image = dir.path().join("image");
    fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    run("/sbin/mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", lazy, path_str(&image)?])?;
    Ok(image)
}

impl Server {
    /// Starts `ivers serve` with these export options.
    pub fn ivers(program: &Path, name: &'static str, options: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (image, state) = (make_image(&dir)?, dir.path().join("state"));
        let export = format!("{},name=/data,no_root_squash,{options}", path_str(&image)?);
        let mut child = Command::new(program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--state", path_str(&state)?, &export])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the server has no standard output")?)
            .read_line(&mut line)?;
        let json: serde_json::Value = serde_json::from_str(&line)
            .with_context(|| format!("ivers serve printed {line:?}, which is not JSON"))?;
        let address = json["addresses"][0].as_str().context("ivers serve printed no address")?.parse()?;
        let stats_source = Some((program.to_owned(), state));
        Ok(Self { name, address, export: "/data", child, image, mounted: None, stats_source, _dir: dir })
    }

    /// Starts `ganesha.nfsd` with its VFS backend on the kernel's ext4, mounted with these options.
    pub fn ganesha(name: &'static str, options: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (image, mounted) = (make_image(&dir)?, dir.path().join("mounted"));
        fs::create_dir(&mounted)?;
        run("mount", &["-o", options, path_str(&image)?, path_str(&mounted)?])?;
        // Ganesha does not accept port 0, so choose a port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let [config, log, pid] = ["config", "log", "pid"].map(|name| dir.path().join(name));
        fs::write(
            &config,
            format!(
                "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; \
                 Enable_NLM = false; Enable_RQUOTA = false; MNT_Port = 0; }}\n\
                 NFSV4 {{ Grace_Period = 1; Lease_Lifetime = 60; \
                 RecoveryRoot = \"{state}\"; Minor_Versions = 0, 1, 2; }}\n\
                 EXPORT {{ Export_Id = 1; Path = \"{path}\"; Pseudo = \"/data\"; Access_Type = RW; \
                 Squash = No_Root_Squash; SecType = sys; Protocols = 4; \
                 Transports = TCP; FSAL {{ Name = VFS; }} }}\n",
                state = dir.path().display(),
                path = mounted.display(),
            ),
        )?;
        let child = Command::new("ganesha.nfsd")
            .args([
                "-F",
                "-f",
                path_str(&config)?,
                "-L",
                path_str(&log)?,
                "-p",
                path_str(&pid)?,
                "-N",
                "EVENT",
            ])
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run ganesha.nfsd; install nfs-ganesha and nfs-ganesha-vfs")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Self {
            name,
            address,
            export: "/data",
            child,
            image,
            mounted: Some(mounted),
            stats_source: None,
            _dir: dir,
        };
        server.wait_for_port(&log)?;
        // Wait for the end of its grace period.
        sleep(Duration::from_secs(3));
        Ok(server)
    }

    fn wait_for_port(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(self.address).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!(
                    "ganesha.nfsd does not accept connections: {}",
                    fs::read_to_string(log).unwrap_or_default()
                );
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Returns the processor time of the server in seconds.
    ///
    /// Source: `utime` and `stime` in `/proc/PID/stat`, in units of 10 ms (proc(5)).
    pub fn processor_time(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat: no command name")?;
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }

    /// Returns the values of [`COUNTERS`]; `None` for ganesha.
    pub fn counts(&self) -> Result<Option<[u64; 3]>> {
        let Some((program, state)) = &self.stats_source else { return Ok(None) };
        let output = Command::new(program).args(["stats", "--json"]).arg(state).output()?;
        let json: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("ivers stats printed no JSON")?;
        let mut counts = [0; 3];
        for (count, name) in counts.iter_mut().zip(COUNTERS) {
            *count = json["exports"][self.export][name]
                .as_u64()
                .with_context(|| format!("ivers stats printed no {name}"))?;
        }
        Ok(Some(counts))
    }

    /// Stops the server and checks its image.
    pub fn stop(mut self) -> Result<()> {
        self.shut_down()?;
        run("/sbin/e2fsck", &["-fn", path_str(&self.image)?])
    }

    fn shut_down(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            let pid = Pid::from_raw(self.child.id().cast_signed()).context("invalid process ID")?;
            kill_process(pid, Signal::TERM)?;
            self.child.wait()?;
        }
        match self.mounted.take() {
            Some(mounted) => run("umount", &[path_str(&mounted)?]),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Access something only after an earlier error, which is the one to report.
        let _ = self.shut_down();
    }
}
