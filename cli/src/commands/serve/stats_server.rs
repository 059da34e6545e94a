//! The statistics server of `ivers serve`: a socket in the state directory, and HTTP for Prometheus.
//!
//! The socket is open to users that may write to the directory. It sends one line of JSON and closes. HTTP is
//! open to all hosts that reach the address. It serves one request per connection, of which only the first
//! line counts. Slow connections are closed, and only a few are served at a time.
//!
//! HTTP is written by hand, because one method, one path and no headers need few lines. The parser httparse
//! would replace the ten lines of `request` by as many. An HTTP server brings an asynchronous runtime and
//! many crates into a sandboxed process.

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

use super::stats::{StatsSource, prometheus};
use crate::output::failure::{FAILED, failure};
use crate::output::format::Shown;

/// The name of the socket.
const SOCKET: &str = "stats";
/// Timeout of a request and its reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of the head of a request.
const HEAD_MAX: usize = 8 << 10;
/// Most connections at a time.
const CONNECTIONS_MAX: usize = 8;
/// Most bytes of a reply.
const REPLY_MAX: u64 = 16 << 20;

/// Returns a path of the socket that is short enough for an address, even if that of the directory is not.
fn short_path(dir: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()).into()
}

/// Listens in the state directory. This process holds its lock, so an existing socket belongs to a dead
/// server.
pub fn listen(state: &Path) -> std::io::Result<UnixListener> {
    let dir = File::open(state)?;
    match std::fs::remove_file(state.join(SOCKET)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(short_path(&dir))
}

/// Removes the socket.
pub fn remove_socket(state: &Path) {
    // The next server removes it too.
    let _ = std::fs::remove_file(state.join(SOCKET));
}

/// Queries the server that uses a state directory. `None` if there is none.
pub fn query(state: &Path) -> Result<Option<Value>> {
    use std::os::unix::fs::FileTypeExt;
    let found = std::fs::symlink_metadata(state.join(SOCKET));
    if !found.is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(None);
    }
    let context = || state.shown();
    let dir = File::open(state).with_context(context)?;
    let stream = match UnixStream::connect(short_path(&dir)) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Err(failure(
                FAILED,
                format!("{}: the server that used this state directory has died", context()),
            ));
        }
        stream => stream.with_context(context)?,
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = String::new();
    stream.take(REPLY_MAX).read_to_string(&mut text).with_context(context)?;
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|_| failure(FAILED, format!("{}: the server is shutting down", context())))
}

/// Serves statistics on the socket until the process ends.
pub fn serve_socket(listener: UnixListener, source: Arc<StatsSource>) -> std::io::Result<()> {
    spawn("ivers-stats", move || {
        loop {
            let Ok((mut stream, _)) = listener.accept() else {
                pause();
                continue;
            };
            // Errors are ignored: the client has ended or does not read.
            let _ = stream.set_write_timeout(Some(TIMEOUT));
            if let Some(stats) = source.json() {
                let _ = stream.write_all(format!("{stats}\n").as_bytes());
            }
        }
    })
}

/// Serves statistics over HTTP until the process ends.
pub fn serve_http(listener: TcpListener, source: Arc<StatsSource>) -> std::io::Result<()> {
    let busy = Arc::new(AtomicUsize::new(0));
    spawn("ivers-metrics", move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                pause();
                continue;
            };
            if busy.load(Ordering::Acquire) >= CONNECTIONS_MAX {
                continue;
            }
            busy.fetch_add(1, Ordering::AcqRel);
            let (counter, source) = (busy.clone(), source.clone());
            let started = spawn("ivers-metric", move || {
                // Errors are ignored: the connection is broken or too slow.
                let _ = serve(&stream, &source);
                counter.fetch_sub(1, Ordering::AcqRel);
            });
            if started.is_err() {
                busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

/// Waits after a failed `accept`, e.g. without free descriptors.
fn pause() {
    std::thread::sleep(Duration::from_millis(200));
}

fn serve(mut stream: &TcpStream, source: &StatsSource) -> std::io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    let head = read_head(stream, until)?;
    let (status, kind, body) = match request(&head) {
        Request::Metrics => match source.json() {
            Some(stats) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", prometheus(&stats)),
            None => ("503 Service Unavailable", "text/plain", "the server is shutting down\n".into()),
        },
        Request::Other => ("404 Not Found", "text/plain", "try /metrics\n".into()),
        Request::NotGet => ("405 Method Not Allowed", "text/plain", "only GET is supported\n".into()),
        Request::Bad => ("400 Bad Request", "text/plain", "not an HTTP/1 request\n".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let answer = head + &body;
    let mut left = answer.as_bytes();
    while !left.is_empty() {
        stream.set_write_timeout(Some(time_left(until)?))?;
        let written = stream.write(left)?;
        left = &left[written..];
    }
    Ok(())
}

/// Returns the time left until `until`.
fn time_left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads the head up to the empty line. A socket that is closed with unread bytes can discard the reply.
fn read_head(mut stream: &TcpStream, until: Instant) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while head.len() < HEAD_MAX && !head.windows(4).any(|four| four == b"\r\n\r\n") {
        stream.set_read_timeout(Some(time_left(until)?))?;
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
    fn requests_are_distinguished() {
        let of = |line: &str| request(format!("{line}\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(of("GET /metrics HTTP/1.1"), Request::Metrics);
        assert_eq!(of("GET /metrics?x=y HTTP/1.0"), Request::Metrics);
        assert_eq!(of("GET /other HTTP/1.1"), Request::Other);
        assert_eq!(of("POST /metrics HTTP/1.1"), Request::NotGet);
        for bad in ["", "GET /metrics", "GET /metrics HTTP/2", "GET  /metrics HTTP/1.1", "\0\u{ff}"] {
            assert_eq!(of(bad), Request::Bad, "{bad}");
        }
        assert_eq!(request(b"GET /metrics HTTP/1.1\r\n"), Request::Bad, "an incomplete head");
    }

    #[test]
    fn a_directory_without_a_server_has_no_statistics() {
        let dir = tempfile::tempdir().unwrap();
        assert!(query(dir.path()).unwrap().is_none());
        std::fs::write(dir.path().join(SOCKET), "").unwrap();
        assert!(query(dir.path()).unwrap().is_none(), "a file");
        drop(listen(dir.path()).unwrap());
        assert!(query(dir.path()).unwrap_err().to_string().contains("has died"));
        let long = dir.path().join("x".repeat(150));
        std::fs::create_dir(&long).unwrap();
        let listener = listen(&long).unwrap();
        let asked = std::thread::spawn(move || query(&long));
        listener.accept().unwrap().0.write_all(b"{\"pid\": 7}\n").unwrap();
        assert_eq!(asked.join().unwrap().unwrap().unwrap()["pid"], 7);
    }
}
