//! How many tests ran, read from the closing lines of the runners.

/// Tests that passed, failed, and were there but not run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Counts {
    /// All that ran.
    pub fn ran(self) -> u64 {
        self.passed + self.failed
    }

    /// The sum of two.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// The number in front of `word` in `text`: "3 passed" is 3.
fn before(text: &str, word: &str) -> u64 {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    words
        .windows(2)
        .find(|pair| pair[1] == word)
        .and_then(|pair| pair[0].parse().ok())
        .unwrap_or_default()
}

/// Reads the closing lines of nextest (`Summary [..] 9 tests run: 8 passed, 1 failed, 2 skipped`)
/// or else of cargo test (`test result: ok. 8 passed; 0 failed; 1 ignored; ..`), and sums them.
/// Colour codes are taken out first. Where nextest has summed up, cargo's lines are not counted:
/// there they are the captured output of a test that failed, which its summary holds already.
pub fn of_rust(lines: &[String]) -> Counts {
    let mut nextest = None::<Counts>;
    let mut cargo = Counts::default();
    for line in lines {
        let line = plain(line);
        let line = line.trim_start();
        if line.starts_with("Summary [") && line.contains("run:") {
            nextest = Some(nextest.unwrap_or_default().plus(Counts {
                passed: before(line, "passed"),
                failed: before(line, "failed") + before(line, "timed"),
                skipped: before(line, "skipped"),
            }));
        } else if line.starts_with("test result:") {
            cargo = cargo.plus(Counts {
                passed: before(line, "passed"),
                failed: before(line, "failed"),
                skipped: before(line, "ignored"),
            });
        }
    }
    nextest.unwrap_or(cargo)
}

/// Reads Python's unittest: `Ran 7 tests in 3.2s`, then `OK (skipped=1)` or
/// `FAILED (failures=1, errors=2)`.
pub fn of_unittest(lines: &[String]) -> Counts {
    let equals = |line: &str, key: &str| -> u64 {
        line.split(|c: char| !(c.is_alphanumeric() || c == '='))
            .find_map(|w| w.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
            .unwrap_or_default()
    };
    let mut total = Counts::default();
    let mut ran = 0;
    for line in lines {
        if let Some(rest) = line.strip_prefix("Ran ") {
            ran = rest.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default();
        } else if line == "OK" || line.starts_with("OK (") || line.starts_with("FAILED (") {
            let failed = equals(line, "failures") + equals(line, "errors");
            let skipped = equals(line, "skipped");
            let passed = (ran as u64).saturating_sub(failed + skipped);
            total = total.plus(Counts { passed, failed, skipped });
            ran = 0;
        }
    }
    total
}

fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn nextest_and_cargo_closing_lines_are_read() {
        let nextest =
            lines("  PASS x\n     Summary [   1.2s] 9 tests run: 8 passed, 1 failed, 2 skipped");
        assert_eq!(of_rust(&nextest), Counts { passed: 8, failed: 1, skipped: 2 });
        let coloured = lines(
            "\u{1b}[32m Summary\u{1b}[0m [ 0.1s] \u{1b}[1m3\u{1b}[0m tests run: \u{1b}[1m3\u{1b}[0m passed, 0 skipped",
        );
        assert_eq!(of_rust(&coloured), Counts { passed: 3, failed: 0, skipped: 0 });
        let cargo = lines(
            "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
             test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(of_rust(&cargo), Counts { passed: 6, failed: 3, skipped: 1 });
    }

    #[test]
    fn a_failed_test_is_counted_once_though_its_captured_output_says_so_again() {
        let text = lines(
            "  FAIL [ 0.1s] room one\n  stdout ---\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out\n  \
             Summary [ 1.2s] 4 tests run: 3 passed, 1 failed, 0 skipped",
        );
        assert_eq!(of_rust(&text), Counts { passed: 3, failed: 1, skipped: 0 });
    }

    #[test]
    fn unittest_closing_lines_are_read() {
        let text = lines("Ran 7 tests in 3.2s\n\nFAILED (failures=1, errors=2, skipped=1)");
        assert_eq!(of_unittest(&text), Counts { passed: 3, failed: 3, skipped: 1 });
        assert_eq!(
            of_unittest(&lines("Ran 2 tests in 0.1s\n\nOK")),
            Counts { passed: 2, failed: 0, skipped: 0 }
        );
        assert_eq!(of_unittest(&lines("Traceback")), Counts::default());
    }
}
