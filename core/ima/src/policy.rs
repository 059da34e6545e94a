//! Which uses of which files are measured and appraised: a subset of the kernel's policy
//! (Documentation/ABI/testing/ima_policy), and `path=`, which is ours.
//!
//! ```text
//! rule      := action [condition]... [option]...
//! action    := measure | dont_measure | appraise | dont_appraise
//! condition := func=FILE_CHECK|PATH_CHECK|BPRM_CHECK
//!            | mask=[^]MAY_READ|MAY_WRITE|MAY_EXEC|MAY_APPEND
//!            | uid=N uid>N uid<N, and gid, fowner, fgroup likewise
//!            | fsuuid=UUID | fsname=NAME | path=/PREFIX
//! option    := template=ima-ng|ima-sig (of measure) | appraise_type=imasig (of appraise)
//! ```
//!
//! A file whose path is not known fits every `path=` of `measure` and `appraise`, and none of `dont_measure`
//! and `dont_appraise`: nobody gets round a rule by a file that he has without a name.
//!
//! Of each pair of actions the first rule that fits decides. A line that begins with `#` is a comment. What
//! is not understood is refused: a rule that was skipped would leave files unmeasured that somebody relies
//! on.

use crate::list::Template;
use bitflags::bitflags;
use std::str::FromStr;
use thiserror::Error;

/// What the kernel calls the place from which it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Func {
    /// A file is opened (`PATH_CHECK` in old policies).
    FileCheck,
    /// A file is opened to be run.
    BprmCheck,
}

/// Which the kernel has and no filesystem hears of.
const KERNEL_FUNCS: &[&str] = &[
    "MMAP_CHECK",
    "MMAP_CHECK_REQPROT",
    "CREDS_CHECK",
    "MODULE_CHECK",
    "FIRMWARE_CHECK",
    "KEXEC_KERNEL_CHECK",
    "KEXEC_INITRAMFS_CHECK",
    "KEXEC_CMDLINE",
    "POLICY_CHECK",
    "KEY_CHECK",
    "CRITICAL_DATA",
    "SETXATTR_CHECK",
];

bitflags! {
    /// What a file is opened for, as the kernel's MAY_* count it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Mask: u32 {
        /// To run it.
        const EXEC = 1;
        /// To write.
        const WRITE = 2;
        /// To read.
        const READ = 4;
        /// To write at its end alone.
        const APPEND = 8;
    }
}

/// A use of a file that a policy is asked about.
#[derive(Debug, Clone)]
pub struct Use<'a> {
    /// From where.
    pub func: Func,
    /// What for.
    pub mask: Mask,
    /// By whom.
    pub uid: u32,
    /// His group.
    pub gid: u32,
    /// Whose file.
    pub fowner: u32,
    /// Of which group.
    pub fgroup: u32,
    /// On which filesystem.
    pub fsuuid: [u8; 16],
    /// Of which format.
    pub fsname: &'a str,
    /// Where, from the root of that filesystem, if that is known.
    pub path: Option<&'a [u8]>,
}

/// What a policy says of a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decision {
    /// Measure it, with this template.
    pub measure: Option<Template>,
    /// Check it against its `security.ima`.
    pub appraise: Option<Appraise>,
}

impl Decision {
    /// Whether there is anything to do.
    pub fn is_idle(&self) -> bool {
        self.measure.is_none() && self.appraise.is_none()
    }

    /// What either of two asks for.
    pub fn or(self, other: Self) -> Self {
        Self { measure: self.measure.or(other.measure), appraise: self.appraise.max(other.appraise) }
    }
}

/// How a file is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Appraise {
    /// A digest will do.
    Digest,
    /// A signature is wanted (`appraise_type=imasig`).
    Signature,
}

/// What is wrong with a policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {why}")]
pub struct PolicyError {
    /// Where, from 1.
    pub line: usize,
    /// What.
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Measure,
    DontMeasure,
    Appraise,
    DontAppraise,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Same,
    Above,
    Below,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Uid,
    Gid,
    Fowner,
    Fgroup,
}

#[derive(Debug, Clone)]
enum Condition {
    Func(Func),
    Mask(Mask),
    InMask(Mask),
    Number(Number, Compared, u32),
    Fsuuid([u8; 16]),
    Fsname(String),
    Path(Vec<u8>),
}

impl Action {
    /// Whether it asks for something, and does not leave something out.
    fn is_demand(self) -> bool {
        matches!(self, Action::Measure | Action::Appraise)
    }
}

