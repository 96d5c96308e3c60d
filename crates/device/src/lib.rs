//! The device port, its capture state machine, and the CPU device with its kernels.

pub mod cpu;
