//! Two answers to the same request.

use super::verdict::Corruption;

/// Bytes of the longest piece that a doubled or lost chunk has.
const PIECE_BYTES_MAX: usize = 32;

/// Where `found` leaves `alone`, with the word there.
pub fn first_difference(alone: &str, found: &str) -> Option<Corruption> {
    if alone == found {
        return None;
    }
    let same = alone.bytes().zip(found.bytes()).take_while(|(a, b)| a == b).count();
    // Back to the start of the word, so that both words are whole.
    let at_byte = word_start(alone, found, same);
    Some(Corruption::Divergent {
        at_byte,
        alone: word(&alone[at_byte..]),
        found: word(&found[at_byte..]),
        token: None,
    })
}

/// The byte after the last white space that both have before byte `same`.
fn word_start(alone: &str, found: &str, same: usize) -> usize {
    let mut at = same;
    while at > 0 && !(alone.is_char_boundary(at) && found.is_char_boundary(at)) {
        at -= 1;
    }
    alone[..at]
        .rfind(char::is_whitespace)
        .map_or(0, |space| space + alone[space..].chars().next().map_or(1, char::len_utf8))
}

fn word(text: &str) -> String {
    // A call begins on a line of its own.
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    text[..end].chars().take(80).collect()
}

/// A piece that came twice, or one that was lost: from the middle of a word, or anywhere if the
/// answer is wrong for it. A model words its answer otherwise now and then, but it does not say the
/// same with a piece doubled or missing.
pub fn stutter(alone: &str, found: &str, is_wrong: bool) -> Option<Corruption> {
    let (a, f) = (alone.as_bytes(), found.as_bytes());
    let head = a.iter().zip(f).take_while(|(x, y)| x == y).count();
    let tail_max = a.len().min(f.len()) - head;
    let tail =
        a.iter().rev().zip(f.iter().rev()).take(tail_max).take_while(|(x, y)| x == y).count();
    let altered = || Some(altered(alone, found, head));
    if head + tail == a.len() && f.len() > a.len() {
        let piece = &f[head..f.len() - tail];
        let doubled = f[..head].ends_with(piece) || f[f.len() - tail..].starts_with(piece);
        return if doubled && piece.len() <= PIECE_BYTES_MAX { altered() } else { None };
    }
    if head + tail == f.len() && a.len() > f.len() && !f.is_empty() {
        let piece = &a[head..a.len() - tail];
        let is_word = |at: usize| a.get(at).is_some_and(u8::is_ascii_alphanumeric);
        let in_word = head > 0
            && is_word(head - 1)
            && is_word(head)
            && is_word(a.len() - tail - 1)
            && is_word(a.len() - tail);
        let lost = in_word || is_wrong;
        return if lost && piece.len() <= PIECE_BYTES_MAX { altered() } else { None };
    }
    None
}

/// Bytes of a piece that is another one.
const OTHER_BYTES_MAX: usize = 2;

/// The same text with a symbol or two changed, a piece doubled, or one lost from the middle of a
/// word. What a model says that was wrong already is compared by this alone.
pub fn slip(alone: &str, found: &str) -> Option<Corruption> {
    let (a, f) = (alone.as_bytes(), found.as_bytes());
    if a.len() != f.len() {
        return stutter(alone, found, false);
    }
    let head = a.iter().zip(f).take_while(|(x, y)| x == y).count();
    let tail = a.iter().rev().zip(f.iter().rev()).take_while(|(x, y)| x == y).count();
    let other = head..a.len().saturating_sub(tail);
    let is_symbols = |text: &[u8]| text[other.clone()].iter().all(u8::is_ascii_alphanumeric);
    let is_slip =
        !other.is_empty() && other.len() <= OTHER_BYTES_MAX && is_symbols(a) && is_symbols(f);
    is_slip.then(|| altered(alone, found, head))
}

/// The two texts around `at`.
fn altered(alone: &str, found: &str, at: usize) -> Corruption {
    let cut = |text: &str| String::from_utf8_lossy(window(text, at)).into_owned();
    Corruption::Altered { expected: cut(alone), found: cut(found) }
}

/// Some bytes around `at`.
fn window(text: &str, at: usize) -> &[u8] {
    let bytes = text.as_bytes();
    &bytes[at.saturating_sub(16).min(bytes.len())..(at + 24).min(bytes.len())]
}
