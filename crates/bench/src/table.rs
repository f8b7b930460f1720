//! The rows as a table for people.

use crate::rows::Measured;
use std::fmt::Write;

/// Renders every row, with the ratio of its median to the sum of its floors.
pub fn render(rows: &[Measured]) -> String {
    let mut out = format!("{:<22} {:>5} {:>10} {:>10} {:>10} {:>8}  floors\n", "", "n", "min", "p50", "p90", "x floor");
    for row in rows {
        let show = |value: u64| {
            if row.unit == "us" { time(value) } else { mebibytes(value) }
        };
        let floors: Vec<String> = row.floors.iter().map(|(name, us)| format!("{name} {}", time(*us))).collect();
        let sum: u64 = row.floors.iter().map(|(_, us)| us).sum();
        let ratio = if sum == 0 { "-".into() } else { format!("{:.1}", row.value.p50 as f64 / sum as f64) };
        let (n, min, p50, p90) = (row.value.n, show(row.value.min), show(row.value.p50), show(row.value.p90));
        writeln!(out, "{:<22} {n:>5} {min:>10} {p50:>10} {p90:>10} {ratio:>8}  {}", row.op, floors.join(", ")).ok();
    }
    out
}

fn time(us: u64) -> String {
    if us < 1000 { format!("{us} µs") } else { format!("{:.1} ms", us as f64 / 1000.0) }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::{mebibytes, time};

    #[test]
    fn units_are_told() {
        assert_eq!((time(999), time(1500)), ("999 µs".into(), "1.5 ms".into()));
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
    }
}
