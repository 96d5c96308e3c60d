//! Every limit, in one place, with the relations between them asserted at compile time.

/// Least `repetition_penalty`: it divides logits, and one of up to 1e36 stays finite over this,
/// where a subnormal number makes infinity of any logit.
pub const REPETITION_PENALTY_MIN: f32 = 0.01;
/// Greatest `repetition_penalty`: it multiplies negative logits.
pub const REPETITION_PENALTY_MAX: f32 = 10.0;
/// Entries of a request's `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 512;
/// Alternatives reported with a token.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Extra stop tokens of a request.
pub const STOP_TOKENS_MAX: usize = 64;
/// Stop strings of a request, and the bytes of one.
pub const STOP_STRINGS_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;
/// `max_tokens` where the request names none, on `/v1/completions`.
pub const MAX_TOKENS_DEFAULT: u32 = 16;
/// Choices of a request (`n`).
pub const CHOICES_MAX: u32 = 128;
/// Prompts of one `/v1/completions` request, whatever the server. How many sequences a request may
/// have is `max_running_requests` and `max_queued_requests` together, which are knobs.
pub const PROMPTS_MAX: usize = 2048;
/// Messages of one chat request, and tools it may declare.
pub const MESSAGES_MAX: usize = 4096;
/// Tools of one chat request.
pub const TOOLS_MAX: usize = 256;
/// JSON values (numbers, strings, objects, ...) of a request body: an array of token ids costs
/// thirty times its text once parsed, so bytes alone do not bound memory.
pub const BODY_VALUES_MAX: usize = 4 << 20;
/// Bytes of a request body.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// Milliseconds that a grammar may take for one token (its mask, or moving past it); a request
/// whose grammar takes longer ends. Ordinary ones take under one.
pub const GRAMMAR_CALL_MS: u64 = 500;
/// Milliseconds that the first mask of a grammar may take, which is part of compiling it.
pub const GRAMMAR_FIRST_MASK_MS: u64 = 1000;
/// Sequences that may run at once, at most (`max_running_requests`).
pub const RUNNING_REQUESTS_MAX: u32 = 4096;
/// Tokens that a prediction block may draft for a sequence in one step, at most.
pub const DRAFTS_MAX: u32 = 4;
/// Tokens of a KV page. Attention splits KV at multiples of [`KV_SPLIT_TOKENS`], which is a
/// multiple of this, so a split never starts inside a page.
pub const PAGE_TOKENS: u32 = 32;
/// Tokens of one attention split: partial results are combined in the order of the splits, so
/// this number is part of the numerics and never depends on a batch.
pub const KV_SPLIT_TOKENS: u32 = 256;
/// Longest context that any model is served with.
pub const CONTEXT_TOKENS_MAX: u32 = 1 << 20;
/// Vocabulary size, at most.
pub const VOCAB_MAX: u32 = 1 << 20;

const _: () = {
    assert!(KV_SPLIT_TOKENS.is_multiple_of(PAGE_TOKENS));
    assert!(PAGE_TOKENS.is_power_of_two());
    assert!(PAGE_TOKENS.is_multiple_of(16), "attention reads pages in lanes of 16 positions");
    assert!(BODY_VALUES_MAX > CONTEXT_TOKENS_MAX as usize, "a full context of token ids parses");
    assert!(CONTEXT_TOKENS_MAX.is_multiple_of(KV_SPLIT_TOKENS));
};
