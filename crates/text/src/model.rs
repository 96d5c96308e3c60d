//! Everything about one model's text, in one value.

use crate::TextError;
use crate::chat::{ChatOptions, ChatPrompt, ChatTemplate};
use crate::grammar::{GrammarSpec, Grammars};
use crate::stream::{StreamOptions, TextStream, Utf8Stream};
use crate::tokenizer::{Encode, GgufVocab, HfFolder, Kind, Tokenizer};
use crate::tools::{ReasoningMarks, ToolFormat, dsml};
use lockstep_flow::{Token, TokenMask};
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Spellings of tokens that end a turn or a text in models whose files do not always say so.
const END_SPELLINGS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "</s>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];

/// DeepSeek-V4's releases come without a template: their prompts are made by a program, which
/// this one agrees with.
const DEEPSEEK_V4: &str = include_str!("chat/deepseek_v4.jinja");

/// The template of a model that has none and whose vocabulary says which encoding it was made for.
fn built_in_template(tokenizer: &Tokenizer) -> Option<String> {
    let v4 = [dsml::TOKEN, "<\u{ff5c}User\u{ff5c}>", "<\u{ff5c}Assistant\u{ff5c}>", "</think>"];
    let known = v4.iter().all(|spelling| tokenizer.token_of(spelling).is_some());
    known.then(|| DEEPSEEK_V4.to_owned())
}

/// Tokenizer, chat template and output formats of one model. Shared by all requests in an `Arc`;
/// nothing in it changes after it is built.
pub struct TextModel {
    tokenizer: Arc<Tokenizer>,
    bos: Option<Token>,
    eos: Vec<Token>,
    template: Option<Result<ChatTemplate, TextError>>,
    grammars: OnceLock<Result<Grammars, TextError>>,
    /// True where there is no tokenizer: token ids are all there is.
    ids_only: bool,
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

impl TextModel {
    /// From the tokenizer keys of a GGUF file.
    pub fn from_gguf(vocab: GgufVocab) -> Result<TextModel, TextError> {
        let tokenizer = Tokenizer::from_gguf(&vocab)?;
        let mut eos: Vec<Token> =
            [vocab.eos, vocab.eot, vocab.eom].into_iter().flatten().map(Token).collect();
        for (id, text) in vocab.tokens.iter().enumerate() {
            let kind = tokenizer.pieces()[id].kind;
            if matches!(kind, Kind::Control | Kind::UserDefined)
                && END_SPELLINGS.contains(&text.as_str())
            {
                eos.push(Token(id as u32));
            }
        }
        let text = |id: Option<u32>| id.map(|id| vocab.tokens[id as usize].clone());
        let specials = [
            ("bos_token", text(vocab.bos)),
            ("eos_token", text(vocab.eos)),
            ("unk_token", text(vocab.unk)),
            ("pad_token", text(vocab.pad)),
        ];
        let bos = vocab.bos.map(Token);
        Ok(TextModel::assemble(tokenizer, bos, eos, vocab.chat_template, specials))
    }

    /// From the tokenizer files of a Hugging Face folder: `tokenizer.json`, and where present
    /// `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`,
    /// `config.json`, `chat_template.jinja` and `chat_template.json`.
    pub fn from_hf_dir(dir: &Path) -> Result<TextModel, TextError> {
        let folder = HfFolder::read(dir)?;
        let tokenizer = Tokenizer::from_hf(&folder)?;
        let named = |name| folder.special(name).and_then(|text| tokenizer.token_of(text));
        let mut eos = folder.eos_ids();
        eos.extend(named("eos_token"));
        eos.retain(|t| t.index() < tokenizer.pieces().len());
        let bos = named("bos_token");
        let specials = ["bos_token", "eos_token", "unk_token", "pad_token"]
            .map(|name| (name, folder.special(name).map(str::to_owned)));
        let template = folder.chat_template().or_else(|| built_in_template(&tokenizer));
        Ok(TextModel::assemble(tokenizer, bos, eos, template, specials))
    }

