//! What can be seen in an answer's form alone: broken calls, leaked markup, text that is none.

use super::verdict::{Corruption, Degenerate, Structural};
use super::{Call, Reply};
use serde_json::Value;

/// Pieces that stand for themselves in no answer to these sessions.
const MARKUP: &[&str] = &[
    "<|",
    "|>",
    "<｜",
    "｜>",
    "｜DSML｜",
    "<tool_call",
    "</tool_call",
    "<function",
    "</function",
    "[TOOL_CALLS]",
    "[INST]",
    "[/INST]",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<think>",
    "</think>",
    "<unused",
    "[PAD]",
    "[UNK]",
    "<0x",
    "<tool_result",
    "invoke name=",
];

/// A piece so often at the end is a loop.
const LOOP_TIMES: usize = 8;
/// Bytes of the longest piece whose repetition is looked for.
const PIECE_BYTES_MAX: usize = 200;
/// Bytes that a loop has at least: an answer may well end in a few dots.
const LOOP_BYTES_MIN: usize = 40;

/// The first fault of form.
pub fn fault(reply: &Reply) -> Option<Corruption> {
    let structural = broken_call(&reply.calls)
        .or_else(|| text_fault(&reply.text))
        .or_else(|| finish_fault(reply));
    structural
        .map(Corruption::Structural)
        .or_else(|| degenerate(&reply.text).map(Corruption::Degenerate))
        .or_else(|| degenerate(&reply.reasoning).map(Corruption::Degenerate))
}

fn excerpt(text: &str) -> String {
    text.chars().take(120).collect()
}

fn broken_call(calls: &[Call]) -> Option<Structural> {
    calls.iter().find_map(|call| {
        if call.name != "report" {
            return Some(Structural::NotOffered { name: excerpt(&call.name) });
        }
        match arguments(&call.arguments) {
            None => Some(Structural::Arguments { found: excerpt(&call.arguments) }),
            // Well-formed arguments may hold what belongs in no text.
            Some((key, value)) => text_fault(&key).or_else(|| text_fault(&value)),
        }
    })
}

/// Key and value of a call of `report`.
pub fn arguments(text: &str) -> Option<(String, String)> {
    let value: Value = serde_json::from_str(text).ok()?;
    let field = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    Some((field("key")?, field("value")?))
}

fn text_fault(text: &str) -> Option<Structural> {
    if let Some(piece) = MARKUP.iter().find(|piece| text.contains(**piece)) {
        let at = text.find(piece).unwrap_or(0);
        return Some(Structural::Markup { found: excerpt(&text[at..]) });
    }
    let bad = |c: char| c == '\u{fffd}' || (c.is_control() && !matches!(c, '\n' | '\r' | '\t'));
    text.contains(bad).then(|| Structural::Bytes { found: excerpt(text) })
}

fn finish_fault(reply: &Reply) -> Option<Structural> {
    let reason = reply.finish.as_deref()?;
    let fits = match reason {
        "tool_calls" | "function_call" => !reply.calls.is_empty(),
        "stop" | "length" | "eos" | "content_filter" | "abort" => true,
        _ => false,
    };
    (!fits).then(|| Structural::Finish { reason: excerpt(reason) })
}

fn degenerate(text: &str) -> Option<Degenerate> {
    looped(text).or_else(|| {
        let foreign = |c: &char| c.is_alphabetic() && (*c as u32) >= 0x250;
        // One letter may be a flourish; several are another language.
        let mut letters = text.chars().filter(foreign);
        let first = letters.next()?;
        (letters.count() >= 2).then_some(Degenerate::Script { found: first })
    })
}

/// The shortest piece that ends the text [`LOOP_TIMES`] times or more.
fn looped(text: &str) -> Option<Degenerate> {
    let bytes = text.trim_end().as_bytes();
    for len in 1..=PIECE_BYTES_MAX.min(bytes.len() / LOOP_TIMES) {
        let piece = &bytes[bytes.len() - len..];
        let times = bytes.rchunks_exact(len).take_while(|chunk| *chunk == piece).count();
        if times >= LOOP_TIMES && times * len >= LOOP_BYTES_MIN {
            let piece = String::from_utf8_lossy(piece).into_owned();
            return Some(Degenerate::Loop { piece, times });
        }
    }
    None
}
