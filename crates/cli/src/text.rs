//! Small conversions between what people write and numbers.

use branchbox_model::Timestamp;
use std::time::Duration;

/// A time as people say it: `850 µs`, `1.2 ms`, `31 ms`, `4.1 s`, `2 min 5 s`.
#[must_use]
pub fn duration(time: Duration) -> String {
    let micros = time.as_micros();
    let millis = time.as_secs_f64() * 1e3;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{millis:.1} ms"),
        10_000..1_000_000 => format!("{millis:.0} ms"),
        1_000_000..100_000_000 => format!("{:.1} s", time.as_secs_f64()),
        _ => format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60),
    }
}

/// A size as people say it: `512 B`, `3.4 KiB`, `12 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// How long ago: `now`, `40 s`, `12 min`, `3 h`, `9 d`.
#[must_use]
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.0.saturating_sub(then.0) / 1000;
    match seconds {
        ..1 => "now".to_owned(),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Microdollars as dollars: `$2.50`, `$0.000123`.
#[must_use]
pub fn dollars(micros: u64) -> String {
    let (whole, part) = (micros / 1_000_000, format!("{:06}", micros % 1_000_000));
    let shown = part.trim_end_matches('0');
    format!("${whole}.{shown:0<2}")
}

/// `1 file`, `2 files`.
#[must_use]
pub fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Reads `KEY=VALUE`.
///
/// # Errors
/// A sentence fragment, for clap.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".into()),
    }
}

/// Reads a size in MiB: `512`, `512M`, `2G`.
///
/// # Errors
/// A sentence fragment, for clap.
pub fn mebibytes(text: &str) -> Result<u32, String> {
    let bad = || "write it in MiB, or with M or G: 512, 512M, 2G".to_owned();
    let lower = text.to_ascii_lowercase();
    let lower = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, factor) = match lower.strip_suffix('g') {
        Some(digits) => (digits, 1024),
        None => (lower.strip_suffix('m').unwrap_or(lower), 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    digits.parse::<u32>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(bad)
}

/// Reads a time limit: `90`, `90s`, `5m`, `2h`; milliseconds out.
///
/// # Errors
/// A sentence fragment, for clap.
pub fn millis(text: &str) -> Result<u64, String> {
    let bad = || "write it in seconds, or with ms, s, m or h: 90, 500ms, 5m".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[split..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    text[..split].parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).filter(|&ms| ms > 0).ok_or_else(bad)
}

/// Whole seconds, or with a unit: 90, 5m, 2h.
///
/// # Errors
/// A sentence on how to write it.
pub fn seconds(text: &str) -> Result<u32, String> {
    if text == "0" {
        return Ok(0);
    }
    let ms = millis(text)?;
    u32::try_from(ms / 1000)
        .ok()
        .filter(|_| ms % 1000 == 0)
        .ok_or_else(|| "write it in whole seconds: 90, 5m, 2h".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_has_cents_and_what_is_less() {
        let table =
            [(0, "$0.00"), (2_500_000, "$2.50"), (123, "$0.000123"), (1_010_000, "$1.01"), (12_345_678, "$12.345678")];
        for (micros, expected) in table {
            assert_eq!(dollars(micros), expected);
        }
    }

    #[test]
    fn times_read_well() {
        let shown = |us| duration(Duration::from_micros(us));
        assert_eq!(shown(850), "850 µs");
        assert_eq!(shown(1_240), "1.2 ms");
        assert_eq!(shown(31_400), "31 ms");
        assert_eq!(shown(4_100_000), "4.1 s");
        assert_eq!(shown(125_000_000), "2 min 5 s");
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(3_500), "3.4 KiB");
        assert_eq!(bytes(12 << 20), "12 MiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
    }

    #[test]
    fn limits_take_units_and_refuse_nonsense() {
        assert_eq!(mebibytes("2G"), Ok(2048));
        assert_eq!(mebibytes("512MiB"), Ok(512));
        assert_eq!(millis("5m"), Ok(300_000));
        assert_eq!(millis("90"), Ok(90_000));
        for bad in ["", "G", "-1", "1.5G", "99999999999G"] {
            assert!(mebibytes(bad).is_err(), "{bad}");
        }
        for bad in ["", "s", "0", "-1", "5d", "99999999999999999999h"] {
            assert!(millis(bad).is_err(), "{bad}");
        }
    }
}
