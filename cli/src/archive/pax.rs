//! The records of a pax header: `LENGTH KEY=VALUE\n`, where LENGTH counts the whole record in decimal. A
//! value may contain any bytes.

use ivers_vfs::Timestamp;

/// A record: key and value.
pub type Record<'a> = (&'a [u8], &'a [u8]);

/// Splits a pax header into its records. An error says what is wrong and at which byte of the header.
pub fn parse(mut bytes: &[u8]) -> Result<Vec<Record<'_>>, (String, usize)> {
    let all = bytes.len();
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let at = all - bytes.len();
        let bad = |what: &str| (format!("bad pax header: {what}"), at);
        let digits = bytes.iter().take(20).take_while(|byte| byte.is_ascii_digit()).count();
        let len = number(&bytes[..digits]).ok_or_else(|| bad("a record without a length"))?;
        let len = usize::try_from(len).ok().filter(|len| (digits + 2..=bytes.len()).contains(len));
        let len = len.ok_or_else(|| bad("the length of a record is wrong"))?;
        let (record, rest) = bytes.split_at(len);
        let body = record[digits..].strip_prefix(b" ").and_then(|body| body.strip_suffix(b"\n"));
        let body = body.ok_or_else(|| bad("the length of a record is wrong"))?;
        let equals = body.iter().position(|&byte| byte == b'=').filter(|&at| at > 0);
        let equals = equals.ok_or_else(|| bad("a record without a key"))?;
        records.push((&body[..equals], &body[equals + 1..]));
        bytes = rest;
    }
    Ok(records)
}

/// Appends a record.
pub fn push(header: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // The length includes its own digits.
    let body = key.len() + value.len() + 3;
    let mut len = body + 1;
    while len != body + len.to_string().len() {
        len = body + len.to_string().len();
    }
    header.extend_from_slice(len.to_string().as_bytes());
    header.push(b' ');
    header.extend_from_slice(key);
    header.push(b'=');
    header.extend_from_slice(value);
    header.push(b'\n');
}

/// Replaces all occurrences of a text.
pub fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    replaced.extend_from_slice(rest);
    replaced
}

/// Parses a decimal number.
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a time: seconds since 1970 in decimal, perhaps negative, perhaps with a fraction.
pub fn time(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = match text.iter().position(|&byte| byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    let sec = i64::try_from(number(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |place: usize| u32::from(fraction.get(place).map_or(0, |digit| digit - b'0'));
    let nsec = (0..9).fold(0, |nsec, place| nsec * 10 + digit(place));
    Some(match (negative, nsec) {
        (false, _) => Timestamp { sec, nsec },
        (true, 0) => Timestamp { sec: -sec, nsec },
        (true, _) => Timestamp { sec: -sec - 1, nsec: 1_000_000_000 - nsec },
    })
}

/// Formats a time, without zeros at the end of its fraction.
pub fn format_time(time: Timestamp) -> String {
    let (sign, sec, nsec) = match time {
        Timestamp { sec, nsec: 0 } if sec < 0 => ("-", sec.unsigned_abs(), 0),
        Timestamp { sec, nsec } if sec < 0 => ("-", sec.unsigned_abs() - 1, 1_000_000_000 - nsec),
        Timestamp { sec, nsec } => ("", sec.unsigned_abs(), nsec),
    };
    let text = format!("{sign}{sec}.{nsec:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_with_any_bytes() {
        let mut header = Vec::new();
        let long = vec![b'\n'; 2000];
        let records: [Record<'_>; 4] =
            [(b"path", b"a\nb=c"), (b"SCHILY.xattr.user.x", b"\0\xff\n"), (b"mtime", b""), (b"k", &long)];
        // Lengths around the step from one digit to two.
        let small: Vec<_> = (0..12).map(|len| vec![b'x'; len]).collect();
        let all: Vec<_> =
            records.iter().copied().chain(small.iter().map(|value| (&b"k"[..], &value[..]))).collect();
        all.iter().for_each(|(key, value)| push(&mut header, key, value));
        assert_eq!(parse(&header).unwrap(), all);
    }

    #[test]
    fn wrong_records_are_refused_with_their_place() {
        let bad: [&[u8]; 8] = [
            b"x",
            b"99 a=b\n",
            b"6 a=b\n7 a=b\n",
            b"3 \n",
            b"5 =b\n",
            b"0 a=b\n",
            b"6 a b\n",
            b"99999999999999999999 a=b\n",
        ];
        for bytes in bad {
            assert!(parse(bytes).is_err(), "{:?}", bytes.escape_ascii().to_string());
        }
        assert_eq!(parse(b"6 a=b\nx").unwrap_err().1, 6);
    }

    #[test]
    fn times_round_trip() {
        let cases = [("0", 0, 0), ("1.5", 1, 500_000_000), ("-1.5", -2, 500_000_000), ("-7", -7, 0)];
        for (text, sec, nsec) in cases {
            assert_eq!(time(text.as_bytes()), Some(Timestamp { sec, nsec }), "{text}");
            assert_eq!(format_time(Timestamp { sec, nsec }), text);
        }
        let exact = Timestamp { sec: 1_513_174_798, nsec: 123_456_789 };
        assert_eq!(time(format_time(exact).as_bytes()), Some(exact));
        assert_eq!(time(b"1.0000000019"), Some(Timestamp { sec: 1, nsec: 1 }));
        assert_eq!(
            ["", "x", "1.x", "--1", "1e9", "99999999999999999999"].map(|it| time(it.as_bytes())),
            [None; 6]
        );
    }
}
