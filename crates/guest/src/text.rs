//! Small helpers for text.

/// The longest beginning of `text` that has at most `bytes_max` bytes and whole characters.
#[must_use]
pub fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    #[test]
    fn characters_stay_whole() {
        assert_eq!(super::cut("aüb", 2), "a");
        assert_eq!(super::cut("aüb", 3), "aü");
        assert_eq!(super::cut("aüb", 99), "aüb");
    }
}
