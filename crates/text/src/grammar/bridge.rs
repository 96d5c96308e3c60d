//! The vocabulary in the form that the grammar engine walks over.

use crate::TextError;
use crate::tokenizer::{Encode, Kind, Tokenizer};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use lockstep_flow::Token;
use std::sync::Arc;

/// Tokens of more bytes are never allowed under a grammar: the tree is walked by recursion.
const TOKEN_BYTES_MAX: usize = 256;

/// Bytes that a grammar forces and that are cut into tokens together: a mask needs the first of
/// those tokens only, and a grammar may force a megabyte.
const FORCED_BYTES_MAX: usize = 2048;
const _: () = assert!(FORCED_BYTES_MAX > 4 * TOKEN_BYTES_MAX, "the first token is never cut");

struct Environment {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, s: &[u8]) -> Vec<TokenId> {
        let mut end = s.len().min(FORCED_BYTES_MAX);
        while end < s.len() && end > FORCED_BYTES_MAX - 4 && s[end] & 0xc0 == 0x80 {
            end -= 1;
        }
        self.trie.tokenize_with_greedy_fallback(&s[..end], |text| {
            self.forced(text).into_iter().map(|t| t.0).collect()
        })
    }
}

impl Environment {
    /// Tokens of text that a grammar forces. A marker that the vocabulary merely adds (a format's
    /// own, such as DeepSeek-V4's `｜DSML｜`) is its token, as the model was taught and as the mask
    /// allows anyway; control tokens are never read out of text.
    fn forced(&self, text: &str) -> Vec<Token> {
        let read = Encode { add_bos: false, parse_special: true };
        let pieces = self.tokenizer.pieces();
        let is_text = |t: &Token| {
            let kind = pieces.get(t.0 as usize).map(|piece| piece.kind);
            !matches!(kind, Some(Kind::Control | Kind::Unknown) | None)
        };
        match self.tokenizer.encode(text, read) {
            Ok(tokens) if tokens.iter().all(is_text) => tokens,
            _ => self.tokenizer.encode(text, Encode::TEXT).unwrap_or_default(),
        }
    }
}

/// Control tokens carry the engine's marker byte, so that no text of a grammar allows them; only
/// a grammar that names them does.
pub(super) fn environment(tokenizer: Arc<Tokenizer>, eos: &[Token]) -> Result<TokEnv, TextError> {
    let Some(&first) = eos.first() else {
        let what = "the model names no token that ends a text".into();
        return Err(TextError::GrammarEngine { what });
    };
    let word = |(id, piece): (usize, &crate::tokenizer::Piece)| -> Vec<u8> {
        let bytes = match piece.kind {
            Kind::Control | Kind::Unknown => {
                let spelling = tokenizer.spelling_of(Token(id as u32)).unwrap_or_default();
                let mut bytes = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                bytes.extend_from_slice(spelling.as_bytes());
                return bytes;
            }
            Kind::Unused => &[][..],
            Kind::Normal | Kind::UserDefined | Kind::Byte => &piece.bytes,
        };
        // The marker byte is never part of UTF-8 text.
        let fits = bytes.len() <= TOKEN_BYTES_MAX && !bytes.contains(&0xff);
        if fits { bytes.to_vec() } else { Vec::new() }
    };
    let words: Vec<Vec<u8>> = tokenizer.pieces().iter().enumerate().map(word).collect();
    let info = TokRxInfo::new(words.len() as u32, first.0);
    let eos: Vec<TokenId> = eos.iter().map(|t| t.0).collect();
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&eos);
    Ok(Arc::new(Environment { trie, tokenizer }))
}

/// The shapes of text for which the engine precomputes masks.
pub(super) fn slices() -> Vec<String> {
    SlicedBiasComputer::general_slices()
}
