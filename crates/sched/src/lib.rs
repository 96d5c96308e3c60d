//! Admission, chunked prefill, batch and bucket choice, preemption: a pure step function.
