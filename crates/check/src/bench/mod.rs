//! The load generator: prompts of exact lengths, loads that are repeated until their interval is
//! narrow, refusals and errors counted as such, and what the client itself costs.

mod json;
mod meter;
mod page;
mod plot;
mod point;
mod probe;
mod progress;
mod prompt;
mod run;
mod sample;
mod seeded;
mod stats;
mod sweep;
mod table;
mod workload;

pub use json::{FILE_BYTES_MAX, ReadError, csv, line, lines, read};
pub use page::page;
pub use point::{Extra, Goodput, Latencies, Point, Slo, Totals};
pub use probe::{ProbeError, Server};
pub use progress::{Look, Progress};
pub use prompt::Form;
pub use run::{Arrivals, CONCURRENCY_MAX};
pub use stats::{Interval, Ratio, Summary};
pub use sweep::{Compared, Pair, Settings, compare, requests_of, sweep};
pub use table::{compared, notes, overhead, table};
pub use workload::{Dataset, UnknownDataset, Workload};
