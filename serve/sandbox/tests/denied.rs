//! What a process can and cannot do after [`ivers_sandbox::enter`]. Each attempt has its own process, since
//! some attempts kill it.
//!
//! Without a test harness: the program runs itself with the name of an attempt.

use ivers_thread_sched::Class;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const SIGSYS: i32 = 31;

/// The expected end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Works,
    Refused,
    Deadly,
}

/// Descriptors that are open before the process enters the sandbox.
struct Before {
    file: File,
    sockets: (UnixStream, UnixStream),
    /// An accepted connection.
    listener: (TcpListener, TcpStream),
    /// A server may write below it.
    dir: PathBuf,
    parent: nix::unistd::Pid,
    /// Whether the process can leave `SCHED_IDLE`.
    comes_back: bool,
}

type Attempt = fn(Before) -> std::io::Result<()>;

const ATTEMPTS: &[(&str, End, Attempt)] = &[
    ("reads, writes and syncs what is open", End::Works, |mut before| {
        before.file.write_all(b"bytes")?;
        before.file.sync_all()?;
        before.file.sync_data()?;
        rustix::fs::fallocate(&before.file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 4096)?;
        rustix::io::pwritev2(
            before.file.as_fd(),
            &[std::io::IoSlice::new(b"more")],
            5,
            rustix::io::ReadWriteFlags::DSYNC,
        )?;
        Ok(())
    }),
    ("talks over sockets that are open", End::Works, |mut before| {
        before.sockets.0.write_all(b"x")?;
        before.sockets.1.read_exact(&mut [0])
    }),
    ("starts named threads, which wait and wake", End::Works, |_| {
        let (send, receive) = mpsc::channel();
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let send = send.clone();
                std::thread::Builder::new().name(format!("thread {n}")).spawn(move || {
                    std::thread::sleep(Duration::from_millis(1));
                    // This needs another malloc arena and a new mapping.
                    send.send(vec![n; 1 << 20]).unwrap();
                })
            })
            .collect::<Result<_, _>>()?;
        assert_eq!(receive.iter().take(8).map(|bytes| bytes.len()).sum::<usize>(), 8 << 20);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        Ok(())
    }),
    ("survives a panic", End::Works, |_| {
        std::panic::set_hook(Box::new(|_| {}));
        let thread = std::thread::spawn(|| panic!("on purpose"));
        assert!(thread.join().is_err());
        Ok(())
    }),
    ("asks for time and randomness", End::Works, |_| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::time::SystemTime::now());
        rustix::thread::sched_getaffinity(None)?;
        Ok(())
    }),
    ("opens /etc/passwd", End::Refused, |_| File::open("/etc/passwd").map(drop)),
    ("opens a directory", End::Refused, |_| std::fs::read_dir("/").map(drop)),
    ("looks what exists", End::Refused, |_| std::fs::metadata("/etc/passwd").map(drop)),
    ("makes a file", End::Refused, |_| File::create("/tmp/ivers-sandbox-test").map(drop)),
    ("removes a file", End::Refused, |_| std::fs::remove_file("/tmp/ivers-sandbox-test")),
    ("reopens what it has with other rights", End::Refused, |_| File::open("/proc/self/exe").map(drop)),
    ("starts a program", End::Refused, |_| Command::new("/bin/true").spawn().map(drop)),
    ("sends a signal", End::Refused, |before| {
        let parent = rustix::process::Pid::from_raw(before.parent.as_raw()).expect("a parent");
        Ok(rustix::process::kill_process(parent, rustix::process::Signal::CONT)?)
    }),
    ("becomes a program", End::Deadly, |_| Err(Command::new("/bin/true").exec())),
    ("opens a socket", End::Deadly, |_| std::net::UdpSocket::bind("127.0.0.1:0").map(drop)),
    ("opens a local socket", End::Deadly, |_| std::os::unix::net::UnixDatagram::unbound().map(drop)),
    ("traces a process", End::Deadly, |before| Ok(nix::sys::ptrace::attach(before.parent)?)),
    ("mounts", End::Deadly, |_| Ok(rustix::mount::unmount("/nowhere", rustix::mount::UnmountFlags::DETACH)?)),
    ("holds on to another process", End::Deadly, |before| {
        let parent = rustix::process::Pid::from_raw(before.parent.as_raw()).expect("a parent");
        rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty())?;
        Ok(())
    }),
];

