//! Text to token ids and back.

mod build;
mod guard;
mod hf;
mod pieces;
mod pre;
mod vocab;

pub(crate) use guard::{Guard, unused_mark};
pub(crate) use hf::HfFolder;
pub(crate) use pieces::{Piece, Spelling};
pub(crate) use pre::names as pre_names;
pub(crate) use vocab::Kind;
pub use vocab::{GgufVocab, MODELS};

use crate::TextError;
use lockstep_flow::{Token, limits};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizer};

/// Characters of one run of white space, or of anything else, at most. Pre-tokenizer patterns
/// backtrack over such runs, and the regular-expression engine gives up at a million steps: it
/// would then cut the text in the wrong places without saying so. Hugging Face's engine fails on
/// runs of that length too.
const RUN_CHARS_MAX: usize = 500_000;

/// How a text is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encode {
    /// Put the model's BOS in front, where the model has one that its tokenizer adds by itself.
    pub add_bos: bool,
    /// Read the spellings of control tokens as those tokens. Text from a client that is not the
    /// prompt's author's own must not be read so. Tokens that a vocabulary merely adds
    /// (user-defined: `<think>`, long runs of spaces) are always read.
    pub parse_special: bool,
}

impl Encode {
    /// A prompt for `/v1/completions`: BOS where the model wants one, special tokens are read
    /// (`transformers`: `tokenizer(text)`).
    pub const PROMPT: Encode = Encode { add_bos: true, parse_special: true };
    /// Text inside something else: no BOS, nothing is special.
    pub const TEXT: Encode = Encode { add_bos: false, parse_special: false };
}

/// A tokenizer of the two families that this room knows.
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Vec<Piece>,
    spelling: Spelling,
    guard: Guard,
    /// What encoding puts in front where asked: BOS, or nothing.
    prefix: Vec<Token>,
}

impl Tokenizer {
    /// From a vocabulary that a GGUF file states.
    pub(crate) fn from_gguf(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
        let built = guarded(|| build::build(vocab))?;
        let spelling = Spelling::of_decoder(&built.decoder)?;
        let piece = |(text, kind): (&String, Kind)| Piece { bytes: spelling.bytes(text), kind };
        let pieces: Vec<Piece> = vocab.tokens.iter().zip(built.kinds).map(piece).collect();
        let prefix = vocab.bos.filter(|_| built.add_bos).map(Token).into_iter().collect();
        Ok(Tokenizer::assemble(built.inner, pieces, spelling, prefix))
    }

    /// From the definition of a Hugging Face folder.
    pub(crate) fn from_hf(folder: &HfFolder) -> Result<Tokenizer, TextError> {
        let spelling = Spelling::of_decoder(&folder.decoder)?;
        let inner = guarded(|| {
            let mut inner = load(&folder.tokenizer_json)?;
            folder.add_tokens(&mut inner)?;
            Ok(inner)
        })?;
        let vocab = inner.get_vocab(true);
        let n = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if n == 0 || n > limits::VOCAB_MAX as usize {
            return Err(TextError::VocabSize { found: n, max: limits::VOCAB_MAX });
        }
        let hole = Piece { bytes: Box::new([]), kind: Kind::Unused };
        let mut pieces = vec![hole; n];
        for (text, id) in vocab {
            pieces[id as usize] = Piece { bytes: spelling.bytes(&text), kind: Kind::Normal };
        }
        for (id, token) in inner.get_added_tokens_decoder() {
            if let Some(piece) = pieces.get_mut(id as usize) {
                piece.kind = if token.special { Kind::Control } else { Kind::UserDefined };
            }
        }
        let prefix = folder.prefix(&inner)?;
        Ok(Tokenizer::assemble(inner, pieces, spelling, prefix))
    }

    fn assemble(
        inner: tokenizers::Tokenizer,
        pieces: Vec<Piece>,
        spelling: Spelling,
        prefix: Vec<Token>,
    ) -> Tokenizer {
        // DeepSeek-V4 flags few of the tokens that its prompts are made of, and its own encoder
        // turns no message's text into any of them.
        let all_added = inner.token_to_id(crate::tools::dsml::TOKEN).is_some();
        let spellings: Vec<String> = (0..pieces.len() as u32)
            .filter_map(|id| {
                let text = inner.id_to_token(id)?;
                let piece = &pieces[id as usize];
                let added = all_added && piece.kind == Kind::UserDefined;
                (added || guard::is_guarded(piece, &text)).then_some(text)
            })
            .collect();
        let guard = Guard::new(spellings.iter().map(String::as_str));
        Tokenizer { inner, pieces, spelling, guard, prefix }
    }

