//! The bytes of every token: what decoding concatenates.

use super::build::SPM_SPACE;
use super::vocab::Kind;
use crate::TextError;
use serde_json::Value;

/// How a token's spelling stands for bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spelling {
    /// GPT-2's alphabet: every byte is a printable character.
    ByteLevel,
    /// SentencePiece: U+2581 is a space, `<0x0A>` is a byte. `strip` drops one leading space of
    /// a whole text, the one that encoding put there.
    SentencePiece { strip: bool },
}

/// One id of the vocabulary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) kind: Kind,
}

impl Piece {
    /// True where decoding leaves it out (`skip_special_tokens`).
    pub(crate) fn is_special(&self) -> bool {
        matches!(self.kind, Kind::Control | Kind::Unknown)
    }
}

impl Spelling {
    /// Reads the decoder of a `tokenizer.json`.
    pub(crate) fn of_decoder(decoder: &Value) -> Result<Spelling, TextError> {
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(decoder),
        };
        let types: Vec<&str> = steps.iter().map(|d| d["type"].as_str().unwrap_or("none")).collect();
        if types == ["ByteLevel"] {
            return Ok(Spelling::ByteLevel);
        }
        let known = ["Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"];
        let spaces = steps.iter().any(|d| match d["type"].as_str() {
            Some("Replace") => {
                d["pattern"]["String"].as_str() == Some("\u{2581}")
                    && d["content"].as_str() == Some(" ")
            }
            Some("Metaspace") => true,
            _ => false,
        });
        if spaces && types.iter().all(|t| known.contains(t)) {
            let strip = steps.iter().any(|d| match d["type"].as_str() {
                Some("Strip") => d["start"].as_u64() == Some(1),
                Some("Metaspace") => d["prepend_scheme"].as_str() != Some("never"),
                _ => false,
            });
            return Ok(Spelling::SentencePiece { strip });
        }
        Err(TextError::Decoder { found: types.join(", ") })
    }

    /// The bytes that `text` stands for.
    pub(crate) fn bytes(self, text: &str) -> Box<[u8]> {
        match self {
            // A spelling with a character outside the alphabet is an added token: as it is.
            Spelling::ByteLevel => text
                .chars()
                .map(byte_of_char)
                .collect::<Option<Box<[u8]>>>()
                .unwrap_or_else(|| text.as_bytes().into()),
            Spelling::SentencePiece { .. } => match byte_token(text) {
                Some(byte) => Box::new([byte]),
                None => text.replace(SPM_SPACE, " ").into_bytes().into(),
            },
        }
    }
}

fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// GPT-2's alphabet: bytes that are printable in Latin-1 are themselves, the other 68 are
/// U+0100 onwards in order.
fn byte_of_char(c: char) -> Option<u8> {
    match c as u32 {
        x @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(x as u8),
        x @ 0x100..=0x120 => Some((x - 0x100) as u8),
        x @ 0x121..=0x142 => Some((x - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let bytes: std::collections::BTreeSet<u8> =
            (0..0x400).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!((0..0x400).filter_map(char::from_u32).filter_map(byte_of_char).count(), 256);
        assert_eq!(&*Spelling::ByteLevel.bytes("Ġa"), b" a");
        assert_eq!(&*Spelling::ByteLevel.bytes("Ċ"), b"\n");
        assert_eq!(&*Spelling::ByteLevel.bytes("<|a b|>"), b"<|a b|>");
    }

    #[test]
    fn sentencepiece_bytes_and_spaces() {
        let s = Spelling::SentencePiece { strip: true };
        assert_eq!(&*s.bytes("\u{2581}the"), b" the");
        assert_eq!(&*s.bytes("<0xE2>"), &[0xe2]);
        assert_eq!(&*s.bytes("<0x+1>"), b"<0x+1>");
    }
}
