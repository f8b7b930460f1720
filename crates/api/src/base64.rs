//! Base64, both alphabets: too little code for a dependency.

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode_with(alphabet: &[u8; 64], bytes: &[u8], pad: bool) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            if i <= group.len() {
                text.push(char::from(alphabet[(bits >> (18 - 6 * i) & 63) as usize]));
            } else if pad {
                text.push('=');
            }
        }
    }
    text
}

/// Standard alphabet, padded.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    encode_with(STANDARD, bytes, true)
}

/// URL alphabet, without padding.
#[must_use]
pub fn encode_url(bytes: &[u8]) -> String {
    encode_with(URL, bytes, false)
}

/// Decodes the standard alphabet, padded; `None` for anything else.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (at, group) in text.chunks(4).enumerate() {
        let padding = group.iter().rev().take_while(|c| **c == b'=').count();
        if padding > 2 || (padding > 0 && (at + 1) * 4 != text.len()) {
            return None;
        }
        let mut bits = 0u32;
        for c in &group[..4 - padding] {
            bits = bits << 6 | value(*c)?;
        }
        bits <<= 6 * padding;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

fn value(c: u8) -> Option<u32> {
    Some(u32::from(match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts_both_ways() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(encode_url(&[0xff; 32]).len(), 43);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["Z", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9\n", "Zm9-"] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
