//! Stop strings, found across token boundaries.

use crate::TextError;
use crate::error::StopProblem;
use lockstep_flow::limits;

/// Finds the first stop string in a text that comes in pieces.
///
/// The text ends at the first byte at which any stop string is complete; of several that complete
/// there the longest counts. So the result does not depend on how the text was cut. What may be
/// the start of a stop string is held back, and nothing else is.
#[derive(Clone, Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<Automaton>,
    /// The text that is held back: the longest suffix that starts some stop string.
    held: String,
    hit: Option<usize>,
    include: bool,
}

/// Knuth-Morris-Pratt over the bytes of one stop string.
#[derive(Clone, Debug)]
struct Automaton {
    text: Box<str>,
    /// `fail[i]`: length of the longest proper prefix that ends `text[..=i]`.
    fail: Box<[u16]>,
    /// How many bytes of `text` the input ends with.
    matched: usize,
}

const _: () = assert!(limits::STOP_STRING_BYTES_MAX <= u16::MAX as usize);

impl Automaton {
    fn new(text: String) -> Automaton {
        let bytes = text.as_bytes();
        let mut fail = vec![0u16; bytes.len()];
        let mut k = 0usize;
        for i in 1..bytes.len() {
            while k > 0 && bytes[i] != bytes[k] {
                k = fail[k - 1] as usize;
            }
            k += usize::from(bytes[i] == bytes[k]);
            fail[i] = k as u16;
        }
        Automaton { fail: fail.into(), text: text.into(), matched: 0 }
    }

    /// Takes a byte; true where the stop string is complete.
    fn step(&mut self, byte: u8) -> bool {
        let text = self.text.as_bytes();
        while self.matched > 0 && text[self.matched] != byte {
            self.matched = self.fail[self.matched - 1] as usize;
        }
        self.matched += usize::from(text[self.matched] == byte);
        self.matched == text.len()
    }

    /// Goes on as if the complete stop string had not counted.
    fn overlook(&mut self) {
        self.matched = self.fail[self.matched - 1] as usize;
    }
}

impl StopMatcher {
    /// `include` keeps the stop string in the text.
    pub(crate) fn new(stops: Vec<String>, include: bool) -> Result<StopMatcher, TextError> {
        let problem = if stops.len() > limits::STOP_STRINGS_MAX {
            Some(StopProblem::TooMany)
        } else if stops.iter().any(String::is_empty) {
            Some(StopProblem::Empty)
        } else if stops.iter().any(|s| s.len() > limits::STOP_STRING_BYTES_MAX) {
            Some(StopProblem::TooLong)
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(TextError::Stop { problem });
        }
        let stops = stops.into_iter().map(Automaton::new).collect();
        Ok(StopMatcher { stops, held: String::new(), hit: None, include })
    }

    /// Which stop string ended the text.
    pub(crate) fn hit(&self) -> Option<usize> {
        self.hit
    }

    /// Appends to `out` what of the text so far can no longer belong to a stop string.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) {
        if self.hit.is_some() {
            return;
        }
        for (at, byte) in text.bytes().enumerate() {
            let mut done: Option<usize> = None;
            for (i, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) {
                    let longer = done.is_none_or(|d| stop.text.len() > d);
                    if longer {
                        done = Some(stop.text.len());
                        self.hit = Some(i);
                    }
                }
            }
            if let Some(stop_bytes) = done {
                self.held.push_str(&text[..=at]);
                let kept = self.held.len() - if self.include { 0 } else { stop_bytes };
                out.push_str(&self.held[..kept]);
                self.held.clear();
                return;
            }
        }
        self.settle(text, out);
    }

    /// As [`StopMatcher::push`] of text in which no stop string counts; one that begins here and
    /// is complete later does.
    pub(crate) fn pass(&mut self, text: &str, out: &mut String) {
        for byte in text.bytes() {
            for stop in &mut self.stops {
                if stop.step(byte) {
                    stop.overlook();
                }
            }
        }
        self.settle(text, out);
    }

    fn settle(&mut self, text: &str, out: &mut String) {
        self.held.push_str(text);
        let hold = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let settled = self.held.len() - hold;
        out.push_str(&self.held[..settled]);
        self.held.drain(..settled);
    }

    /// Appends what was held back: the text ended and no stop string did.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops = stops.iter().map(|s| s.to_string()).collect();
        let mut m = StopMatcher::new(stops, false).unwrap();
        let mut out = String::new();
        for p in pieces {
            m.push(p, &mut out);
        }
        m.finish(&mut out);
        (out, m.hit())
    }

    #[test]
    fn a_stop_string_across_pieces() {
        assert_eq!(run(&["END"], &["ab E", "N", "D cd"]), ("ab ".into(), Some(0)));
        assert_eq!(run(&["END"], &["ab E", "N", "E"]), ("ab ENE".into(), None));
        assert_eq!(run(&["aab"], &["aa", "ab"]), ("a".into(), Some(0)));
        assert_eq!(run(&["b", "ab"], &["xab"]), ("x".into(), Some(1)));
        assert_eq!(run(&["é"], &["è", "é"]), ("è".into(), Some(0)));
        assert_eq!(run(&[], &["any", "thing"]), ("anything".into(), None));
    }

    #[test]
    fn a_stop_string_that_does_not_count_yet_is_text() {
        let mut m = StopMatcher::new(vec!["aba".into()], false).unwrap();
        let mut out = String::new();
        m.pass("xaba", &mut out);
        // Its end is the beginning of the next one.
        assert_eq!((out.as_str(), m.hit()), ("xab", None));
        m.push("ba", &mut out);
        assert_eq!((out.as_str(), m.hit()), ("xab", Some(0)));
    }

    #[test]
    fn bad_stop_strings_are_refused() {
        let new = |stops| StopMatcher::new(stops, false).map(|_| ());
        let err = |problem| Err(TextError::Stop { problem });
        assert_eq!(new(vec![String::new()]), err(StopProblem::Empty));
        assert_eq!(new(vec!["x".repeat(1025)]), err(StopProblem::TooLong));
        assert_eq!(new(vec!["x".into(); 17]), err(StopProblem::TooMany));
    }

    /// The definition, by brute force: the shortest prefix that ends with a stop string.
    fn definition(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&i| text.is_char_boundary(i)) {
            let hits = stops.iter().enumerate().filter(|(_, s)| text[..end].ends_with(s.as_str()));
            let best = hits.max_by_key(|(i, s)| (s.len(), usize::MAX - i));
            if let Some((i, s)) = best {
                return (text[..end - s.len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_definition(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abcéè]{0,5}", 0..12),
            include in any::<bool>(),
        ) {
            let text = pieces.concat();
            let (mut want, hit) = definition(&stops, &text);
            if let (Some(i), true) = (hit, include) {
                want.push_str(&stops[i]);
            }
            let mut m = StopMatcher::new(stops.clone(), include).unwrap();
            let mut out = String::new();
            for p in &pieces {
                m.push(p, &mut out);
                // Nothing is held that cannot start a stop string.
                prop_assert!(m.held.is_empty() || stops.iter().any(|s| s.starts_with(m.held.as_str())));
            }
            m.finish(&mut out);
            prop_assert_eq!((out, m.hit()), (want, hit));
        }
    }
}
