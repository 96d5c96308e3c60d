//! Codes: short random identifiers that a model can only know by having read them.

/// The 16 symbols of a code; none is easily taken for another.
pub const ALPHABET: &[u8; 16] = b"346789CDGHKQWXYZ";

/// The first `2 * pairs` symbols that the bits of `z` spell, from the highest on.
pub fn spell(z: u64, pairs: u32) -> String {
    (0..2 * pairs).map(|i| char::from(ALPHABET[(z >> (60 - 4 * i)) as usize & 15])).collect()
}

/// The bits of `z` that [`spell`] reads.
pub fn mask(z: u64, pairs: u32) -> u64 {
    z >> (64 - 8 * pairs)
}

/// The pieces of `text` that are, or once were, codes: runs of capitals and digits, at least four
/// long and at least half of them symbols of codes. A damaged code is still found.
pub fn candidates(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|run| is_candidate(run)).collect()
}

fn is_candidate(run: &str) -> bool {
    let symbols = run.bytes().filter(|b| ALPHABET.contains(b)).count();
    (3..=64).contains(&run.len())
        && 2 * symbols >= run.len()
        && !run.bytes().any(|b| b.is_ascii_lowercase())
}

/// Insertions, deletions and substitutions between `a` and `b`. For codes: both are short.
pub fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelled_from_the_top() {
        assert_eq!(spell(0x0123_4567_89AB_CDEF, 8), "346789CDGHKQWXYZ");
        assert_eq!(spell(0x0123_4567_89AB_CDEF, 2), "3467");
        assert_eq!(mask(0xAB00_0000_0000_0001, 1), 0xAB);
    }

    #[test]
    fn damaged_codes_are_candidates_and_words_are_not() {
        assert_eq!(candidates("The 48GH is XLW6DHYD, receipt 3."), ["48GH", "XLW6DHYD"]);
        assert_eq!(candidates("Noted. I AM OK, HELLO"), Vec::<&str>::new());
    }

    #[test]
    fn distances_are_levenshtein_s() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("48GH", "48GH"), 0);
        assert_eq!(distance("48GH", "48H"), 1);
    }
}
