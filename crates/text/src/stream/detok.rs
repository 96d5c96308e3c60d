//! Bytes to text, a token at a time.

/// Turns bytes into text as they come, with U+FFFD where `String::from_utf8_lossy` of the whole
/// would put it. At most three bytes are held back: a sequence that may still become valid.
#[derive(Clone, Default, Debug)]
pub(crate) struct Utf8Stream {
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Appends to `out` the text that is settled once `bytes` have come.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut settled = 0;
        while settled < self.held.len() {
            let rest = &self.held[settled..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    settled = self.held.len();
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    settled += valid.len();
                    match e.error_len() {
                        Some(len) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            settled += len.min(after.len());
                        }
                        None => break,
                    }
                }
            }
        }
        self.held.drain(..settled);
    }

    /// Appends what the bytes still held stand for at the end of the text.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.held));
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_split_emoji_is_held_until_it_is_whole() {
        let mut s = Utf8Stream::default();
        let mut out = String::new();
        for &b in &"é😀".as_bytes()[..5] {
            s.push(&[b], &mut out);
        }
        assert_eq!(out, "é");
        s.push(&"é😀".as_bytes()[5..], &mut out);
        assert_eq!(out, "é😀");
    }

    /// Bytes that are often near valid text: leads, continuations, ASCII and whole characters.
    fn byte_soup() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<u8>().prop_map(|b| vec![b]),
            (0x80..0xc0u8).prop_map(|b| vec![b]),
            (0xc0..=0xffu8).prop_map(|b| vec![b]),
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            (any::<char>(), 1..4usize).prop_map(|(c, n)| {
                let mut bytes = c.to_string().into_bytes();
                bytes.truncate(n);
                bytes
            }),
        ];
        proptest::collection::vec(piece, 0..40).prop_map(|v| v.concat())
    }

    proptest! {
        #[test]
        fn increments_equal_the_whole(bytes in byte_soup(), cuts in proptest::collection::vec(0..8usize, 0..60)) {
            let mut s = Utf8Stream::default();
            let mut out = String::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                s.push(now, &mut out);
                prop_assert!(s.held.len() < 4);
                rest = later;
            }
            s.push(rest, &mut out);
            s.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
