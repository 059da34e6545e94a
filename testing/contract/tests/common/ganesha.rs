//! nfs-ganesha with its VFS backend on ext4 of the running kernel: its change attribute is the change time.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ivers_oracle::{LoopMount, run};
use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server, with an export `/data`.
pub struct Ganesha {
    pub address: SocketAddr,
    child: Child,
    mounted: Option<LoopMount>,
    _dir: TempDir,
}

impl Ganesha {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let [image, config, log, pid] = ["image", "config", "log", "pid"].map(|name| dir.path().join(name));
        std::fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("the image");
        run("mkfs.ext4", ["-q", "-F", "-b", "4096", image.to_str().expect("a path")]).expect("mkfs");
        let mounted = LoopMount::new(&image, "rw").expect("a loop mount");
        // It does not choose a free port itself.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("the port");
        drop(listener);
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; \
             Enable_NLM = false; Enable_RQUOTA = false; MNT_Port = 0; }}\n\
             NFSV4 {{ Graceless = true; Lease_Lifetime = 60; RecoveryRoot = \"{state}\"; \
             Minor_Versions = 1, 2; Only_Numeric_Owners = true; }}\n\
             EXPORT {{ Export_Id = 1; Path = \"{path}\"; Pseudo = \"/data\"; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP; \
             FSAL {{ Name = VFS; }} }}\n",
            port = address.port(),
            state = dir.path().display(),
            path = mounted.path().display(),
        );
        std::fs::write(&config, text).expect("the configuration");
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
        let mut child = command.stdout(Stdio::null()).spawn().expect("ganesha.nfsd starts");
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = child.try_wait().expect("its state").is_some();
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!ended && started.elapsed() < START_TIMEOUT, "ganesha does not start: {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { address, child, mounted: Some(mounted), _dir: dir }
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mounted) = self.mounted.take() {
            let _ = mounted.unmount();
        }
    }
}
