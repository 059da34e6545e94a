//! The policy: which opens of which files are measured and appraised. The grammar is a subset of the kernel's
//! (Documentation/ABI/testing/ima_policy), with `path=` added.
//!
//! ```text
//! rule      := action [condition]... [option]...
//! action    := measure | dont_measure | appraise | dont_appraise
//! condition := func=FILE_CHECK|PATH_CHECK|BPRM_CHECK
//!            | mask=[^]MAY_READ|MAY_WRITE|MAY_EXEC|MAY_APPEND
//!            | uid=N | uid>N | uid<N; the same with gid, fowner and fgroup
//!            | fsuuid=UUID | fsname=NAME | path=/PREFIX
//! option    := template=ima-ng|ima-sig (with measure) | appraise_type=imasig (with appraise)
//! ```
//!
//! A line that starts with `#` is a comment. A rule matches if all its conditions do. The first matching rule
//! of `measure` and `dont_measure` decides about measurement, and the first of `appraise` and `dont_appraise`
//! about appraisal.
//!
//! A file whose path is unknown matches every `path=` of `measure` and `appraise`, and none of `dont_measure`
//! and `dont_appraise`. So no rule can be evaded by removing a file's name.
//!
//! An unknown word is an error. Skipping its rule could leave files unmeasured that a user relies on.

use crate::list::Template;
use bitflags::bitflags;
use std::str::FromStr;
use thiserror::Error;

/// The hook at which a policy is consulted, by the kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Func {
    /// A file is opened (`PATH_CHECK` in old policies).
    FileCheck,
    /// A file is opened for execution.
    BprmCheck,
}

/// The kernel's hooks that no filesystem is told of.
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
    /// The mode of an open, with the values of the kernel's MAY_*.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Mask: u32 {
        /// Execute.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
        /// Append.
        const APPEND = 8;
    }
}

/// An open of a file, as conditions see it.
#[derive(Debug, Clone)]
pub struct FileAccess<'a> {
    /// The hook.
    pub func: Func,
    /// The mode of the open.
    pub mask: Mask,
    /// The caller's user.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The file's owner.
    pub fowner: u32,
    /// The file's group.
    pub fgroup: u32,
    /// The UUID of the filesystem.
    pub fsuuid: [u8; 16],
    /// The format of the filesystem.
    pub fsname: &'a str,
    /// The path from the root of the filesystem, if it is known.
    pub path: Option<&'a [u8]>,
}

/// What a policy requires for an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decision {
    /// Measure the file, with this template.
    pub measure: Option<Template>,
    /// Verify the file against its `security.ima`.
    pub appraise: Option<Appraise>,
}

impl Decision {
    /// Returns whether nothing is required.
    pub fn is_empty(&self) -> bool {
        self.measure.is_none() && self.appraise.is_none()
    }

    /// Returns a decision that requires what `self` or `other` requires.
    pub fn or(self, other: Self) -> Self {
        Self { measure: self.measure.or(other.measure), appraise: self.appraise.max(other.appraise) }
    }
}

/// What a file must have in its `security.ima`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Appraise {
    /// A digest or a signature.
    Digest,
    /// A signature (`appraise_type=imasig`).
    Signature,
}

