//! strftime of the C locale, for the date that templates put into the system message.

use std::fmt::Write;

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Moment {
    year: i64,
    month: i64, // 1 to 12
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    weekday: i64,  // 0 is Sunday
    year_day: i64, // 0 is the first of January
}

/// Days since 1970 as a date of the Gregorian calendar, counted in eras of 400 years that begin in
/// March.
fn moment(seconds: i64) -> Moment {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + (month <= 2) as i64;
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
    Moment {
        year,
        month,
        day,
        hour: rest / 3_600,
        minute: rest / 60 % 60,
        second: rest % 60,
        weekday: (days + 4).rem_euclid(7),
        year_day: before + day - 1 + (leap && month > 2) as i64,
    }
}

/// Year and week of ISO 8601: the week belongs to the year of its Thursday.
fn iso_week(m: &Moment) -> (i64, i64) {
    let from_monday = (m.weekday + 6) % 7;
    let thursday = m.year_day - from_monday + 3;
    let length = |year: i64| 365 + ((year % 4 == 0 && year % 100 != 0) || year % 400 == 0) as i64;
    if thursday < 0 {
        (m.year - 1, (thursday + length(m.year - 1)) / 7 + 1)
    } else if thursday >= length(m.year) {
        (m.year + 1, (thursday - length(m.year)) / 7 + 1)
    } else {
        (m.year, thursday / 7 + 1)
    }
}

/// seconds: the wall clock as if it were UTC.
pub fn format(pattern: &str, seconds: i64) -> String {
    let m = moment(seconds);
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let mut flag = None;
        let mut directive = chars.next();
        if let Some(f @ ('-' | '_' | '0' | '^' | '#')) = directive {
            flag = Some(f);
            directive = chars.next();
        }
        let Some(directive) = directive else {
            out.push('%');
            out.push_str(rest);
            break;
        };
        if !directive_text(&mut out, directive, flag, &m, seconds) {
            // Unknown directives stay as they are.
            out.push('%');
            out.extend(flag);
            out.push(directive);
        }
    }
    out
}

fn directive_text(
    out: &mut String,
    directive: char,
    flag: Option<char>,
    m: &Moment,
    seconds: i64,
) -> bool {
    let mut number = |value: i64, width: usize, pad: char| {
        let pad = match flag {
            Some('_') => ' ',
            Some('0') => '0',
            _ => pad,
        };
        let digits = value.to_string();
        if flag != Some('-') {
            out.extend(std::iter::repeat_n(pad, width.saturating_sub(digits.len())));
        }
        out.push_str(&digits);
    };
    let hour12 = (m.hour + 11) % 12 + 1;
    match directive {
        'd' => number(m.day, 2, '0'),
        'e' => number(m.day, 2, ' '),
        'm' => number(m.month, 2, '0'),
        'y' => number(m.year.rem_euclid(100), 2, '0'),
        'Y' => number(m.year, 1, '0'),
        'C' => number(m.year.div_euclid(100), 2, '0'),
        'H' => number(m.hour, 2, '0'),
        'k' => number(m.hour, 2, ' '),
        'I' => number(hour12, 2, '0'),
        'l' => number(hour12, 2, ' '),
        'M' => number(m.minute, 2, '0'),
        'S' => number(m.second, 2, '0'),
        'f' => number(0, 6, '0'),
        'j' => number(m.year_day + 1, 3, '0'),
        'w' => number(m.weekday, 1, '0'),
        'u' => number((m.weekday + 6) % 7 + 1, 1, '0'),
        'U' => number((m.year_day + 7 - m.weekday) / 7, 2, '0'),
        'W' => number((m.year_day + 7 - (m.weekday + 6) % 7) / 7, 2, '0'),
        'V' => number(iso_week(m).1, 2, '0'),
        'G' => number(iso_week(m).0, 1, '0'),
        'g' => number(iso_week(m).0.rem_euclid(100), 2, '0'),
        's' => number(seconds, 1, '0'),
        _ => return word(out, directive, flag, m, seconds),
    }
    true
}

fn word(out: &mut String, directive: char, flag: Option<char>, m: &Moment, seconds: i64) -> bool {
    let begin = out.len();
    let day = DAYS[m.weekday as usize];
    let month = MONTHS[(m.month - 1) as usize];
    match directive {
        'A' => out.push_str(day),
        'a' => out.push_str(&day[..3]),
        'B' => out.push_str(month),
        'b' | 'h' => out.push_str(&month[..3]),
        'p' => out.push_str(if m.hour < 12 { "AM" } else { "PM" }),
        'P' => out.push_str(if m.hour < 12 { "am" } else { "pm" }),
        '%' => out.push('%'),
        'n' => out.push('\n'),
        't' => out.push('\t'),
        // The time zone: the clock does not know one.
        'z' | 'Z' => {}
        'D' | 'x' => _ = write!(out, "{:02}/{:02}/{:02}", m.month, m.day, m.year.rem_euclid(100)),
        'F' => _ = write!(out, "{}-{:02}-{:02}", m.year, m.month, m.day),
        'T' | 'X' => _ = write!(out, "{:02}:{:02}:{:02}", m.hour, m.minute, m.second),
        'R' => _ = write!(out, "{:02}:{:02}", m.hour, m.minute),
        'r' => out.push_str(&format("%I:%M:%S %p", seconds)),
        'c' => out.push_str(&format("%a %b %e %H:%M:%S %Y", seconds)),
        _ => return false,
    }
    if flag == Some('^') {
        let upper = out[begin..].to_uppercase();
        out.replace_range(begin.., &upper);
    }
    true
}
