//! Architectures as plan builders.
