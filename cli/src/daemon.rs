//! Going into the background without `fork`: the command starts itself again and waits until that serves.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::failure::{failure, say};

/// What the child says when it serves, before [`Served`]; anything else is an exit code and why it does not.
const READY: &str = "ready ";

/// What is said of a mount that serves.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Served {
    /// It cannot be written.
    pub read_only: bool,
    /// Why, if that was not asked for.
    pub read_only_because: Option<String>,
}

/// Where messages go if nobody says.
pub fn default_log() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("ivers/ivers.log"))
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// This program once more, under its own name whatever it was called by.
pub fn this_program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command.arg0("ivers");
    Ok(command)
}

/// Start this program again with these arguments; return its process id and what it says once it is ready.
pub fn start(args: &[std::ffi::OsString], log: Option<&Path>) -> Result<(u32, Served)> {
    let log = match log {
        Some(path) => {
            Some(open_log(path).with_context(|| format!("cannot open the log {}", path.display()))?)
        }
        // Without a home there is no log.
        None => default_log().and_then(|path| open_log(&path).ok()),
    };
    let mut child = this_program()?
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(Stdio::null, Stdio::from))
        .spawn()
        .context("cannot start the process that serves")?;
    let mut line = String::new();
    let waiting = crate::progress::Waiting::to("until the mount serves");
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    drop(waiting);
    let line = line.trim_end();
    if let Some(served) = line.strip_prefix(READY) {
        return Ok((child.id(), serde_json::from_str(served)?));
    }
    let status = child.wait()?;
    match line.split_once(' ') {
        Some((code, message)) => Err(failure(code.parse().unwrap_or(1), message)),
        None => bail!("the process that serves ended with {status}"),
    }
}

/// In the child: a session of its own, so that the terminal's signals do not reach it.
pub fn leave_terminal() -> Result<()> {
    // Fails only for a process group leader, which has no terminal to leave then.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    Ok(())
}

/// In the child: tell the parent how it went.
pub fn tell_parent(result: Result<&Served, &anyhow::Error>) {
    let mut stdout = std::io::stdout();
    let line = match result {
        Ok(served) => format!("{READY}{}", serde_json::json!(served)),
        Err(error) => format!("{} {}", crate::failure::code(error), crate::failure::line(error)),
    };
    // The parent may be gone; that is no reason not to serve.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Lines within one [`Pace`] window; whoever may read a damaged file can cause a line each time, and must not fill the disk.
const LINES_A_WINDOW: u32 = 200;
const WINDOW_SECONDS: u64 = 10;

/// How many lines may still go out.
#[derive(Debug, Default)]
struct Pace {
    window: u64,
    lines: u32,
    left_out: u64,
}

impl Pace {
    /// Whether a line may go out at this second; and how many were left out before it, to be said first.
    fn admit(&mut self, second: u64) -> Option<u64> {
        let window = second / WINDOW_SECONDS;
        if window != self.window {
            (self.window, self.lines) = (window, 0);
        }
        if self.lines == LINES_A_WINDOW {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Messages of the crates below, on standard error, with the time. Warnings and errors have a pace of their own: who causes many others hides none of those.
pub struct Log {
    paces: [Mutex<Pace>; 2],
    json: AtomicBool,
}

/// What a record says beside its text.
#[derive(Default)]
struct Fields(Vec<(String, serde_json::Value)>);

impl<'kvs> log::kv::VisitSource<'kvs> for Fields {
    fn visit_pair(
        &mut self,
        key: log::kv::Key<'kvs>,
        kv: log::kv::Value<'kvs>,
    ) -> Result<(), log::kv::Error> {
        // Numbers stay numbers: whoever reads the objects counts with them.
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
        // The transport's own chatter below warnings is nobody's affair.
        if !self.enabled(record.metadata())
            || (record.level() > log::Level::Warn && !record.target().starts_with("ivers"))
        {
            return;
        }
        // Held to the end: one line at a time.
        let pace = &self.paces[usize::from(record.level() <= log::Level::Warn)];
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let Some(left_out) = pace.admit(now.as_secs()) else { return };
        let mut fields = Fields::default();
        // It fails only where the visitor does.
        let _ = record.key_values().visit(&mut fields);
        let line = if self.json.load(Ordering::Relaxed) { json_line } else { text_line };
        if left_out > 0 {
            let text = format!("{left_out} messages were left out here");
            say(line(now.as_secs(), log::Level::Warn, &text, &Fields::default()));
        }
        say(line(now.as_secs(), record.level(), &record.args().to_string(), &fields));
    }

    fn flush(&self) {}
}

fn text_line(second: u64, level: log::Level, text: &str, fields: &Fields) -> String {
    let time = crate::show::time(second as i64);
    let mut line = format!("{time} ivers[{}] {level}: {text}", std::process::id());
    for (key, value) in &fields.0 {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let bare = !value.is_empty() && !value.contains([' ', '"']);
        line += &if bare { format!(" {key}={value}") } else { format!(" {key}={value:?}") };
    }
    crate::show::one_line(&line)
}

fn json_line(second: u64, level: log::Level, text: &str, fields: &Fields) -> String {
    let mut line = serde_json::Map::new();
    for (key, value) in &fields.0 {
        line.insert(key.clone(), value.clone());
    }
    line.insert("time".into(), format!("{}Z", crate::show::time(second as i64).replace(' ', "T")).into());
    line.insert("level".into(), level.as_str().to_lowercase().into());
    line.insert("pid".into(), std::process::id().into());
    line.insert("message".into(), text.into());
    serde_json::Value::Object(line).to_string()
}

/// Show messages from here on.
pub fn start_log() {
    start_log_as(false);
}

/// The same, perhaps as objects of JSON.
pub fn start_log_as(json: bool) {
    const fn pace() -> Mutex<Pace> {
        Mutex::new(Pace { window: 0, lines: 0, left_out: 0 })
    }
    static LOG: Log = Log { paces: [pace(), pace()], json: AtomicBool::new(false) };
    LOG.json.store(json, Ordering::Relaxed);
    if log::set_logger(&LOG).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_it_holds() {
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
    fn numbers_are_numbers_and_words_words() {
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
            "count": 7, "below": -7, "part": 0.5, "none": "NaN", "whether": true, "name": "17", "client": "17",
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
    fn a_flood_of_messages_is_cut_and_told() {
        let mut pace = Pace::default();
        let admitted = (0..1000).filter(|_| pace.admit(1_000_000).is_some()).count();
        assert_eq!(admitted as u32, LINES_A_WINDOW);
        assert_eq!(pace.admit(1_000_000 + WINDOW_SECONDS), Some(1000 - u64::from(LINES_A_WINDOW)));
        assert_eq!(pace.admit(1_000_000 + WINDOW_SECONDS), Some(0));
    }
}