/// An error in the text of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {why}")]
pub struct PolicyError {
    /// The line, counted from 1.
    pub line: usize,
    /// The error.
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
enum Comparison {
    Equal,
    Greater,
    Less,
}

#[derive(Debug, Clone, Copy)]
enum IdField {
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
    Id(IdField, Comparison, u32),
    Fsuuid([u8; 16]),
    Fsname(String),
    Path(Vec<u8>),
}

impl Action {
    /// Returns whether the action includes files. The others exclude them.
    fn is_inclusion(self) -> bool {
        matches!(self, Action::Measure | Action::Appraise)
    }
}

impl Condition {
    /// Returns whether the condition is true, and `if_unknown` if that depends on an unknown path.
    fn matches(&self, access: &FileAccess<'_>, if_unknown: bool) -> bool {
        match self {
            Condition::Func(func) => *func == access.func,
            // As in the kernel the whole mask is compared: MAY_READ does not match an open for reading and
            // writing.
            Condition::Mask(mask) => *mask == access.mask,
            Condition::InMask(mask) => mask.intersects(access.mask),
            Condition::Id(field, comparison, value) => {
                let id = match field {
                    IdField::Uid => access.uid,
                    IdField::Gid => access.gid,
                    IdField::Fowner => access.fowner,
                    IdField::Fgroup => access.fgroup,
                };
                match comparison {
                    Comparison::Equal => id == *value,
                    Comparison::Greater => id > *value,
                    Comparison::Less => id < *value,
                }
            }
            Condition::Fsuuid(uuid) => *uuid == access.fsuuid,
            Condition::Fsname(name) => name == access.fsname,
            Condition::Path(prefix) => access.path.map_or(if_unknown, |path| {
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

/// An ordered list of rules.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

impl Policy {
    /// Returns the default policy: it measures every file that is opened.
    pub fn measure_all() -> Self {
        "measure func=FILE_CHECK\n".parse().expect("a valid rule")
    }

    /// Returns the policy, with a rule that appraises every open added if it has no rule on appraisal.
    pub fn with_appraise_all(mut self) -> Self {
        if !self.appraises() {
            let all: Self = "appraise func=FILE_CHECK\n".parse().expect("a valid rule");
            self.rules.extend(all.rules);
        }
        self
    }

    /// Returns the policy without its rules on appraisal.
    pub fn without_appraise(mut self) -> Self {
        self.rules.retain(|rule| matches!(rule.action, Action::Measure | Action::DontMeasure));
        self
    }

    /// Returns whether there is a rule on appraisal.
    pub fn appraises(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, Action::Appraise | Action::DontAppraise))
    }

    /// Returns the template of the first rule that measures, for entries that no rule caused.
    pub fn template(&self) -> Template {
        let measures = |rule: &&Rule| rule.action == Action::Measure;
        self.rules.iter().find(measures).map_or(Template::ImaNg, |rule| rule.template)
    }

    /// Returns what the policy requires for an open.
    pub fn decide(&self, access: &FileAccess<'_>) -> Decision {
        let mut decision = Decision::default();
        let (mut measure_open, mut appraise_open) = (true, true);
        for rule in &self.rules {
            let open = match rule.action {
                Action::Measure | Action::DontMeasure => &mut measure_open,
                Action::Appraise | Action::DontAppraise => &mut appraise_open,
            };
            let if_unknown = rule.action.is_inclusion();
            if !*open || !rule.conditions.iter().all(|condition| condition.matches(access, if_unknown)) {
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
            return Err(format!("{other}: action not supported"));
        }
        other => {
            return Err(format!(
                "unknown action {other:?}; supported are measure, dont_measure, appraise, dont_appraise"
            ));
        }
    };
    let mut rule =
        Rule { action, conditions: Vec::new(), template: Template::ImaNg, appraise: Appraise::Digest };
    let mut seen = Vec::new();
    for word in words {
        let at = word.find(['=', '<', '>']).ok_or_else(|| format!("{word}: missing =, < or >"))?;
        let (name, value) = (&word[..at], &word[at + 1..]);
        let comparison = match word.as_bytes()[at] {
            b'<' => Comparison::Less,
            b'>' => Comparison::Greater,
            _ => Comparison::Equal,
        };
        if seen.contains(&name) {
            return Err(format!("{name} is given twice"));
        }
        seen.push(name);
        option(&mut rule, name, comparison, value).map_err(|why| format!("{word}: {why}"))?;
    }
    Ok(rule)
}

fn option(rule: &mut Rule, name: &str, comparison: Comparison, value: &str) -> Result<(), String> {
    let field = match name {
        "uid" => Some(IdField::Uid),
        "gid" => Some(IdField::Gid),
        "fowner" => Some(IdField::Fowner),
        "fgroup" => Some(IdField::Fgroup),
        _ => None,
    };
    if let Some(field) = field {
        let value = value.parse().map_err(|_| "not a decimal number".to_owned())?;
        rule.conditions.push(Condition::Id(field, comparison, value));
        return Ok(());
    }
    if comparison != Comparison::Equal {
        return Err("< and > are only for uid, gid, fowner and fgroup".into());
    }
    let condition = match name {
        "func" => Condition::Func(func(value)?),
        "mask" => match value.strip_prefix('^') {
            Some(value) => Condition::InMask(mask(value)?),
            None => Condition::Mask(mask(value)?),
        },
        "fsuuid" => Condition::Fsuuid(uuid(value).ok_or("not a UUID")?),
        "fsname" if !value.is_empty() => Condition::Fsname(value.to_owned()),
        "path" => Condition::Path(path(value)?),
        "template" if rule.action == Action::Measure => {
            rule.template =
                Template::by_name(value.as_bytes()).ok_or("supported templates are ima-ng and ima-sig")?;
            return Ok(());
        }
        "appraise_type" if rule.action == Action::Appraise => {
            if value != "imasig" {
                return Err("the only supported type is imasig".into());
            }
            rule.appraise = Appraise::Signature;
            return Ok(());
        }
        "template" => return Err("only for measure".into()),
        "appraise_type" => return Err("only for appraise".into()),
        _ => return Err("unknown or unsupported condition".into()),
    };
    rule.conditions.push(condition);
    Ok(())
}

fn func(value: &str) -> Result<Func, String> {
    match value {
        "FILE_CHECK" | "PATH_CHECK" => Ok(Func::FileCheck),
        "BPRM_CHECK" => Ok(Func::BprmCheck),
        other if KERNEL_FUNCS.contains(&other) => Err("a filesystem is not told of this event".into()),
        _ => Err("supported are FILE_CHECK and BPRM_CHECK".into()),
    }
}

fn mask(value: &str) -> Result<Mask, String> {
    match value {
        "MAY_READ" => Ok(Mask::READ),
        "MAY_WRITE" => Ok(Mask::WRITE),
        "MAY_EXEC" => Ok(Mask::EXEC),
        "MAY_APPEND" => Ok(Mask::APPEND),
        _ => Err("supported are MAY_READ, MAY_WRITE, MAY_EXEC and MAY_APPEND, each also after ^".into()),
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

/// Decodes a path. `\040` is a space, as in fstab, because a space ends a word of a rule.
fn path(value: &str) -> Result<Vec<u8>, String> {
    if !value.starts_with('/') {
        return Err("the path must start with /, the root of the filesystem".into());
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
        bytes.push(value.ok_or("a backslash must be followed by three octal digits up to 377")?);
        rest = &tail[3..];
    }
    // Paths of files have no such components, so the rule would never match. One slash at the end is allowed:
    // it excludes the directory itself.
    let mut parts = bytes[1..].split(|&byte| byte == b'/').rev();
    let last = parts.next().unwrap_or_default();
    let is_dot = |part: &[u8]| matches!(part, b"." | b"..");
    if is_dot(last) || parts.any(|part| part.is_empty() || is_dot(part)) {
        return Err("the path must not have . or .. components or doubled slashes".into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_access<'a>(path: &'a [u8], mask: Mask, uid: u32) -> FileAccess<'a> {
        FileAccess {
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

    fn decide(policy: &str, access: &FileAccess<'_>) -> Decision {
        policy.parse::<Policy>().unwrap().decide(access)
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let policy = "# a comment\ndont_measure path=/var/log\n\
             measure func=FILE_CHECK mask=^MAY_READ uid=0 template=ima-sig\nmeasure uid>999\n\
             appraise fowner=7 appraise_type=imasig\n";
        let measured =
            |path: &str, mask, uid| decide(policy, &file_access(path.as_bytes(), mask, uid)).measure;
        assert_eq!(measured("/var/log", Mask::READ, 0), None);
        assert_eq!(measured("/var/log/x", Mask::READ, 0), None);
        assert_eq!(measured("/var/logs", Mask::READ, 0), Some(Template::ImaSig));
        assert_eq!(measured("/x", Mask::READ | Mask::WRITE, 0), Some(Template::ImaSig));
        assert_eq!(measured("/x", Mask::WRITE, 0), None);
        assert_eq!(measured("/x", Mask::WRITE, 1000), Some(Template::ImaNg));
        let all = decide(policy, &file_access(b"/x", Mask::READ, 5));
        assert_eq!(all, Decision { measure: None, appraise: Some(Appraise::Signature) });
    }

    #[test]
    fn an_unknown_path_matches_rules_that_include_files() {
        let decide = |policy| decide(policy, &FileAccess { path: None, ..file_access(b"", Mask::READ, 0) });
        let included = decide("measure path=/a uid=0\nappraise path=/b\n");
        assert_eq!(included, Decision { measure: Some(Template::ImaNg), appraise: Some(Appraise::Digest) });
        let excluded = "dont_measure path=/a\ndont_appraise path=/\nmeasure uid=0\nappraise\n";
        assert_eq!(decide(excluded), included);
        assert!(decide("measure path=/a uid=1\n").is_empty());
    }

    #[test]
    fn conditions_match_as_in_the_kernel() {
        let matches = |rule: &str, mask| {
            let text = format!("measure {rule}");
            decide(&text, &file_access(b"/a b/c", mask, 3)).measure.is_some()
        };
        assert!(matches("mask=MAY_READ", Mask::READ));
        assert!(!matches("mask=MAY_READ", Mask::READ | Mask::WRITE), "the whole mask is compared");
        assert!(matches("mask=^MAY_READ", Mask::READ | Mask::WRITE));
        assert!(!matches("func=BPRM_CHECK", Mask::READ) && matches("func=PATH_CHECK", Mask::READ));
        assert!(matches("uid<4 gid=0 fgroup>7", Mask::READ) && !matches("uid<3", Mask::READ));
        assert!(matches("fsuuid=abababab-abab-abab-abab-abababababab fsname=ext4", Mask::READ));
        assert!(
            matches("path=/a\\040b", Mask::READ)
                && matches("path=/", Mask::READ)
                && matches("path=/a\\040b/", Mask::READ)
        );
    }

    #[test]
    fn errors_name_the_line() {
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
            "measure word",
        ] {
            let error = format!("measure\n\n{bad}\n").parse::<Policy>().unwrap_err();
            assert_eq!(error.line, 3, "{bad}");
        }
        let error = "measure fsmagic=0xEF53".parse::<Policy>().unwrap_err();
        assert_eq!(error.to_string(), "line 1: fsmagic=0xEF53: unknown or unsupported condition");
    }

    #[test]
    fn defaults_measure_and_appraise_everything() {
        let policy = Policy::measure_all().with_appraise_all();
        let all = policy.decide(&file_access(b"/x", Mask::WRITE, 0));
        assert_eq!(all, Decision { measure: Some(Template::ImaNg), appraise: Some(Appraise::Digest) });
        assert!(!policy.without_appraise().appraises());
    }
}