impl Condition {
    /// `unknown`: what a condition says that cannot be judged.
    fn fits(&self, used: &Use<'_>, unknown: bool) -> bool {
        match self {
            Condition::Func(func) => *func == used.func,
            // The kernel compares the whole mask: MAY_READ alone does not fit an open for reading and
            // writing.
            Condition::Mask(mask) => *mask == used.mask,
            Condition::InMask(mask) => mask.intersects(used.mask),
            Condition::Number(which, compared, value) => {
                let found = match which {
                    Number::Uid => used.uid,
                    Number::Gid => used.gid,
                    Number::Fowner => used.fowner,
                    Number::Fgroup => used.fgroup,
                };
                match compared {
                    Compared::Same => found == *value,
                    Compared::Above => found > *value,
                    Compared::Below => found < *value,
                }
            }
            Condition::Fsuuid(uuid) => *uuid == used.fsuuid,
            Condition::Fsname(name) => name == used.fsname,
            Condition::Path(prefix) => used.path.map_or(unknown, |path| {
                let rest = path.strip_prefix(prefix.as_slice());
                rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || prefix.ends_with(b"/"))
            }),
        }
    }
}

#[derive(Debug, Clone)]
struct Rule {
    action: Action,
    conditions: Vec<Condition>,
    template: Template,
    appraise: Appraise,
}

/// Rules, in their order.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

impl Policy {
    /// Every file that is opened is measured: what is meant where no policy is given.
    pub fn measure_all() -> Self {
        "measure func=FILE_CHECK\n".parse().expect("a rule of the grammar above")
    }

    /// Every file that is opened is appraised too, if no rule says otherwise.
    pub fn with_appraise_all(mut self) -> Self {
        if !self.appraises() {
            let all: Self = "appraise func=FILE_CHECK\n".parse().expect("a rule of the grammar above");
            self.rules.extend(all.rules);
        }
        self
    }

    /// Without the rules that appraise.
    pub fn without_appraise(mut self) -> Self {
        self.rules.retain(|rule| matches!(rule.action, Action::Measure | Action::DontMeasure));
        self
    }

    /// Whether a rule says what is appraised and what not.
    pub fn appraises(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, Action::Appraise | Action::DontAppraise))
    }

    /// The template of the first rule that measures: that of the entries which stand for no file.
    pub fn template(&self) -> Template {
        let measures = |rule: &&Rule| rule.action == Action::Measure;
        self.rules.iter().find(measures).map_or(Template::ImaNg, |rule| rule.template)
    }

    /// What is to be done about a use.
    pub fn decide(&self, used: &Use<'_>) -> Decision {
        let mut decision = Decision::default();
        let (mut measure_open, mut appraise_open) = (true, true);
        for rule in &self.rules {
            let open = match rule.action {
                Action::Measure | Action::DontMeasure => &mut measure_open,
                Action::Appraise | Action::DontAppraise => &mut appraise_open,
            };
            let unknown = rule.action.is_demand();
            if !*open || !rule.conditions.iter().all(|condition| condition.fits(used, unknown)) {
                continue;
            }
            *open = false;
            match rule.action {
                Action::Measure => decision.measure = Some(rule.template),
                Action::Appraise => decision.appraise = Some(rule.appraise),
                Action::DontMeasure | Action::DontAppraise => {}
            }
        }
        decision
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let mut rules = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                rules.push(rule(line).map_err(|why| PolicyError { line: at + 1, why })?);
            }
        }
        Ok(Self { rules })
    }
}

fn rule(line: &str) -> Result<Rule, String> {
    let mut words = line.split_whitespace();
    let action = match words.next().unwrap_or_default() {
        "measure" => Action::Measure,
        "dont_measure" => Action::DontMeasure,
        "appraise" => Action::Appraise,
        "dont_appraise" => Action::DontAppraise,
        other @ ("audit" | "dont_audit" | "hash" | "dont_hash") => {
            return Err(format!("{other}: the kernel's, and not done here"));
        }
        other => {
            return Err(format!(
                "{other:?} is no action: there are measure, dont_measure, appraise, dont_appraise"
            ));
        }
    };
    let mut rule =
        Rule { action, conditions: Vec::new(), template: Template::ImaNg, appraise: Appraise::Digest };
    let mut seen = Vec::new();
    for word in words {
        let at = word.find(['=', '<', '>']).ok_or_else(|| format!("{word:?}: not understood"))?;
        let (name, value) = (&word[..at], &word[at + 1..]);
        let compared = match word.as_bytes()[at] {
            b'<' => Compared::Below,
            b'>' => Compared::Above,
            _ => Compared::Same,
        };
        if seen.contains(&name) {
            return Err(format!("{name} is said twice"));
        }
        seen.push(name);
        option(&mut rule, name, compared, value).map_err(|why| format!("{word}: {why}"))?;
    }
    Ok(rule)
}

