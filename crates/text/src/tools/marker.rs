//! Text that is held back because it may be the start of a marker.

/// Length in bytes of the longest proper prefix of `marker` that `text` ends with.
pub(crate) fn partial(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&n| marker.is_char_boundary(n) && text.ends_with(&marker[..n]))
        .unwrap_or(0)
}

/// How many bytes of `text` are settled where any of `markers`, with the white space in front of
/// it, may still be coming.
pub(crate) fn settled(text: &str, markers: &[&str]) -> usize {
    let hold = markers.iter().map(|m| partial(text, m)).max().unwrap_or(0);
    text[..text.len() - hold].trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_and_a_partial_marker_are_held() {
        assert_eq!(partial("ab<to", "<tool>"), 3);
        assert_eq!(partial("<tool>", "<tool>"), 0);
        assert_eq!(settled("hello \n<to", &["<tool>"]), 5);
        assert_eq!(settled("hello ", &["<tool>"]), 5);
        assert_eq!(settled("a <x", &["<tool>"]), 4);
    }
}
