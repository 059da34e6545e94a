//! Where a running server is asked how it is: a socket in its state directory, and HTTP for Prometheus.
//!
//! Who may write to the directory may ask at the socket: it sends one line of JSON and ends. HTTP is answered to whoever reaches the address: one request a
//! connection, of which the first line alone counts. A connection that dawdles ends; more than a few at once are turned away.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::stats::{Board, prometheus};
use crate::failure::{FAILED, failure};

/// The socket's name.
const SOCKET: &str = "stats";
/// A request and its answer take no longer.
const TIME: Duration = Duration::from_secs(5);
/// No request has a longer head.
const HEAD_MAX: usize = 8 << 10;
/// So many are answered at once.
const AT_ONCE: usize = 8;
/// No server says more of itself.
const ANSWER_MAX: u64 = 16 << 20;

/// The socket by a path that fits an address, however long the directory's is.
fn short(dir: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()).into()
}

/// Listen in a state directory, of which this process is the one server: what is there is a dead one's.
pub fn listen(state: &Path) -> std::io::Result<UnixListener> {
    let dir = File::open(state)?;
    match std::fs::remove_file(state.join(SOCKET)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(short(&dir))
}

/// Nobody listens there any more.
pub fn leave(state: &Path) {
    // The next server takes it away as well.
    let _ = std::fs::remove_file(state.join(SOCKET));
}

/// Ask the server that keeps its state in a directory. `None`: no server does.
pub fn ask(state: &Path) -> Result<Option<Value>> {
    use std::os::unix::fs::FileTypeExt;
    let found = std::fs::symlink_metadata(state.join(SOCKET));
    if !found.is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(None);
    }
    let place = || state.display().to_string();
    let dir = File::open(state).with_context(place)?;
    let stream = match UnixStream::connect(short(&dir)) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Err(failure(
                FAILED,
                format!("{}: the server that kept its state there has died", place()),
            ));
        }
        stream => stream.with_context(place)?,
    };
    stream.set_read_timeout(Some(TIME))?;
    let mut text = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut text).with_context(place)?;
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|_| failure(FAILED, format!("{}: the server there is about to end", place())))
}

/// Answer at the socket until the process ends.
pub fn answer_socket(listener: UnixListener, board: Arc<Board>) -> std::io::Result<()> {
    spawn("ivers-stats", move || {
        loop {
            let Ok((mut stream, _)) = listener.accept() else {
                pause();
                continue;
            };
            // Who has gone, or does not read, needs no answer.
            let _ = stream.set_write_timeout(Some(TIME));
            if let Some(stats) = board.json() {
                let _ = stream.write_all(format!("{stats}\n").as_bytes());
            }
        }
    })
}

/// Answer HTTP until the process ends.
pub fn answer_http(listener: TcpListener, board: Arc<Board>) -> std::io::Result<()> {
    let busy = Arc::new(AtomicUsize::new(0));
    spawn("ivers-metrics", move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                pause();
                continue;
            };
            if busy.load(Ordering::Acquire) >= AT_ONCE {
                continue;
            }
            busy.fetch_add(1, Ordering::AcqRel);
            let (theirs, board) = (busy.clone(), board.clone());
            let begun = spawn("ivers-metric", move || {
                // What went wrong is the other side's affair.
                let _ = serve(&stream, &board);
                theirs.fetch_sub(1, Ordering::AcqRel);
            });
            if begun.is_err() {
                busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

/// No descriptors: asked again at once, it would say the same.
fn pause() {
    std::thread::sleep(Duration::from_millis(200));
}

fn serve(mut stream: &TcpStream, board: &Board) -> std::io::Result<()> {
    let until = Instant::now() + TIME;
    let head = read_head(stream, until)?;
    let (status, kind, body) = match request(&head) {
        Request::Metrics => match board.json() {
            Some(stats) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", prometheus(&stats)),
            None => ("503 Service Unavailable", "text/plain", "the server ends\n".into()),
        },
        Request::Other => ("404 Not Found", "text/plain", "there is /metrics\n".into()),
        Request::NotGet => ("405 Method Not Allowed", "text/plain", "GET alone\n".into()),
        Request::Bad => ("400 Bad Request", "text/plain", "no request of HTTP/1\n".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let answer = head + &body;
    let mut left = answer.as_bytes();
    while !left.is_empty() {
        stream.set_write_timeout(Some(rest(until)?))?;
        let written = stream.write(left)?;
        left = &left[written..];
    }
    Ok(())
}

/// What is left of the time.
fn rest(until: Instant) -> std::io::Result<Duration> {
    let rest = until.saturating_duration_since(Instant::now());
    if rest.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(rest) }
}

/// All up to the empty line: closed with bytes unread, a socket takes the answer back.
fn read_head(mut stream: &TcpStream, until: Instant) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while head.len() < HEAD_MAX && !head.windows(4).any(|four| four == b"\r\n\r\n") {
        stream.set_read_timeout(Some(rest(until)?))?;
        match stream.read(&mut piece)? {
            0 => break,
            length => head.extend(&piece[..length]),
        }
    }
    Ok(head)
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    Other,
    NotGet,
    Bad,
}

fn request(head: &[u8]) -> Request {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let [method, target, version] = words[..] else { return Request::Bad };
    if !version.starts_with(b"HTTP/1.") || !head.windows(4).any(|four| four == b"\r\n\r\n") {
        return Request::Bad;
    }
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics" | b"/") => Request::Metrics,
        (b"GET", _) => Request::Other,
        _ => Request::NotGet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let of = |line: &str| request(format!("{line}\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(of("GET /metrics HTTP/1.1"), Request::Metrics);
        assert_eq!(of("GET /metrics?x=y HTTP/1.0"), Request::Metrics);
        assert_eq!(of("GET /other HTTP/1.1"), Request::Other);
        assert_eq!(of("POST /metrics HTTP/1.1"), Request::NotGet);
        for bad in ["", "GET /metrics", "GET /metrics HTTP/2", "GET  /metrics HTTP/1.1", "\0\u{ff}"] {
            assert_eq!(of(bad), Request::Bad, "{bad}");
        }
        assert_eq!(request(b"GET /metrics HTTP/1.1\r\n"), Request::Bad, "it has no end");
    }

    #[test]
    fn a_directory_without_a_server_has_nothing_to_tell() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ask(dir.path()).unwrap().is_none());
        std::fs::write(dir.path().join(SOCKET), "").unwrap();
        assert!(ask(dir.path()).unwrap().is_none(), "a file");
        drop(listen(dir.path()).unwrap());
        assert!(ask(dir.path()).unwrap_err().to_string().contains("has died"));
        let long = dir.path().join("x".repeat(150));
        std::fs::create_dir(&long).unwrap();
        let listener = listen(&long).unwrap();
        let asked = std::thread::spawn(move || ask(&long));
        listener.accept().unwrap().0.write_all(b"{\"pid\": 7}\n").unwrap();
        assert_eq!(asked.join().unwrap().unwrap().unwrap()["pid"], 7);
    }
}
