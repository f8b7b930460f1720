//! Counting added and removed lines.
//!
//! The greedy algorithm of Myers finds the length D of the shortest edit script. Added minus removed is the difference
//! of the two lengths, and their sum is D, so both counts follow without the script itself.

use std::collections::HashMap;

/// Bytes looked at to tell text from other content.
const SNIFF_BYTES: usize = 8 * 1024;
/// Longest edit script that is searched for; what differs more is counted as replaced.
const DISTANCE_MAX: usize = 4_000;

/// Whether content looks like no text: it holds a NUL near its beginning.
#[must_use]
pub fn is_binary(content: &[u8]) -> bool {
    content[..content.len().min(SNIFF_BYTES)].contains(&0)
}

/// Lines added and removed between two texts; `None` when one is no text, or they differ too much to count.
#[must_use]
pub fn text_stat(before: &[u8], after: &[u8]) -> Option<(u64, u64)> {
    if is_binary(before) || is_binary(after) {
        return None;
    }
    let mut numbers = HashMap::new();
    let mut lines = |text: &'_ [u8]| -> Vec<usize> {
        text.split_inclusive(|b| *b == b'\n')
            .map(|line| {
                let next = numbers.len();
                *numbers.entry(line.to_vec()).or_insert(next)
            })
            .collect()
    };
    let (old, new) = (lines(before), lines(after));
    let (old, new) = trim(&old, &new);
    let distance = if old.is_empty() || new.is_empty() { old.len() + new.len() } else { distance(old, new)? };
    let removed = (distance + old.len() - new.len()) / 2;
    Some(((distance - removed) as u64, removed as u64))
}

/// Without what is the same at both ends.
fn trim<'a>(old: &'a [usize], new: &'a [usize]) -> (&'a [usize], &'a [usize]) {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[head..], &new[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    (&old[..old.len() - tail], &new[..new.len() - tail])
}

fn distance(old: &[usize], new: &[usize]) -> Option<usize> {
    let limit = (old.len() + new.len()).min(DISTANCE_MAX);
    let offset = limit + 1;
    // furthest[k + offset]: how far in `old` a path on diagonal k has come.
    let mut furthest = vec![0usize; 2 * limit + 3];
    for d in 0..=limit {
        for step in 0..=d {
            let k = offset + 2 * step - d;
            let down = step == 0 || (step != d && furthest[k - 1] < furthest[k + 1]);
            let mut x = if down { furthest[k + 1] } else { furthest[k - 1] + 1 };
            // y = x - diagonal; a path below the first row of `new` is not one yet.
            let Some(mut y) = (x + offset).checked_sub(k) else { continue };
            while x < old.len() && y < new.len() && old[x] == new[y] {
                x += 1;
                y += 1;
            }
            furthest[k] = x;
            if x >= old.len() && y >= new.len() {
                return Some(d);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow truth: longest common subsequence by table.
    fn oracle(before: &str, after: &str) -> (u64, u64) {
        let (a, b): (Vec<&str>, Vec<&str>) =
            (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
        let mut table = vec![vec![0u64; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i][j] =
                    if a[i - 1] == b[j - 1] { table[i - 1][j - 1] + 1 } else { table[i - 1][j].max(table[i][j - 1]) };
            }
        }
        let common = table[a.len()][b.len()];
        (b.len() as u64 - common, a.len() as u64 - common)
    }

    #[test]
    fn counts_agree_with_the_longest_common_subsequence() {
        let mut seed = 7u32;
        let mut next = |limit: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % limit
        };
        for _ in 0..500 {
            let mut text = || {
                let count = next(14);
                (0..count).map(|_| format!("{}\n", next(4))).collect::<String>()
            };
            let (before, after) = (text(), text());
            assert_eq!(
                text_stat(before.as_bytes(), after.as_bytes()),
                Some(oracle(&before, &after)),
                "{before:?} {after:?}"
            );
        }
    }

    #[test]
    fn binary_content_has_no_lines() {
        assert_eq!(text_stat(b"a\0b", b"a"), None);
        assert_eq!(text_stat(b"", b"a\nb"), Some((2, 0)));
    }
}
