//! Sessions with known answers, from a seed.

mod code;
mod notes;
mod recall;
mod rng;
mod session;

pub use code::{candidates, distance};
pub use recall::{PREFIX_TOKENS, Recall, Request, SYSTEM, Shape, Turn, session};
pub use rng::Rng;
pub use session::{Kind, Session, Sizes, Step, Want, make, tools};
