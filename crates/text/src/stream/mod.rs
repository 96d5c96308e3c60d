//! One sequence's output, from token ids to text that may be sent.

mod detok;
mod stop;

use crate::TextError;
use crate::tokenizer::Tokenizer;
pub(crate) use detok::Utf8Stream;
use lockstep_flow::Token;
use std::sync::Arc;
use stop::StopMatcher;

/// What of a sequence becomes text, and what ends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// The text ends where one of these is complete; it is not part of the text.
    pub stop: Vec<String>,
    /// Tokens whose text no stop string ends (`min_tokens`): one that is complete with a token
    /// after these counts.
    pub stop_from: u32,
    /// Keep the stop string that ended the text.
    pub include_stop: bool,
    /// Leave special tokens out (`skip_special_tokens`).
    pub skip_special: bool,
    /// Special tokens that are text all the same: a parser looks for them.
    pub keep: Vec<Token>,
    /// The tokens continue a prompt: a SentencePiece leading space is text. Where false they are
    /// a whole text, whose first leading space was put there by encoding.
    pub continuation: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions {
            stop: Vec::new(),
            stop_from: 0,
            include_stop: false,
            skip_special: true,
            keep: Vec::new(),
            continuation: true,
        }
    }
}

/// What a token added to the text.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Increment {
    /// Text to send; never part of a stop string, always whole characters.
    pub text: String,
    /// The index of the stop string that ended the text with this token. The sequence is over;
    /// later tokens add nothing.
    pub stopped: Option<usize>,
}

/// The incremental detokenizer of one sequence.
///
/// The concatenation of all increments and of [`TextStream::finish`] is
/// [`crate::TextModel::decode`] of all tokens, cut at the first stop string.
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    utf8: Utf8Stream,
    stop: StopMatcher,
    /// Tokens that are still to come whose text no stop string ends.
    unstoppable: u32,
    /// Stop strings count in the text of the last token.
    counts: bool,
    skip_special: bool,
    keep: Vec<Token>,
    /// The next byte, where it is a space, is the one that encoding put in front.
    strip_next: bool,
    scratch: String,
}

impl std::fmt::Debug for TextStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextStream").field("utf8", &self.utf8).field("stop", &self.stop).finish()
    }
}

impl TextStream {
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        options: StreamOptions,
    ) -> Result<TextStream, TextError> {
        Ok(TextStream {
            strip_next: tokenizer.strips_leading_space() && !options.continuation,
            tokenizer,
            utf8: Utf8Stream::default(),
            stop: StopMatcher::new(options.stop, options.include_stop)?,
            unstoppable: options.stop_from,
            counts: options.stop_from == 0,
            skip_special: options.skip_special,
            keep: options.keep,
            scratch: String::new(),
        })
    }

    /// Takes the next token. An id outside the vocabulary adds nothing, like a special token.
    pub fn push(&mut self, token: Token) -> Increment {
        let mut out = Increment::default();
        self.counts = self.unstoppable == 0;
        self.unstoppable = self.unstoppable.saturating_sub(1);
        let Some(piece) = self.tokenizer.pieces().get(token.index()) else { return out };
        if self.stop.hit().is_some()
            || (self.skip_special && piece.is_special() && !self.keep.contains(&token))
        {
            return out;
        }
        let mut bytes = &piece.bytes[..];
        if self.strip_next && !bytes.is_empty() {
            self.strip_next = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.scratch.clear();
        self.utf8.push(bytes, &mut self.scratch);
        self.feed(&mut out);
        out
    }

    fn feed(&mut self, out: &mut Increment) {
        match self.counts {
            true => self.stop.push(&self.scratch, &mut out.text),
            false => self.stop.pass(&self.scratch, &mut out.text),
        }
        out.stopped = self.stop.hit();
    }

    /// The index of the stop string that ended the text.
    pub fn stopped(&self) -> Option<usize> {
        self.stop.hit()
    }

    /// Ends the text: what was held back comes out, bytes that never became a character as
    /// U+FFFD. A stop string can still complete with them.
    pub fn finish(&mut self) -> Increment {
        let mut out = Increment::default();
        if self.stop.hit().is_none() {
            self.scratch.clear();
            self.utf8.finish(&mut self.scratch);
            self.feed(&mut out);
        }
        self.stop.finish(&mut out.text);
        out
    }
}
