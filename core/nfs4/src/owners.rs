//! Owners and groups as text: decimal numbers, or names with a domain (RFC 8881 section 5.9).

/// Returns the number that a text is. No leading zeros; -1 means "unchanged" to system calls.
pub fn number(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|&id| plain && id != u32::MAX)
}

/// Returns the name in a text with this domain. The same name in another domain is another user.
pub fn name_in<'a>(text: &'a [u8], domain: &str) -> Option<&'a str> {
    let (name, of) = std::str::from_utf8(text).ok()?.rsplit_once('@')?;
    of.eq_ignore_ascii_case(domain).then_some(name)
}

/// Returns the names and numbers in the text of passwd(5) or group(5). Invalid lines are skipped, as
/// getpwnam(3) does; the first line with a name counts.
pub fn entries(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name, number(fields.nth(1)?.as_bytes())?))
    })
}
