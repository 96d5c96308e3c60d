//! Tokenizers, chat encodings, incremental detokenizing, tool-call parsers, grammar masks.