fn option(rule: &mut Rule, name: &str, compared: Compared, value: &str) -> Result<(), String> {
    let number = match name {
        "uid" => Some(Number::Uid),
        "gid" => Some(Number::Gid),
        "fowner" => Some(Number::Fowner),
        "fgroup" => Some(Number::Fgroup),
        _ => None,
    };
    if let Some(number) = number {
        let value = value.parse().map_err(|_| "a decimal number is wanted".to_owned())?;
        rule.conditions.push(Condition::Number(number, compared, value));
        return Ok(());
    }
    if compared != Compared::Same {
        return Err("only numbers are compared so".into());
    }
    let condition = match name {
        "func" => Condition::Func(func(value)?),
        "mask" => match value.strip_prefix('^') {
            Some(value) => Condition::InMask(mask(value)?),
            None => Condition::Mask(mask(value)?),
        },
        "fsuuid" => Condition::Fsuuid(uuid(value).ok_or("a UUID is wanted")?),
        "fsname" if !value.is_empty() => Condition::Fsname(value.to_owned()),
        "path" => Condition::Path(path(value)?),
        "template" if rule.action == Action::Measure => {
            rule.template =
                Template::by_name(value.as_bytes()).ok_or("there are the templates ima-ng and ima-sig")?;
            return Ok(());
        }
        "appraise_type" if rule.action == Action::Appraise => {
            if value != "imasig" {
                return Err("there is imasig".into());
            }
            rule.appraise = Appraise::Signature;
            return Ok(());
        }
        "template" => return Err("only measure has a template".into()),
        "appraise_type" => return Err("only appraise has a type".into()),
        _ => return Err("not understood".into()),
    };
    rule.conditions.push(condition);
    Ok(())
}

fn func(value: &str) -> Result<Func, String> {
    match value {
        "FILE_CHECK" | "PATH_CHECK" => Ok(Func::FileCheck),
        "BPRM_CHECK" => Ok(Func::BprmCheck),
        other if KERNEL_FUNCS.contains(&other) => Err("the kernel's, and no filesystem hears of it".into()),
        _ => Err("there are FILE_CHECK and BPRM_CHECK".into()),
    }
}

fn mask(value: &str) -> Result<Mask, String> {
    match value {
        "MAY_READ" => Ok(Mask::READ),
        "MAY_WRITE" => Ok(Mask::WRITE),
        "MAY_EXEC" => Ok(Mask::EXEC),
        "MAY_APPEND" => Ok(Mask::APPEND),
        _ => Err("there are MAY_READ, MAY_WRITE, MAY_EXEC, MAY_APPEND, each with ^ before it".into()),
    }
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let parts: Vec<_> = text.split('-').collect();
    if !parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let digits: String = parts.concat();
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(uuid)
}

