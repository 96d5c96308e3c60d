//! Standard output and error, which a reader may close early (`lockstep plan show | head`).

use rustix::termios::tcgetwinsize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

/// Whether nobody reads standard output any more: what prints until it is told to stop ends then.
pub fn reader_is_gone() -> bool {
    READER_IS_GONE.load(Relaxed)
}

/// Prints `text` and a line's end. A reader that has gone away has what it wanted: what is still to
/// be done is done, and the process ends with the code that tells how.
pub fn line(text: impl std::fmt::Display) {
    if let Err(e) = try_line(text) {
        complain(format_args!("lockstep: standard output cannot be written: {e}"));
        std::process::exit(1);
    }
}

/// Prints as [`line`] does, for a command that goes on where that fails: 1 is a verdict of its own
/// for `check`.
pub fn try_line(text: impl std::fmt::Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {
            READER_IS_GONE.store(true, Relaxed);
            Ok(())
        }
        result => result,
    }
}

/// Prints `text` and a line's end to standard error. Where nobody reads that any more there is
/// nobody to tell, and the exit code still says how it ended.
pub fn complain(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{}", harmless(&text.to_string()));
}

/// What files and servers say is shown in errors and pages, and must not move the terminal's cursor, clear it
/// or name its window.
pub fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{fffd}")
}

/// Prints a page for people as [`line`] does, no wider than the terminal: what goes on in the next
/// line stands under column `hang`. Whatever is no terminal gets the lines whole.
pub fn page(text: &str, hang: usize) {
    line(fitted(&harmless(text), |_| Some(hang)));
}

/// Columns of the terminal that standard output is; `None` where it is none.
pub fn columns() -> Option<usize> {
    let out = std::io::stdout();
    let size = out.is_terminal().then(|| tcgetwinsize(&out).ok()).flatten();
    // A terminal that does not know its size says 0.
    size.map(|s| usize::from(s.ws_col)).filter(|columns| *columns > 0)
}

/// A text that is no wider than the terminal, where standard output is one. `hang` says of each line
/// under which column it goes on; a line of which it says nothing stays whole.
pub fn fitted(text: &str, hang: impl Fn(&str) -> Option<usize>) -> String {
    match columns() {
        Some(columns) => within(text, columns, hang),
        None => text.into(),
    }
}

fn within(text: &str, columns: usize, hang: impl Fn(&str) -> Option<usize>) -> String {
    let fit = |line: &str| match hang(line).filter(|hang| columns > 2 * hang) {
        Some(hang) => wrap(line, columns, hang),
        None => line.to_owned(),
    };
    text.lines().map(fit).collect::<Vec<String>>().join("\n")
}

/// Prose may be broken; lines with columns of their own are worse to read broken than wide.
pub fn is_prose(line: &str) -> bool {
    !line.trim().contains("  ")
}

/// Breaks lines of more than `columns` characters at spaces; a longer word stays whole.
pub fn wrap(text: &str, columns: usize, hang: usize) -> String {
    let lines = text.lines().flat_map(|line| broken(line, columns, hang));
    lines.collect::<Vec<String>>().join("\n")
}

fn broken(line: &str, columns: usize, hang: usize) -> Vec<String> {
    let indent = " ".repeat(hang);
    let (mut whole, mut rest) = (Vec::new(), line.to_owned());
    // The first character that does not fit; it may be the space.
    while let Some((end, over)) = rest.char_indices().nth(columns) {
        let from = rest.len() - rest.trim_start().len();
        let space = |part: &str| part.rfind(' ').filter(|at| *at > from.max(hang));
        let after = || rest[end..].find(' ').map(|at| end + at);
        let Some(at) = space(&rest[..end + over.len_utf8()]).or_else(after) else { break };
        let tail = format!("{indent}{}", rest[at..].trim_start());
        whole.push(rest[..at].trim_end().to_owned());
        rest = tail;
    }
    whole.push(rest);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `status` and `doctor` once wrote lines of 130 characters whatever the terminal's width.
    #[test]
    fn a_page_is_no_wider_than_the_terminal() {
        let text = "audit     one step in 1,000; checks: twin 1,200, pages 1,200\n  short\n\nend";
        let said = wrap(text, 30, 10);
        assert_eq!(
            said,
            "audit     one step in 1,000;\n          checks: twin 1,200,\n          pages \
             1,200\n  short\n\nend"
        );
        assert_eq!(wrap(text, 60, 10), text, "60 characters fit in 60 columns");
        for columns in 25..70 {
            assert!(wrap(text, columns, 10).lines().all(|l| l.chars().count() <= columns));
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&wrap(text, columns, 10)), words(text));
        }
    }

    /// What was found: below 80 columns the footnotes of a table were cut anywhere by the terminal.
    #[test]
    fn footnotes_are_broken_and_tables_are_not() {
        let text = "load  tok/s  steady  one request\n   4   32.0       -            -\n\n\
                    steady: the same while the load was as asked";
        let said = within(text, 24, |line| is_prose(line).then_some(2));
        let (table, notes) = said.split_once("\n\n").unwrap();
        assert_eq!(table, text.split_once("\n\n").unwrap().0);
        assert_eq!(notes, "steady: the same while\n  the load was as asked");
    }

    #[test]
    fn a_word_that_is_longer_stays_whole() {
        assert_eq!(
            wrap("  at http://a.b.c.d.e.f/g now", 12, 4),
            "  at http://a.b.c.d.e.f/g\n    now"
        );
        assert_eq!(
            wrap("\u{e9}\u{e9}\u{e9} \u{e9}\u{e9}", 4, 1),
            "\u{e9}\u{e9}\u{e9}\n \u{e9}\u{e9}"
        );
    }
}
