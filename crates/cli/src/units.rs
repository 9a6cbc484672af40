//! Durations and sizes as people write and read them.

use soda_types::ObjectTerm;
use std::time::Duration;

/// `250ms`, `10s`, `5m`, `2h`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a duration, such as 10s or 500ms"))?;
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "us" => 0.000_001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is not a unit of time: use ms, s, m or h")),
    };
    Duration::try_from_secs_f64(number * factor).map_err(|_| format!("`{text}` is too long"))
}

/// As [`parse_duration`] reads it back, in the largest unit that leaves nothing over: `1s`, `1500ms`.
pub(crate) fn exact_duration(duration: Duration) -> String {
    match duration.as_micros() {
        micros if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        micros if micros.is_multiple_of(1000) => format!("{}ms", micros / 1000),
        micros => format!("{micros}us"),
    }
}

/// The longest that anybody may be made to wait for a machine that is silent.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// As [`parse_duration`], of what others wait for: a day at most.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        wait if wait <= LONGEST_WAIT => Ok(wait),
        _ => Err(format!(
            "`{text}` is too long: others wait for it, so at most {}",
            show_duration(LONGEST_WAIT)
        )),
    }
}

/// How long leases last: `session` (or `infinite`), a duration, or `0` for none.
pub(crate) fn parse_object_term(text: &str) -> Result<ObjectTerm, String> {
    match text {
        "session" | "infinite" => Ok(ObjectTerm::Session),
        time => match parse_duration(time) {
            Ok(term) if term.is_zero() => Ok(ObjectTerm::None),
            Ok(term) => Ok(ObjectTerm::For(term)),
            Err(error) => Err(format!("{error}, or `session`")),
        },
    }
}

/// The first time for which a recalled write lease is not given anew; `off`: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FirstBackOff(pub Option<Duration>);

pub(crate) fn parse_back_off(text: &str) -> Result<FirstBackOff, String> {
    match text {
        "off" => Ok(FirstBackOff(None)),
        time => parse_duration(time)
            .map(|first| FirstBackOff(Some(first)))
            .map_err(|error| format!("{error}, or `off`")),
    }
}

/// `4096`, `64K`, `512M`, `4G`, `1T`: powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is not a size, such as 512M or 4G"))?;
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("`{unit}` is not a unit of size: use K, M, G or T")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// `1 lease`, `2 leases`, `3 batches`.
pub(crate) fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        many if noun.ends_with("ch") => format!("{many} {noun}es"),
        many => format!("{many} {noun}s"),
    }
}

/// The verb to [`count`].
pub(crate) fn is_or_are(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// `1,234,567`.
pub(crate) fn show_count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

pub(crate) fn show_duration(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0 if duration.is_zero() => "0 s".into(),
        0 if duration.as_micros() < 1000 => format!("{} us", duration.as_micros()),
        0 => format!("{:.1} ms", duration.as_secs_f64() * 1000.0),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", secs / 60, secs % 60),
        3600..86400 => format!("{}h{:02}m", secs / 3600, secs % 3600 / 60),
        _ => format!("{}d{:02}h", secs / 86400, secs % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted() {
        let counted =
            [(1, "batch"), (2, "batch"), (0, "lease")].map(|(number, noun)| count(number as u64, noun));
        assert_eq!(counted, ["1 batch", "2 batches", "0 leases"]);
    }

    #[test]
    fn a_back_off_is_a_time_or_off() {
        assert_eq!(parse_back_off("off"), Ok(FirstBackOff(None)));
        assert_eq!(parse_back_off("20ms"), Ok(FirstBackOff(Some(Duration::from_millis(20)))));
        assert!(parse_back_off("never").unwrap_err().ends_with("or `off`"));
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        let exact =
            ["1s", "3600s", "1500ms", "1500001us"].map(|text| parse_duration(text).map(exact_duration));
        assert_eq!(exact.map(Result::unwrap), ["1s", "3600s", "1500ms", "1500001us"]);
        assert!(parse_duration("ten").is_err());
        assert!(parse_duration("5 parsecs").is_err());
        assert!(parse_duration("").is_err());
    }

    #[test]
    fn what_others_wait_for_is_a_day_at_most() {
        assert_eq!(parse_wait("24h"), Ok(Duration::from_secs(86_400)));
        assert!(parse_wait("24.001h").unwrap_err().contains("at most 1d00h"));
        assert!(parse_wait("10000000000000000000").is_err());
        assert!(parse_wait("ten").is_err());
    }

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("4GiB"), Ok(4 << 30));
        assert!(parse_size("99999999999T").is_err());
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!([0, 999, 1000, 1_234_567].map(show_count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([count(0_u64, "lease"), count(1_u64, "lease")], ["0 leases", "1 lease"]);
        assert_eq!(show_duration(Duration::from_micros(250)), "250 us");
        assert_eq!(show_duration(Duration::ZERO), "0 s");
        assert_eq!(show_duration(Duration::from_secs(61)), "1m01s");
    }
}