    /// Of a Hugging Face folder without `tokenizer.json`: what takes and gives token ids works;
    /// text, chats and grammars are refused with the reason. The tokens that end a text are those
    /// of `generation_config.json` or `config.json`.
    pub fn for_ids(dir: &Path) -> Result<TextModel, TextError> {
        let mut eos = HfFolder::eos_of(dir)?;
        eos.retain(|t| t.0 < lockstep_flow::limits::VOCAB_MAX);
        let specials = ["bos_token", "eos_token", "unk_token", "pad_token"].map(|n| (n, None));
        let text = TextModel::assemble(Tokenizer::empty(), None, eos, None, specials);
        Ok(TextModel { ids_only: true, ..text })
    }

    /// True where the model has no tokenizer ([`TextModel::for_ids`]).
    pub fn is_ids_only(&self) -> bool {
        self.ids_only
    }

    fn text_or_why(&self) -> Result<(), TextError> {
        if self.ids_only { Err(TextError::IdsOnly) } else { Ok(()) }
    }

    fn assemble(
        tokenizer: Tokenizer,
        bos: Option<Token>,
        mut eos: Vec<Token>,
        template: Option<String>,
        specials: [(&'static str, Option<String>); 4],
    ) -> TextModel {
        eos.sort_unstable();
        eos.dedup();
        let specials: Vec<_> =
            specials.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        let template = template.map(|source| ChatTemplate::new(source, specials));
        let grammars = OnceLock::new();
        TextModel { tokenizer: Arc::new(tokenizer), bos, eos, template, grammars, ids_only: false }
    }

    /// Number of ids: one more than the largest. A model may have more rows of logits than this.
    pub fn vocab_size(&self) -> u32 {
        self.tokenizer.pieces().len() as u32
    }

    /// The tokens that end a text or a turn, ascending.
    pub fn eos_tokens(&self) -> &[Token] {
        &self.eos
    }

    /// The token that starts a text, where the model has one.
    pub fn bos(&self) -> Option<Token> {
        self.bos
    }

    /// The source of the chat template, where the model has one that parses.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_ref()?.as_ref().ok().map(ChatTemplate::source)
    }

    /// Why the model's chat template is of no use, where it has one that does not parse.
    pub fn template_fault(&self) -> Option<&TextError> {
        self.template.as_ref()?.as_ref().err()
    }

    /// Token ids of `text`.
    pub fn encode(&self, text: &str, how: Encode) -> Result<Vec<Token>, TextError> {
        self.text_or_why()?;
        self.tokenizer.encode(text, how)
    }

    /// The text of `tokens` as a whole text: a SentencePiece leading space is dropped. Bytes that
    /// are not UTF-8 become U+FFFD, ids outside the vocabulary nothing.
    pub fn decode(&self, tokens: &[Token], skip_special: bool) -> String {
        self.decode_from(tokens, skip_special, !self.tokenizer.strips_leading_space())
    }

    /// The text that `tokens` add to a prompt.
    pub fn decode_continuation(&self, tokens: &[Token], skip_special: bool) -> String {
        self.decode_from(tokens, skip_special, true)
    }

    fn decode_from(&self, tokens: &[Token], skip_special: bool, continuation: bool) -> String {
        let pieces = tokens.iter().filter_map(|t| self.tokenizer.pieces().get(t.index()));
        let mut bytes: Vec<u8> = pieces
            .filter(|p| !(skip_special && p.is_special()))
            .flat_map(|p| p.bytes.iter().copied())
            .collect();
        if !continuation && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        let mut out = String::with_capacity(bytes.len());
        let mut utf8 = Utf8Stream::default();
        utf8.push(&bytes, &mut out);
        utf8.finish(&mut out);
        out
    }

    /// The bytes of one token, special or not; none for an id outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.tokenizer.pieces().get(token.index()).map_or(&[], |p| &p.bytes)
    }

    /// The text of one token for a list of log-probabilities, with U+FFFD where its bytes alone
    /// are not UTF-8; `token_id:N` where there is no tokenizer.
    pub fn token_text(&self, token: Token) -> String {
        if self.ids_only {
            return format!("token_id:{token}");
        }
        String::from_utf8_lossy(self.token_bytes(token)).into_owned()
    }

    /// True for tokens that decoding skips.
    pub fn is_special(&self, token: Token) -> bool {
        self.tokenizer.pieces().get(token.index()).is_some_and(|p| p.is_special())
    }

