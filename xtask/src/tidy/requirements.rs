//! Requirement tags: `[RFC8881 18.46.3]` in code names the requirement that it meets, in a test the one that
//! it checks.

use super::{files, root};
use std::collections::BTreeSet;
use std::fs;

/// Tags in tests that no code names: the code that meets them is general.
const ONLY_TESTED: [&str; 3] = ["RFC7530 10.2.1", "RFC8881 18.32.4", "RFC8881 5.6"];

fn tags(text: &str) -> BTreeSet<&str> {
    let is_tag = |inside: &&str| {
        inside.strip_prefix("RFC").and_then(|rest| rest.split_once(' ')).is_some_and(|(number, section)| {
            let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
            !number.is_empty() && digits(number) && !section.is_empty() && digits(section)
        })
    };
    text.split('[').skip(1).filter_map(|rest| Some(rest.split_once(']')?.0)).filter(is_tag).collect()
}

#[test]
fn every_requirement_tag_has_a_test() {
    let mut sources = Vec::new();
    files(&root().join("serve/nfsd"), ".rs", &mut sources);
    let (mut answered, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        let is_test =
            source.components().any(|part| part.as_os_str() == "tests") || source.ends_with("tests.rs");
        let (code, tests) = if is_test {
            ("", &*text)
        } else {
            text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""))
        };
        answered.extend(tags(code).into_iter().map(str::to_owned));
        tested.extend(tags(tests).into_iter().map(str::to_owned));
    }
    let missing: Vec<&str> = answered.difference(&tested).map(String::as_str).collect();
    assert!(missing.is_empty(), "tags that no test names: {missing:?}");
    let stray: Vec<&str> = tested.difference(&answered).map(String::as_str).collect();
    assert_eq!(stray, ONLY_TESTED, "tags that no code names (left) are not those of ONLY_TESTED (right)");
    assert!(answered.len() > 90);
}
