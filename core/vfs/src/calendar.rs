//! Days and dates of the Gregorian calendar, for formats and listings that have dates.
//!
//! Both ways count in eras of 400 years that begin in March, so that the leap day is the last of its year.

/// Days from 0000-03-01 to 1970-01-01.
const BEFORE_1970: i64 = 719_468;
const ERA_DAYS: i64 = 146_097;

/// Year, month (from 1) and day of the month (from 1) of a day, counted from 1970-01-01.
pub fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + BEFORE_1970;
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The day of a date, counted from 1970-01-01. A day that the month does not have is one of the next.
pub fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * ERA_DAYS + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - BEFORE_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_the_same() {
        for (days, date) in
            [(0, (1970, 1, 1)), (-1, (1969, 12, 31)), (11_016, (2000, 2, 29)), (47_540, (2100, 2, 28))]
        {
            assert_eq!(date_of(days), date);
        }
        for days in (-1_000_000..1_000_000).step_by(97) {
            let (year, month, day) = date_of(days);
            assert_eq!(day_of(year, month, day), days);
        }
    }
}
