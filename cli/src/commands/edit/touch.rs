//! `touch`: setting times, and creating empty files.

use anyhow::Result;
use ivers_vfs::{CreateSpec, Cred, SetAttr, TimeSet, Timestamp};
use serde::{Deserialize, Serialize};

use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::image::directory::owned_as;

/// The help of the command.
pub const HELP: &str = "\
Sets the times of access and modification to now, or to TIME. A file that does not exist is created empty, \
with its times, in one transaction of the journal. It belongs to the owner and group of its directory. A \
symbolic link is followed.

If SOURCE_DATE_EPOCH is set (seconds since 1970), it is the current time, as for all commands that change \
files of an image: equal commands leave equal images.

TIME is YYYY-MM-DD, YYYY-MM-DD HH:MM:SS or YYYY-MM-DDTHH:MM:SSZ in UTC, or @SECONDS since 1970.

JSON, one object per operand: operation, path, dry_run, changed (0 or 1).

Examples:
  ivers touch disk.img:/etc/.updated
  ivers touch -c -d 2024-02-29 'disk.img:/srv/*'
  ivers touch -d @0 disk.img:/etc/machine-id";

/// Options of `touch`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Touch {
    /// Create no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Set the time of access only
    #[arg(short, long)]
    access: bool,
    /// Set the time of modification only
    #[arg(short, long, conflicts_with = "access")]
    modification: bool,
    /// The time to set
    #[arg(short, long, value_name = "TIME", value_parser = parse_date, allow_hyphen_values = true)]
    date: Option<Date>,
    /// Name each file that is changed
    #[arg(short, long)]
    verbose: bool,
}

/// A time: seconds since 1970, and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Date(i64, u32);

impl Operation for Touch {
    fn report(&self) -> Report {
        let verbs = ("touched", "would touch");
        Report { operation: "touch", verbs, verbose: self.verbose, dry_run: false }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        session.each(&targets.operands, Unmatched::Name, |session, path| self.touch(session, path))
    }
}

impl Touch {
    fn touch(&self, session: &mut Session<'_>, path: &[u8]) -> Result<()> {
        let time = self.date.map_or(TimeSet::Now, |Date(sec, nsec)| TimeSet::At(Timestamp { sec, nsec }));
        let atime = (!self.modification).then_some(time);
        let mtime = (!self.access).then_some(time);
        let cred = Cred::root();
        match session.find(path, true)? {
            Some(inode) => {
                let set = SetAttr { atime, mtime, ..SetAttr::default() };
                session.at(path, session.vfs.set_attr(&cred, &inode, &set))?;
            }
            None if self.no_create => return Ok(()),
            None => {
                let (dir, name) = session.parent(path)?;
                let spec = CreateSpec { umask: session.umask, atime, mtime, ..CreateSpec::file(0o666) };
                let spec = owned_as(&dir, spec);
                session.at(path, session.vfs.create(&cred, &dir, &name, &spec, false))?;
            }
        }
        session.changed(path)
    }
}

fn parse_date(text: &str) -> Result<Date, String> {
    seconds(text).or_else(|| date(text)).ok_or_else(|| {
        "use YYYY-MM-DD, \"YYYY-MM-DD HH:MM:SS\" or YYYY-MM-DDTHH:MM:SSZ in UTC, or @SECONDS".to_owned()
    })
}

/// Parses `@SECONDS` with an optional fraction.
fn seconds(text: &str) -> Option<Date> {
    let text = text.strip_prefix('@')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nsec = format!("{fraction:0<9}").parse().ok()?;
    let sec: i64 = whole.parse().ok()?;
    // The fraction of a time before 1970 would count backwards.
    (nsec == 0 || sec >= 0).then_some(Date(sec, nsec))
}

fn date(text: &str) -> Option<Date> {
    let text = text.trim_end_matches('Z');
    let (day, clock) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
    let mut parts = day.splitn(3, '-').map(str::parse::<u16>);
    let mut part = || parts.next()?.ok();
    let (year, month, day) = (part()?, u8::try_from(part()?).ok()?, u8::try_from(part()?).ok()?);
    let mut parts = clock.split(':').map(str::parse::<u8>);
    let mut part = || parts.next();
    let (hour, minute, second) = (part()?.ok()?, part()?.ok()?, part().unwrap_or(Ok(0)).ok()?);
    if part().is_some() {
        return None;
    }
    let month = time::Month::try_from(month).ok()?;
    let day = time::Date::from_calendar_date(year.into(), month, day).ok()?;
    let time = day.with_hms(hour, minute, second).ok()?;
    Some(Date(time.assume_utc().unix_timestamp(), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_parse() {
        for (text, date) in [
            ("@0", Date(0, 0)),
            ("@-5", Date(-5, 0)),
            ("@1.5", Date(1, 500_000_000)),
            ("2000-02-29", Date(951_782_400, 0)),
            ("2017-12-13 14:19:58", Date(1_513_174_798, 0)),
            ("2017-12-13T14:19:58Z", Date(1_513_174_798, 0)),
            ("1970-01-01 00:01", Date(60, 0)),
        ] {
            assert_eq!(parse_date(text), Ok(date), "{text}");
        }
        for bad in [
            "",
            "@",
            "@x",
            "@-1.5",
            "2001-02-29",
            "2001-13-01",
            "12:00",
            "2001-01-01 25:00",
            "2001-01-01 1:2:3:4",
        ] {
            assert!(parse_date(bad).is_err(), "{bad}");
        }
    }
}