/// As above, for a process that accepts connections and keeps files in a directory.
const SERVING: &[(&str, End, Attempt)] = &[
    ("a server takes a connection", End::Works, |before| {
        let (stream, _) = before.listener.0.accept()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        stream.peer_addr().map(drop)
    }),
    ("a server waits for many", End::Works, |before| {
        use rustix::event::epoll;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(1);
        epoll::add(&poller, &before.listener.0, data, epoll::EventFlags::IN)?;
        let mut events = Vec::with_capacity(1);
        epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), None)?;
        assert_eq!(events.len(), 1);
        Ok(())
    }),
    ("a server keeps its log", End::Works, |before| {
        let path = |name: &str| before.dir.join(name);
        let mut log = File::create(path("log.new"))?;
        log.write_all(b"record")?;
        log.sync_all()?;
        std::fs::rename(path("log.new"), path("log"))?;
        assert_eq!(std::fs::read(path("log"))?, b"record");
        std::fs::remove_file(path("log"))
    }),
    ("a server opens /etc/passwd", End::Refused, |_| File::open("/etc/passwd").map(drop)),
    ("a server makes a file elsewhere", End::Refused, |_| File::create("/tmp/ivers-sandbox-test").map(drop)),
    ("a server moves its log elsewhere", End::Refused, |before| {
        File::create(before.dir.join("log"))?;
        std::fs::rename(before.dir.join("log"), "/tmp/ivers-sandbox-test")
    }),
    ("a server makes a link", End::Refused, |before| {
        std::os::unix::fs::symlink("/etc/passwd", before.dir.join("link"))
    }),
    ("a server sets an option of a socket that is not on its list", End::Refused, |before| {
        Ok(rustix::net::sockopt::set_socket_reuseaddr(&before.listener.0, true)?)
    }),
    ("a server connects", End::Refused, |before| {
        TcpStream::connect(before.listener.0.local_addr()?).map(drop)
    }),
    ("a server becomes a program", End::Deadly, |_| Err(Command::new("/bin/true").exec())),
];

/// For a mount whose threads move to `SCHED_IDLE` and back.
const GIVING_WAY: &[(&str, End, Attempt)] = &[
    ("gives way, and comes back if it could before", End::Works, |before| {
        ivers_thread_sched::set_own_class(Class::Idle)?;
        if ivers_thread_sched::can_leave_idle() {
            return Err(ErrorKind::InvalidData.into());
        }
        match ivers_thread_sched::set_own_class(Class::Normal) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !before.comes_back => return Ok(()),
            done => done?,
        }
        if ivers_thread_sched::can_leave_idle() { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }),
    ("makes another thread give way", End::Refused, |before| {
        ivers_thread_sched::set_class(before.parent.as_raw().unsigned_abs(), Class::Idle)
    }),
    ("makes itself nicer", End::Refused, |_| Ok(rustix::process::setpriority_process(None, -5)?)),
];

fn attempt(name: &str) {
    let named = |(known, ..): &&(&str, End, Attempt)| *known == name;
    let serving = SERVING.iter().find(named);
    let giving_way = GIVING_WAY.iter().find(named);
    let (_, _, attempt) =
        serving.or(giving_way).or_else(|| ATTEMPTS.iter().find(named)).expect("a known attempt");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let before = Before {
        file: tempfile::tempfile().unwrap(),
        sockets: UnixStream::pair().unwrap(),
        listener: (listener, peer),
        dir: std::env::var_os("IVERS_SANDBOX_DIR").expect("a directory").into(),
        parent: nix::unistd::getppid(),
        comes_back: ivers_thread_sched::can_leave_idle(),
    };
    let sandbox = ivers_sandbox::enter_with(&ivers_sandbox::Needs {
        accept: serving.is_some(),
        files_in: serving.map(|_| before.dir.as_path()),
        give_way: giving_way.is_some(),
    });
    if !sandbox.is_whole() {
        println!("incomplete: {sandbox}");
        return;
    }
    match attempt(before) {
        Ok(()) => println!("works"),
        Err(error) => println!("refused: {error}"),
    }
}

fn main() {
    if let Ok(name) = std::env::var("IVERS_SANDBOX_ATTEMPT") {
        return attempt(&name);
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, end, _) in ATTEMPTS.iter().chain(SERVING).chain(GIVING_WAY) {
        let output = Command::new(std::env::current_exe().unwrap())
            .env("IVERS_SANDBOX_ATTEMPT", name)
            .env("IVERS_SANDBOX_DIR", dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        if said.starts_with("incomplete") && std::env::var_os("CI").is_none() {
            println!("this kernel lends no whole sandbox: {}", said.trim());
            return;
        }
        let found = match output.status.signal() {
            Some(SIGSYS) => Some(End::Deadly),
            None if said.starts_with("works") => Some(End::Works),
            None if said.starts_with("refused") => Some(End::Refused),
            _ => None,
        };
        assert_eq!(
            found,
            Some(*end),
            "{name}: {}, {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        println!("{name}: {end:?}");
    }
}
