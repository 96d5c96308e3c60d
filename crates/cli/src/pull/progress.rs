//! How far it is: a bar on a terminal, a line now and then elsewhere. On standard error always.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Where nobody looks at a bar, a line this often.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress of one piece of work.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    what: &'static str,
    total: u64,
    /// Set where lines are printed instead of a bar.
    last_line: Option<Cell<Instant>>,
}

impl Progress {
    fn new(what: &'static str, total: u64, bar: ProgressBar) -> Progress {
        let lines = !std::io::stderr().is_terminal();
        if lines {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar, what, total, last_line: lines.then(|| Cell::new(Instant::now())) }
    }

    /// Work that is counted in bytes.
    pub fn bytes(what: &'static str, total: u64) -> Progress {
        let template = "{msg} [{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        // The template is a literal of ours; where it were wrong the default bar would show.
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let bar = ProgressBar::new(total).with_style(style).with_message(what);
        Progress::new(what, total, bar)
    }

    /// Bytes of which nobody knows how many there will be.
    pub fn growing(what: &'static str) -> Progress {
        let style = ProgressStyle::with_template("{spinner} {msg}: {bytes}, {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
        let progress = Progress::new(what, 0, bar);
        if progress.last_line.is_none() {
            progress.bar.enable_steady_tick(Duration::from_millis(120));
        } else {
            crate::out::complain(format_args!("{what} ..."));
        }
        progress
    }

    /// Starts from here: the rest of an earlier transfer.
    pub fn start_at(&self, bytes: u64) {
        self.bar.set_position(bytes);
        self.bar.reset_eta();
    }

    /// This much more is done.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.tell();
    }

    /// So much is done.
    pub fn reach(&self, bytes: u64) {
        self.bar.set_position(bytes);
        self.tell();
    }

    fn tell(&self) {
        if let Some(last) = &self.last_line
            && last.get().elapsed() >= LINE_EVERY
        {
            last.set(Instant::now());
            let done = HumanBytes(self.bar.position());
            let of = match self.total {
                0 => String::new(),
                total => format!(" of {}", HumanBytes(total)),
            };
            crate::out::complain(format_args!("{}: {done}{of}", self.what));
        }
    }

    /// A line above the bar.
    pub fn note(&self, words: &str) {
        self.bar.suspend(|| crate::out::complain(format_args!("{words}")));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
