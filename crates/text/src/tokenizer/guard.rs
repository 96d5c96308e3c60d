//! Keeps text that merely spells a control token from becoming one.
//!
//! A message may contain `<|im_end|>`. Inside a rendered chat template it cannot be told apart
//! from the template's own. So before the template sees a message, a *mark* (a noncharacter that
//! occurs nowhere in the input) is put after the first character of every spelling of a control
//! token, and of a piece of one at the very end of a string, which the next string might complete.
//! The split at control tokens, which comes first in encoding, then finds only the template's own;
//! after it the marks are taken out again, before the pre-tokenizer sees the text. Text without
//! such spellings gets no mark and takes the ordinary way.

use super::pieces::Piece;
use super::vocab::Kind;

/// The spellings of the control tokens, as a tree over bytes. One-character spellings are left
/// out: nothing can be put inside them.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    nodes: Vec<Node>,
}

#[derive(Clone, Default, Debug)]
struct Node {
    /// Sorted by byte.
    next: Vec<(u8, u32)>,
    end: bool,
}

impl Guard {
    pub(crate) fn new<'a>(spellings: impl Iterator<Item = &'a str>) -> Guard {
        let mut nodes = vec![Node::default()];
        for spelling in spellings.filter(|s| s.chars().count() > 1) {
            let mut at = 0;
            for &byte in spelling.as_bytes() {
                at = match nodes[at].next.binary_search_by_key(&byte, |n| n.0) {
                    Ok(i) => nodes[at].next[i].1 as usize,
                    Err(i) => {
                        let new = nodes.len();
                        nodes[at].next.insert(i, (byte, new as u32));
                        nodes.push(Node::default());
                        new
                    }
                };
            }
            nodes[at].end = true;
        }
        Guard { nodes }
    }

    /// True where a control token, or at the end of `text` a piece of one, starts at byte 0.
    fn starts(&self, text: &[u8]) -> bool {
        let mut at = 0;
        for byte in text {
            match self.nodes[at].next.binary_search_by_key(byte, |n| n.0) {
                Ok(i) => at = self.nodes[at].next[i].1 as usize,
                Err(_) => return false,
            }
            if self.nodes[at].end {
                return true;
            }
        }
        at != 0
    }

    /// `text` with the marks in it, or `None` where it needs none.
    pub(crate) fn mark(&self, text: &str, mark: char) -> Option<String> {
        let mut out = String::new();
        let mut copied = 0;
        for (at, c) in text.char_indices() {
            if self.starts(&text.as_bytes()[at..]) {
                let after = at + c.len_utf8();
                out.push_str(&text[copied..after]);
                out.push(mark);
                copied = after;
            }
        }
        if copied == 0 {
            return None;
        }
        out.push_str(&text[copied..]);
        Some(out)
    }
}

/// The noncharacters of Unicode, which no text has a use for, and then the last private-use
/// plane: the first that `used` does not contain. `None` where all are in use, which only text
/// made for it does.
pub(crate) fn unused_mark(used: &str) -> Option<char> {
    let arabic = 0xfdd0..=0xfdef_u32;
    let ends = (1..=16u32).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    let private = 0x10_f000..=0x10_fffd_u32;
    let mut seen = std::collections::HashSet::new();
    seen.extend(used.chars().filter(|&c| c as u32 >= 0xfdd0));
    arabic.chain(ends).chain(private).filter_map(char::from_u32).find(|c| !seen.contains(c))
}

/// True for spellings that mark turns and roles, whether or not the vocabulary's author flagged
/// them: DeepSeek's `<｜User｜>` is not flagged as special in its `tokenizer.json`.
pub(crate) fn looks_like_control(spelling: &str) -> bool {
    let pairs = [("<|", "|>"), ("<\u{ff5c}", "\u{ff5c}>")];
    pairs.iter().any(|(start, end)| {
        spelling.len() > start.len() + end.len()
            && spelling.starts_with(start)
            && spelling.ends_with(end)
    })
}

/// True for tokens that a message's text must never become.
pub(crate) fn is_guarded(piece: &Piece, spelling: &str) -> bool {
    match piece.kind {
        Kind::Control | Kind::Unknown => true,
        Kind::UserDefined => looks_like_control(spelling),
        Kind::Normal | Kind::Unused | Kind::Byte => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_go_inside_spellings_and_trailing_pieces() {
        let g = Guard::new(["<|im_end|>", "<s>", "x"].into_iter());
        assert_eq!(g.mark("plain x < y", '#'), None);
        assert_eq!(g.mark("a<|im_end|>b", '#').unwrap(), "a<#|im_end|>b");
        assert_eq!(g.mark("<<s><", '#').unwrap(), "<<#s><#");
        assert_eq!(g.mark("say <|im_", '#').unwrap(), "say <#|im_");
        assert_eq!(g.mark("", '#'), None);
        assert_eq!(g.mark("<|im_end", '#').unwrap(), "<#|im_end");
    }

    #[test]
    fn a_mark_occurs_nowhere() {
        assert_eq!(unused_mark("abc"), Some('\u{fdd0}'));
        let all: String = (0xfdd0..=0xfdef).filter_map(char::from_u32).collect();
        assert_eq!(unused_mark(&all), char::from_u32(0x1fffe));
    }
}
