//! The log: messages of all crates on standard error, as text or JSON.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use log::kv;
use rustix::fs::FlockOperation;

use super::failure::say;
use super::format;

/// Lines per window of a [`RateLimit`]. Each read of a damaged file can log a line, and must not fill the
/// disk.
const LINES_PER_WINDOW: u32 = 200;
const WINDOW_SECONDS: u64 = 10;

/// Bytes of the log of a mount, besides what is logged between two checks. Half of it is kept then.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Time between two checks of [`bound_file`].
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A limit on the lines per window.
#[derive(Debug, Default)]
struct RateLimit {
    window: u64,
    lines: u32,
    suppressed: u64,
}

impl RateLimit {
    /// Asks to log a line at `second`. Returns the number of lines suppressed since the last admitted one;
    /// `None` if this line is suppressed too.
    fn admit(&mut self, second: u64) -> Option<u64> {
        let window = second / WINDOW_SECONDS;
        if window != self.window {
            (self.window, self.lines) = (window, 0);
        }
        if self.lines == LINES_PER_WINDOW {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The logger. Warnings and errors have their own rate limit, so that a flood of other messages hides none.
struct Log {
    rate_limits: [Mutex<RateLimit>; 2],
    json: AtomicBool,
}

/// The key-value pairs of a record.
#[derive(Default)]
struct Fields(Vec<(String, serde_json::Value)>);

impl<'kvs> kv::VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: kv::Key<'kvs>, kv: kv::Value<'kvs>) -> Result<(), kv::Error> {
        // Numbers stay numbers in JSON.
        let number = kv.to_u64().map(serde_json::Value::from).or_else(|| kv.to_i64().map(Into::into));
        let number = number.or_else(|| kv.to_f64().map(Into::into)).filter(|it| it.is_number());
        let value = number.or_else(|| kv.to_bool().map(Into::into));
        self.0.push((key.to_string(), value.unwrap_or_else(|| kv.to_string().into())));
        Ok(())
    }
}

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        // Of other crates only warnings and errors are shown.
        if !self.enabled(record.metadata())
            || (record.level() > log::Level::Warn && !record.target().starts_with("ivers"))
        {
            return;
        }
        // Held to the end of the function: one line at a time.
        let rate_limit = &self.rate_limits[usize::from(record.level() <= log::Level::Warn)];
        let mut rate_limit = rate_limit.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let Some(suppressed) = rate_limit.admit(now.as_secs()) else { return };
        let mut fields = Fields::default();
        // `visit_pair` does not fail.
        let _ = record.key_values().visit(&mut fields);
        let text = format::without_error_numbers(&record.args().to_string());
        let line = if self.json.load(Ordering::Relaxed) { json_line } else { text_line };
        if suppressed > 0 {
            let text = format!("{suppressed} messages suppressed: too many in {WINDOW_SECONDS} s");
            say(line(now.as_secs(), log::Level::Warn, &text, &Fields::default()));
        }
        say(line(now.as_secs(), record.level(), &text, &fields));
    }

    fn flush(&self) {}
}

/// Keeps the file that is standard error bounded until it is dropped. Does nothing for a terminal or a pipe.
pub struct BoundFile {
    _ended: mpsc::Sender<()>,
}

/// Bounds the file that is standard error, from now on and while the process runs. The file must be open for
/// reading and appending. Several processes may log to it and bound it.
pub fn bound_file() -> Option<BoundFile> {
    let file = File::from(std::io::stderr().as_fd().try_clone_to_owned().ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let (_ended, receiver) = mpsc::channel::<()>();
    let check = move || {
        loop {
            // An error is no reason to end a mount, and could not be logged either.
            let _ = keep_newest(&file, FILE_BYTES_MAX);
            if receiver.recv_timeout(FILE_CHECK_INTERVAL) != Err(mpsc::RecvTimeoutError::Timeout) {
                break;
            }
        }
    };
    std::thread::Builder::new().name("ivers-log".into()).spawn(check).ok()?;
    Some(BoundFile { _ended })
}

/// Removes the oldest lines of a file that is longer than `max` bytes, so that half of `max` is left. A line
/// that another process appends meanwhile can be lost.
fn keep_newest(file: &File, max: u64) -> std::io::Result<()> {
    if file.metadata()?.len() <= max {
        return Ok(());
    }
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    let cut = || -> std::io::Result<()> {
        let len = file.metadata()?.len();
        if len <= max {
            return Ok(());
        }
        let mut kept = vec![0; (max / 2) as usize];
        file.read_exact_at(&mut kept, len - max / 2)?;
        let first = kept.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        file.set_len(0)?;
        let mut file = file;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&kept[first..])
    };
    let done = cut();
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    done
}

