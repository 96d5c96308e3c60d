//! Numbers that name something, as they are written in paths and as keys.

use core::fmt::Display;
use core::str::FromStr;

/// A number as it is written without a sign or a leading zero, so that each has one name.
pub fn number<N: FromStr + Display>(written: &str) -> Option<N> {
    written.parse().ok().filter(|n: &N| n.to_string() == written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_name() {
        assert_eq!([number("0"), number("12")], [Some(0u32), Some(12)]);
        for other in ["+1", "01", "-0", "", " 1", "1 ", "4294967296", "\u{661}"] {
            assert_eq!(number::<u32>(other), None, "{other}");
        }
    }
}