    /// How the vocabulary spells the token, byte alphabet and all.
    pub fn token_spelling(&self, token: Token) -> Option<String> {
        self.tokenizer.spelling_of(token)
    }

    /// The token with this spelling in the vocabulary.
    pub fn token_of(&self, spelling: &str) -> Option<Token> {
        self.tokenizer.token_of(spelling)
    }

    /// Renders `messages` (an array of objects with `role` and `content`) with the model's own
    /// template. The ids are those of `transformers`' `apply_chat_template`, except that a message
    /// that spells a control token keeps it as plain text.
    pub fn render_chat(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        options: &ChatOptions,
    ) -> Result<ChatPrompt, TextError> {
        self.text_or_why()?;
        let template = match &self.template {
            None => return Err(TextError::NoTemplate),
            Some(Err(e)) => return Err(e.clone()),
            Some(Ok(template)) => template,
        };
        let rendered = template.render(self.tokenizer.guard(), messages, tools, options)?;
        let mut tokens = Vec::new();
        match rendered.mark {
            None => {
                self.tokenizer.encode_all(&rendered.text, &mut tokens)?;
                Ok(ChatPrompt { text: rendered.text, tokens })
            }
            Some(mark) => {
                self.tokenizer.encode_marked(&rendered.text, mark, &mut tokens)?;
                let text = rendered.text.chars().filter(|&c| c != mark).collect();
                Ok(ChatPrompt { text, tokens })
            }
        }
    }

    /// The detokenizer of a sequence that continues a prompt.
    pub fn stream(&self, stop: Vec<String>) -> Result<TextStream, TextError> {
        self.stream_with(StreamOptions { stop, ..StreamOptions::default() })
    }

    /// The detokenizer of a sequence.
    pub fn stream_with(&self, options: StreamOptions) -> Result<TextStream, TextError> {
        if !options.stop.is_empty() {
            self.text_or_why()?;
        }
        TextStream::new(self.tokenizer.clone(), options)
    }

    /// How the model's template asks for tool calls; `None` where it knows no tools. A server
    /// then uses [`ToolFormat::Plain`] where a call is forced by grammar.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.chat_template().and_then(ToolFormat::sniff)
    }

    /// How the model marks its reasoning, where its template says so.
    pub fn reasoning_marks(&self) -> Option<ReasoningMarks> {
        self.chat_template().and_then(ReasoningMarks::sniff)
    }

    /// The special tokens that parsing needs in the text: for [`StreamOptions::keep`].
    pub fn parser_tokens(
        &self,
        format: Option<ToolFormat>,
        reasoning: Option<ReasoningMarks>,
    ) -> Vec<Token> {
        let format = format.map_or(&[][..], ToolFormat::markers).iter().copied();
        let reasoning = reasoning.into_iter().flat_map(|m| [m.start, m.end]);
        format.chain(reasoning).filter_map(|text| self.token_of(text)).collect()
    }

    /// Compiles a grammar, its first mask included, for one sequence. `after_reasoning` is the mark that ends the reasoning,
    /// where the output begins with it ([`ReasoningMarks::opened_by`]): the grammar holds for what
    /// follows. Takes about a millisecond; the first call builds what all share, about 100 ms.
    pub fn grammar(
        &self,
        spec: &GrammarSpec,
        after_reasoning: Option<&str>,
    ) -> Result<Box<dyn TokenMask>, TextError> {
        let mut one = self.grammars(spec, after_reasoning, 1)?;
        Ok(one.pop().expect("one was asked for"))
    }

    /// As [`TextModel::grammar`], for `count` sequences that share nothing; it is compiled once.
    pub fn grammars(
        &self,
        spec: &GrammarSpec,
        after_reasoning: Option<&str>,
        count: usize,
    ) -> Result<Vec<Box<dyn TokenMask>>, TextError> {
        self.text_or_why()?;
        match self.grammars.get_or_init(|| Grammars::new(self.tokenizer.clone(), &self.eos)) {
            Ok(grammars) => grammars.compile(spec, after_reasoning, count),
            Err(e) => Err(e.clone()),
        }
    }
}