fn text_line(second: u64, level: log::Level, text: &str, fields: &Fields) -> String {
    let time = format::time(second as i64);
    let mut line = format!("{time} ivers[{}] {level}: {text}", std::process::id());
    for (key, value) in &fields.0 {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let bare = !value.is_empty() && !value.contains([' ', '"']);
        line += &if bare { format!(" {key}={value}") } else { format!(" {key}={value:?}") };
    }
    format::one_line(&line)
}

fn json_line(second: u64, level: log::Level, text: &str, fields: &Fields) -> String {
    let mut line = serde_json::Map::new();
    for (key, value) in &fields.0 {
        line.insert(key.clone(), value.clone());
    }
    line.insert("time".into(), format!("{}Z", format::time(second as i64).replace(' ', "T")).into());
    line.insert("level".into(), level.as_str().to_lowercase().into());
    line.insert("pid".into(), std::process::id().into());
    line.insert("message".into(), text.into());
    serde_json::Value::Object(line).to_string()
}

/// Starts the log, with one JSON object per message if `json` is set.
pub fn start(json: bool) {
    const fn rate_limit() -> Mutex<RateLimit> {
        Mutex::new(RateLimit { window: 0, lines: 0, suppressed: 0 })
    }
    static LOG: Log = Log { rate_limits: [rate_limit(), rate_limit()], json: AtomicBool::new(false) };
    LOG.json.store(json, Ordering::Relaxed);
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
        // The message of the standard library has several lines without a date.
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map_or_else(String::new, |at| format!(" at {at}"));
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
            log::error!("panic{place}: {text}; this is a bug in ivers, please report it");
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_it_contains() {
        let fields = Fields(vec![("name".into(), "a\n\"b".into())]);
        let text = text_line(0, log::Level::Info, "came\nin", &fields);
        assert!(
            text.starts_with("1970-01-01 00:00:00 ivers[")
                && text.ends_with("INFO: came in name=\"a\\n\\\"b\"")
        );
        let json: serde_json::Value =
            serde_json::from_str(&json_line(0, log::Level::Warn, "came\nin", &fields)).unwrap();
        assert_eq!(json["name"], "a\n\"b");
        let rest = [&json["time"], &json["level"], &json["message"]];
        assert_eq!(rest, ["1970-01-01T00:00:00Z", "warn", "came\nin"]);
    }

    #[test]
    fn numbers_and_text_keep_their_types() {
        use log::kv::{Source, Value};
        let digits = format!("{:x}", 0x17);
        let pairs = [
            ("count", Value::from(7u64)),
            ("below", Value::from(-7i64)),
            ("part", Value::from(0.5)),
            ("none", Value::from(f64::NAN)),
            ("whether", Value::from(true)),
            ("name", Value::from("17")),
            ("client", Value::from_display(&digits)),
        ];
        let mut fields = Fields::default();
        pairs.visit(&mut fields).unwrap();
        let line = json_line(0, log::Level::Info, "came", &fields);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        let known = serde_json::json!({
            "count": 7, "below": -7, "part": 0.5, "none": "NaN",
            "whether": true, "name": "17", "client": "17",
        });
        for (key, value) in known.as_object().unwrap() {
            assert_eq!(json[key], *value, "{line}");
        }
        let text = text_line(0, log::Level::Info, "came", &fields);
        assert!(
            text.ends_with("count=7 below=-7 part=0.5 none=NaN whether=true name=17 client=17"),
            "{text}"
        );
    }

    #[test]
    fn a_long_log_keeps_its_newest_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = std::fs::OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        for number in 0..100 {
            writeln!(file, "line {number:02}").unwrap();
        }
        keep_newest(&file, 800).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap().lines().count(),
            100,
            "800 bytes are not too many"
        );
        keep_newest(&file, 400).unwrap();
        writeln!(file, "the end").unwrap();
        let kept = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = kept.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[24]), (25, "line 76", "the end"), "{kept}");
    }

    #[test]
    fn a_flood_of_messages_is_suppressed_and_counted() {
        let mut limit = RateLimit::default();
        let admitted = (0..1000).filter(|_| limit.admit(1_000_000).is_some()).count();
        assert_eq!(admitted as u32, LINES_PER_WINDOW);
        assert_eq!(limit.admit(1_000_000 + WINDOW_SECONDS), Some(1000 - u64::from(LINES_PER_WINDOW)));
        assert_eq!(limit.admit(1_000_000 + WINDOW_SECONDS), Some(0));
    }
}
