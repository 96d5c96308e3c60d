//! HTTP: the OpenAI API, operator endpoints, admin, metrics.
