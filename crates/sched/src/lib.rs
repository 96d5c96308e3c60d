//! The scheduler: which sequences take part in the next step, and what its outcome means.
//!
//! Pure and single-threaded: it is told the time, does no IO and touches no device. The engine's
//! loop around it is
//!
//! ```text
//! submit / cancel          (any time between the calls below)
//! plan(now)                -> Batch: rows, bucket       | up to `depth` steps may be in flight
//! lease(tables)            -> StepLease, tables filled  |
//! (the engine replays the step's plan with the lease)
//! complete(lease, outcomes, now)                        | oldest step first
//! drain_updates()          -> what to tell the clients
//! ```
//!
//! A request's life: `submit` puts it in the queue, ordered by arrival; `plan` gives it a slot and
//! whatever the prefix index has of its prompt, prefills the rest in chunks and then decodes one
//! token a step; `complete` applies the stopping rules. A running request can be preempted when
//! the pool is full (the youngest first): its pages go to the prefix index, it goes back to its
//! place in the queue, and what has been evicted by the time it resumes is computed again, to the
//! same bits.
//!
//! What is absent: any dependence of a request's tokens on this room's choices (contract 1 is what
//! allows it to choose freely), and any way for a request to end twice or never (contract 5).
#![forbid(unsafe_code)]

mod admit;
mod ahead;
mod batch;
mod complete;
mod condemn;
mod config;
mod counters;
mod entry;
mod error;
mod ladder;
mod plan;
mod postpone;
mod run;
mod scheduler;
mod swap;

pub use admit::Limits;
pub use batch::{Batch, SeqRow, TokenSource};
pub use complete::{Outcome, Update};
pub use config::SchedConfig;
pub use counters::{Refused, SchedCounters};
pub use error::SchedError;
pub use ladder::{Ladder, standard_buckets};
pub use lockstep_pool::{Logits, RowPlan};
pub use run::Run;
pub use scheduler::Scheduler;
