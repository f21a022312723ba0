//! When a certificate is good: the one thing in it that TLS leaves to the other side, and operators want to know.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time in which a certificate is good, in seconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub not_before: i64,
    /// Its last.
    pub not_after: i64,
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The version, which is left out where it is the first.
const VERSION: u8 = 0xa0;
const DAY: i64 = 24 * 3600;

impl Validity {
    /// That of a certificate (RFC 5280 § 4.1).
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (tag, certificate, _) = element(certificate)?;
        let (_, to_be_signed, _) = element(certificate).filter(|_| tag == SEQUENCE)?;
        let mut rest = to_be_signed;
        if rest.first() == Some(&VERSION) {
            rest = element(rest)?.2;
        }
        // Serial number, algorithm, issuer.
        for expected in [INTEGER, SEQUENCE, SEQUENCE] {
            let (tag, _, behind) = element(rest)?;
            rest = Some(behind).filter(|_| tag == expected)?;
        }
        let (tag, validity, _) = element(rest)?;
        let (from, not_before, rest) = element(validity).filter(|_| tag == SEQUENCE)?;
        let (to, not_after, _) = element(rest)?;
        Some(Self { not_before: time(from, not_before)?, not_after: time(to, not_after)? })
    }

    /// Whether it is good at that time.
    pub fn contains(&self, time: SystemTime) -> bool {
        let since = time.duration_since(UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs);
        let now = i64::try_from(since).unwrap_or(i64::MAX);
        (self.not_before..=self.not_after).contains(&now)
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "good from {} to {}", Day(self.not_before), Day(self.not_after))
    }
}

/// An element of DER: its tag, its content, and what comes behind.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, first, rest @ ..] = bytes else { return None };
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (written, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (written.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// A time as certificates have it: in UTC, to the second.
fn time(tag: u8, text: &[u8]) -> Option<i64> {
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    let digits = rest.strip_suffix(b"Z").filter(|digits| digits.len() == 10)?;
    let mut parts = digits.chunks_exact(2).map(number);
    let mut next = |range: std::ops::RangeInclusive<i64>| parts.next()?.filter(|part| range.contains(part));
    let (month, day) = (next(1..=12)?, next(1..=31)?);
    let (hour, minute, second) = (next(0..=23)?, next(0..=59)?, next(0..=59)?);
    Some(days(year, month, day) * DAY + hour * 3600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

/// Days from 1970-01-01 to a date. Years begin in March here, so that the day of leap years is their last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The date of a time.
struct Day(i64);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = u64::try_from(self.0).unwrap_or_default();
        let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
        f.write_str(text.split('T').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_as_certificates_have_them() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "700101000000", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "7001010000Z", None),
            (GENERALIZED_TIME, "2050010100000xZ", None),
            (INTEGER, "700101000000Z", None),
        ] {
            assert_eq!(time(tag, text.as_bytes()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Validity::of(&bytes);
            let _ = Validity::of(&[&[SEQUENCE, 0x82, 1, 0, SEQUENCE, 0x81, 200][..], &bytes].concat());
        }
    }
}
