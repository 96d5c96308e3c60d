//! The behaviour of the text room, against goldens and against what lies.
#![forbid(unsafe_code)]

mod agreement;
mod common;
mod deepseek_v4;
mod folders;
mod grammar;
mod hostile;
mod outputs;
mod pretokenizers;
mod sentencepiece;
