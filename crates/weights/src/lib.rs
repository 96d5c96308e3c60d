//! GGUF and safetensors readers, config to ModelSpec, digests.
