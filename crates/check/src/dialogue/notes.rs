//! The notes between records, and how many tokens the recall model's tokenizer makes of each.

use super::rng::Rng;

const NOUNS: [&str; 8] = ["door", "lamp", "valve", "radio", "ladder", "clock", "kettle", "engine"];
const PLACES: [&str; 8] =
    ["hall", "cellar", "garden", "tower", "office", "harbor", "kitchen", "barn"];
const STATES: [&str; 8] = ["open", "broken", "quiet", "new", "empty", "warm", "locked", "ready"];

/// Tokens as hexadecimal digits: a row a noun, in it eight states a place. The protocol fills a
/// session by tokens, so that sessions come out the same only with these counts.
const TOKENS: [&[u8; 64]; 8] = [
    b"9bbbbbaabdddddccacccccbbbdddddccacccccbbbdddddccacccccbb9bbbbbaa",
    b"9bbbbbaabdddddccacccccbbacccccbbacccccbbbdddddccacccccbb9bbbbbaa",
    b"9bbbbbaabdddddccacccccbbacccccbbacccccbbbdddddccacccccbb9bbbbbaa",
    b"bdddddccdfffffeeceeeeeddceeeeeddceeeeedddfffffeeceeeeeddbdddddcc",
    b"9bbbbbaabdddddccacccccbbbdddddccacccccbbbdddddccacccccbb9bbbbbaa",
    b"acccccbbceeeeeddbdddddccacccccbbbdddddccceeeeeddbdddddccacccccbb",
    b"acccccbbceeeeeddbdddddccceeeeeddbdddddccceeeeeddbdddddccacccccbb",
    b"acccccbbceeeeeddbdddddccbdddddccbdddddccceeeeeddbdddddccacccccbb",
];

/// A note with its line's end, and its tokens.
pub fn draw(rng: &mut Rng) -> (String, i64) {
    let (noun, place, state) = (rng.index(8), rng.index(8), rng.index(8));
    let digit = char::from(TOKENS[noun][8 * place + state]);
    let text =
        format!("Note: the {} in the {} is {}.\n", NOUNS[noun], PLACES[place], STATES[state]);
    (text, i64::from(digit.to_digit(16).unwrap_or(0)))
}
