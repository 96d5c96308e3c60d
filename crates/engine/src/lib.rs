//! Generations, input writing, the step loop, sampling, the audit.