    /// Of a model without a vocabulary: it has no text for any id.
    pub(crate) fn empty() -> Tokenizer {
        let inner = tokenizers::Tokenizer::new(tokenizers::models::bpe::BPE::default());
        Tokenizer::assemble(inner, Vec::new(), Spelling::ByteLevel, Vec::new())
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.spelling == Spelling::SentencePiece { strip: true }
    }

    /// The token's spelling in the vocabulary, byte alphabet and all.
    pub(crate) fn spelling_of(&self, token: Token) -> Option<String> {
        self.inner.id_to_token(token.0)
    }

    pub(crate) fn token_of(&self, spelling: &str) -> Option<Token> {
        self.inner.token_to_id(spelling).map(Token)
    }

    pub(crate) fn encode(&self, text: &str, how: Encode) -> Result<Vec<Token>, TextError> {
        let mut tokens = if how.add_bos { self.prefix.clone() } else { Vec::new() };
        if how.parse_special {
            self.encode_all(text, &mut tokens)?;
            return Ok(tokens);
        }
        match unused_mark(text).and_then(|mark| Some((self.guard.mark(text, mark)?, mark))) {
            Some((marked, mark)) => self.encode_marked(&marked, mark, &mut tokens)?,
            None => self.encode_all(text, &mut tokens)?,
        }
        Ok(tokens)
    }

    /// The library's own way: every spelling of an added token is that token.
    pub(crate) fn encode_all(&self, text: &str, out: &mut Vec<Token>) -> Result<(), TextError> {
        self.check_runs(text)?;
        guarded(|| {
            let encoding = self.inner.encode_fast(text, false).map_err(refused)?;
            out.extend(encoding.get_ids().iter().copied().map(Token));
            Ok(())
        })
    }

    /// The library's steps one by one, with the marks taken out between the split at added tokens
    /// and the pre-tokenizer.
    pub(crate) fn encode_marked(
        &self,
        text: &str,
        mark: char,
        out: &mut Vec<Token>,
    ) -> Result<(), TextError> {
        self.check_runs(text)?;
        guarded(|| self.encode_marked_steps(text, mark, out))
    }

    fn check_runs(&self, text: &str) -> Result<(), TextError> {
        if text.len() <= RUN_CHARS_MAX || self.inner.get_pre_tokenizer().is_none() {
            return Ok(());
        }
        let (mut run, mut kind) = (0usize, None);
        for c in text.chars() {
            let space = c.is_whitespace();
            run = if kind == Some(space) { run + 1 } else { 1 };
            kind = Some(space);
            if run > RUN_CHARS_MAX {
                return Err(TextError::RunTooLong { space, max_chars: RUN_CHARS_MAX });
            }
        }
        Ok(())
    }

    fn encode_marked_steps(
        &self,
        text: &str,
        mark: char,
        out: &mut Vec<Token>,
    ) -> Result<(), TextError> {
        let added = self.inner.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        let unmark = |n: &mut tokenizers::NormalizedString| {
            n.filter(|c| c != mark);
            Ok(())
        };
        pieces.normalize(unmark).map_err(refused)?;
        if let Some(pre) = self.inner.get_pre_tokenizer() {
            pre.pre_tokenize(&mut pieces).map_err(refused)?;
        }
        let model = self.inner.get_model();
        pieces.tokenize(|n| model.tokenize(n.get())).map_err(refused)?;
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            out.extend(tokens.iter().flatten().map(|t| Token(t.id)));
        }
        Ok(())
    }
}

fn load(bytes: &[u8]) -> Result<tokenizers::Tokenizer, TextError> {
    let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(refused)?;
    inner.with_padding(None);
    inner.with_truncation(None).map_err(refused)?;
    Ok(inner)
}

/// Runs a part of the tokenizer library. It indexes and unwraps on the word of the definition, so
/// a definition that lies can make it panic; that is the definition's error.
fn guarded<T>(f: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    let broken = |_| TextError::Tokenizer { what: "its parts contradict each other".into() };
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(broken(panic)))
}

fn refused(e: tokenizers::Error) -> TextError {
    TextError::Tokenizer { what: e.to_string() }
}
