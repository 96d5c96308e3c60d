//! The first ops of every plan: its inputs, and the rows of the tokens that they name.

use crate::ModelError;
use crate::emit::Emit;
use lockstep_flow::limits::{LOGIT_BIAS_MAX, PAGE_TOKENS};
use lockstep_plan::{
    Axis, BufferId, BufferKind, Elem, Embed, GatherTokens, OpKind, PaddingPolicy, StateKind,
};
use lockstep_weights::Role;

/// Bytes of one page of token ids.
pub const TOKEN_PAGE_BYTES: u64 = PAGE_TOKENS as u64 * 4;
/// Bytes of a slot's last token.
pub const LAST_TOKEN_BYTES: u64 = 4;

/// Input buffers that every plan has.
pub struct Inputs {
    pub positions: BufferId,
    pub token_seq: BufferId,
    pub write_slots: BufferId,
    pub block_table: BufferId,
    pub seq_slots: BufferId,
    pub token_source: BufferId,
    pub logit_rows: BufferId,
    pub logit_slots: BufferId,
    pub params: BufferId,
    pub masks: BufferId,
    pub bias: BufferId,
}

impl Inputs {
    /// Declares them; `vocab` sizes the grammar masks.
    pub fn declare(e: &mut Emit<'_>, vocab: u32) -> Inputs {
        let padded = |late| BufferKind::Input { padding: PaddingPolicy::Word(0), late };
        let mask_bytes = u64::from(vocab.div_ceil(32)) * 4;
        let bias_bytes = LOGIT_BIAS_MAX as u64 * 8;
        let params_bytes = e.backend.sample_params_bytes();
        let pages = u64::from(e.shape.pages_per_seq_max());
        let b = &mut e.b;
        b.live_counts();
        Inputs {
            token_source: b.table("token_source", Axis::T, 1, 0),
            token_seq: b.table("token_seq", Axis::T, 1, 0),
            positions: b.table("positions", Axis::T, 1, 0),
            write_slots: b.table("write_slots", Axis::T, 1, 0),
            seq_slots: b.table("seq_slots", Axis::S, 1, 0),
            block_table: b.table("block_table", Axis::S, pages, 0),
            logit_rows: b.table("logit_rows", Axis::R, 1, 0),
            logit_slots: b.table("logit_slots", Axis::R, 1, 0),
            params: b.rows("sample_params", padded(false), Axis::R, params_bytes, Elem::Opaque),
            masks: b.rows("masks", padded(true), Axis::R, mask_bytes, Elem::U32),
            bias: b.rows("logit_bias", padded(false), Axis::R, bias_bytes, Elem::Opaque),
        }
    }
}

/// State that holds token ids.
pub struct TokenState {
    /// Ids of every page's positions: penalties look back through them.
    pub token_pages: BufferId,
    /// The token that a slot's next step starts from.
    pub last_token: BufferId,
}

impl TokenState {
    /// Declares it.
    pub fn declare(e: &mut Emit<'_>) -> TokenState {
        let kind = StateKind::Pages { page_bytes: TOKEN_PAGE_BYTES };
        let token_pages = e.b.state("token_pages", kind, e.shape.pages, Elem::U32);
        let kind = StateKind::Slots { slot_bytes: LAST_TOKEN_BYTES };
        let last_token = e.b.state("last_token", kind, e.shape.slots, Elem::U32);
        TokenState { token_pages, last_token }
    }
}

/// Gathers the step's token ids `[T]`, keeps them in their pages, and looks up their rows of the
/// embedding `[T][hidden]`, f32. Returns both.
///
/// # Errors
/// The checkpoint lacks the embedding, or the device a packing of it.
pub fn embed(
    e: &mut Emit<'_>,
    inputs: &Inputs,
    state: &TokenState,
    (vocab, hidden): (u32, u32),
) -> Result<(BufferId, BufferId), ModelError> {
    let (w, format) = e.matrix(Role::Embed, vocab, hidden)?;
    let tokens = e.b.transient("tokens", Axis::T, 4, Elem::U32);
    e.op(
        "gather_tokens",
        OpKind::GatherTokens(GatherTokens {
            token_source: inputs.token_source,
            token_seq: inputs.token_seq,
            seq_slots: inputs.seq_slots,
            last_token: state.last_token,
            write_slots: inputs.write_slots,
            token_pages: state.token_pages,
            vocab,
            out: tokens,
        }),
    );
    let x = e.rows_f32("x", Axis::T, hidden);
    let axis = Axis::T;
    e.op("embed", OpKind::Embed(Embed { axis, tokens, w, format, vocab, dim: hidden, out: x }));
    Ok((tokens, x))
}
