//! Times in directory entries: years 1980 to 2107, without a time zone (fatgen103, "Date and Time Formats").
//!
//! `offset_s` is always the time on the medium minus UTC, in seconds.

use ::time::{Date, Duration, Month, UtcDateTime};
use ivers_vfs::Timestamp;

const DAY: i64 = 24 * 3600;
/// 1980-01-01 00:00:00 in Unix time.
const FIRST: i64 = 315_532_800;
/// 2107-12-31 23:59:59 in Unix time.
const LAST: i64 = 4_354_819_199;

/// Rounds a time of modification down to two seconds, within the years of the format.
pub(crate) fn round_mtime(time: Timestamp, offset_s: i64) -> Timestamp {
    let local = (time.sec + offset_s).clamp(FIRST, LAST - 1);
    Timestamp { sec: local - local.rem_euclid(2) - offset_s, nsec: 0 }
}

/// Rounds a time of access down to a day, within the years of the format.
pub(crate) fn round_atime(time: Timestamp, offset_s: i64) -> Timestamp {
    let local = (time.sec + offset_s).clamp(FIRST, LAST);
    Timestamp { sec: local - local.rem_euclid(DAY) - offset_s, nsec: 0 }
}

/// Encodes a time: the date, the time in units of two seconds, and the remaining hundredths of a second.
pub(crate) fn encode(time: Timestamp, offset_s: i64) -> (u16, u16, u8) {
    let local = (time.sec + offset_s).clamp(FIRST, LAST);
    let at = UtcDateTime::UNIX_EPOCH + Duration::seconds(local);
    let date = (at.year() - 1980) << 9 | i32::from(u8::from(at.month())) << 5 | i32::from(at.day());
    let clock = u16::from(at.hour()) << 11 | u16::from(at.minute()) << 5 | u16::from(at.second() / 2);
    let hundredths = u32::from(at.second() % 2 * 100) + time.nsec / 10_000_000;
    (date as u16, clock, hundredths as u8)
}

/// Decodes a time. Invalid fields also give some time.
pub(crate) fn decode(date: u16, clock: u16, hundredths: u8, offset_s: i64) -> Timestamp {
    let month = Month::January.nth_next((date >> 5 & 15).clamp(1, 12) as u8 - 1);
    // A day past the end of its month belongs to the next month.
    let first = Date::from_calendar_date(i32::from(date >> 9) + 1980, month, 1).unwrap_or(Date::MIN);
    let days = i64::from(first.to_julian_day() - UtcDateTime::UNIX_EPOCH.to_julian_day());
    let days = days + i64::from((date & 31).max(1)) - 1;
    let clock = i64::from(clock);
    let second = (clock >> 11) * 3600 + (clock >> 5 & 63) * 60 + (clock & 31) * 2;
    let hundredths = hundredths.min(199);
    let sec = days * DAY + second + i64::from(hundredths / 100) - offset_s;
    Timestamp { sec, nsec: u32::from(hundredths % 100) * 10_000_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip() {
        for (sec, date, clock) in [
            (FIRST, 1 << 5 | 1, 0),
            (951_782_400, 20 << 9 | 2 << 5 | 29, 0),
            (1_513_036_801, 37 << 9 | 12 << 5 | 12, 0),
            (LAST - 1, 127 << 9 | 12 << 5 | 31, 23 << 11 | 59 << 5 | 29),
        ] {
            let time = Timestamp { sec, nsec: 990_000_000 };
            let (day, at, hundredths) = encode(time, 0);
            assert_eq!((day, at), (date, clock), "{sec}");
            assert_eq!(decode(day, at, hundredths, 0), time);
        }
        for sec in (FIRST..LAST).step_by(86_399 * 7) {
            let time = round_mtime(Timestamp { sec, nsec: 5 }, 3600);
            let (date, clock, _) = encode(time, 3600);
            assert_eq!(decode(date, clock, 0, 3600), time);
            assert!((0..2).contains(&(sec - time.sec)));
        }
        assert_eq!(round_mtime(Timestamp { sec: 0, nsec: 0 }, 0).sec, FIRST);
        assert_eq!(round_mtime(Timestamp { sec: i64::MAX / 2, nsec: 0 }, 0).sec, LAST - 1);
        assert_eq!(round_atime(Timestamp { sec: 951_782_401, nsec: 3 }, 0).sec, 951_782_400);
        let march = encode(Timestamp { sec: 1_677_628_800, nsec: 0 }, 0).0;
        assert_eq!(decode(43 << 9 | 2 << 5 | 29, 0, 0, 0), decode(march, 0, 0, 0), "29 February 2023");
        // Invalid months and days.
        for bits in [0u16, u16::MAX] {
            let time = decode(bits, bits, 255, 0);
            assert!(time.nsec < 1_000_000_000);
        }
    }
}