/// `\040` is a space, as in fstab: a rule ends its words at spaces.
fn path(value: &str) -> Result<Vec<u8>, String> {
    if !value.starts_with('/') {
        return Err("a path from the root of the filesystem is wanted".into());
    }
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let value = octal.map(|digits| digits.iter().fold(0, |sum, digit| sum * 8 + u32::from(digit - b'0')));
        let value = value.and_then(|value| u8::try_from(value).ok());
        bytes.push(value.ok_or("behind a backslash three octal digits are wanted")?);
        rest = &tail[3..];
    }
    // Files are listed without such parts: the rule would fit none. A slash at the end says what is below.
    let mut parts = bytes[1..].split(|&byte| byte == b'/').rev();
    let below = parts.next().unwrap_or_default();
    let is_odd = |part: &[u8]| matches!(part, b"." | b"..");
    if is_odd(below) || parts.any(|part| part.is_empty() || is_odd(part)) {
        return Err("a path without . and .. and doubled slashes is wanted".into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used<'a>(path: &'a [u8], mask: Mask, uid: u32) -> Use<'a> {
        Use {
            func: Func::FileCheck,
            mask,
            uid,
            gid: 0,
            fowner: 7,
            fgroup: 8,
            fsuuid: [0xab; 16],
            fsname: "ext4",
            path: Some(path),
        }
    }

    fn decide(policy: &str, used: &Use<'_>) -> Decision {
        policy.parse::<Policy>().unwrap().decide(used)
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = "# logs say little\ndont_measure path=/var/log\n\
             measure func=FILE_CHECK mask=^MAY_READ uid=0 template=ima-sig\nmeasure uid>999\n\
             appraise fowner=7 appraise_type=imasig\n";
        let measured = |path: &str, mask, uid| decide(policy, &used(path.as_bytes(), mask, uid)).measure;
        assert_eq!(measured("/var/log", Mask::READ, 0), None);
        assert_eq!(measured("/var/log/x", Mask::READ, 0), None);
        assert_eq!(measured("/var/logs", Mask::READ, 0), Some(Template::ImaSig));
        assert_eq!(measured("/x", Mask::READ | Mask::WRITE, 0), Some(Template::ImaSig));
        assert_eq!(measured("/x", Mask::WRITE, 0), None);
        assert_eq!(measured("/x", Mask::WRITE, 1000), Some(Template::ImaNg));
        let all = decide(policy, &used(b"/x", Mask::READ, 5));
        assert_eq!(all, Decision { measure: None, appraise: Some(Appraise::Signature) });
    }

    #[test]
    fn what_has_no_known_path_is_under_every_path_that_is_watched() {
        let decide = |policy| decide(policy, &Use { path: None, ..used(b"", Mask::READ, 0) });
        let watched = decide("measure path=/a uid=0\nappraise path=/b\n");
        assert_eq!(watched, Decision { measure: Some(Template::ImaNg), appraise: Some(Appraise::Digest) });
        let spared = "dont_measure path=/a\ndont_appraise path=/\nmeasure uid=0\nappraise\n";
        assert_eq!(decide(spared), watched);
        assert!(decide("measure path=/a uid=1\n").is_idle());
    }

    #[test]
    fn conditions_are_the_kernels() {
        let fits = |rule: &str, mask| {
            let text = format!("measure {rule}");
            decide(&text, &used(b"/a b/c", mask, 3)).measure.is_some()
        };
        assert!(fits("mask=MAY_READ", Mask::READ));
        assert!(!fits("mask=MAY_READ", Mask::READ | Mask::WRITE), "the whole mask is compared");
        assert!(fits("mask=^MAY_READ", Mask::READ | Mask::WRITE));
        assert!(!fits("func=BPRM_CHECK", Mask::READ) && fits("func=PATH_CHECK", Mask::READ));
        assert!(fits("uid<4 gid=0 fgroup>7", Mask::READ) && !fits("uid<3", Mask::READ));
        assert!(fits("fsuuid=abababab-abab-abab-abab-abababababab fsname=ext4", Mask::READ));
        assert!(
            fits("path=/a\\040b", Mask::READ)
                && fits("path=/", Mask::READ)
                && fits("path=/a\\040b/", Mask::READ)
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for bad in [
            "audit",
            "Measure",
            "measure func=MMAP_CHECK",
            "measure func=NONSENSE",
            "measure mask=READ",
            "measure uid=x",
            "measure uid=1 uid=2",
            "measure path>/x",
            "measure path=x",
            "measure path=/\\9",
            "measure path=/a/../b",
            "measure path=/a/\\056",
            "measure path=//a",
            "measure path=/a//",
            "measure fsuuid=ab",
            "measure appraise_type=imasig",
            "appraise template=ima-ng",
            "appraise appraise_type=modsig",
            "measure obj_type=x",
            "measure lonely",
        ] {
            let error = format!("measure\n\n{bad}\n").parse::<Policy>().unwrap_err();
            assert_eq!(error.line, 3, "{bad}");
        }
        let error = "measure fsmagic=0xEF53".parse::<Policy>().unwrap_err();
        assert_eq!(error.to_string(), "line 1: fsmagic=0xEF53: not understood");
    }

    #[test]
    fn all_is_all() {
        let policy = Policy::measure_all().with_appraise_all();
        let all = policy.decide(&used(b"/x", Mask::WRITE, 0));
        assert_eq!(all, Decision { measure: Some(Template::ImaNg), appraise: Some(Appraise::Digest) });
        assert!(!policy.without_appraise().appraises());
    }
}
