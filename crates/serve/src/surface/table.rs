//! The fields, as data.

use super::Endpoint::{Chat, Text};
use super::Off::{Flag, Number, Word};
use super::Rule::{NoEffect, Refused, Understood};
use super::{Endpoint, Off, Row, Rule};

const fn row(field: &'static str, on: Option<Endpoint>, rule: Rule) -> Row {
    Row { field, on, rule }
}

/// Refused on both endpoints.
const fn no(field: &'static str, unless: &'static [Off], instead: &'static str) -> Row {
    row(field, None, Refused { unless, instead })
}

/// Refused on one endpoint.
const fn not_on(
    on: Endpoint,
    field: &'static str,
    unless: &'static [Off],
    instead: &'static str,
) -> Row {
    row(field, Some(on), Refused { unless, instead })
}

const ONE: &[Off] = &[Number(1.0)];
const ZERO: &[Off] = &[Number(0.0)];
const FALSE: &[Off] = &[Flag(false)];
const TRUE: &[Off] = &[Flag(true)];
const NONE: &[Off] = &[];

const LARK: &str = "send guided_grammar with a Lark grammar, guided_regex or response_format";
const TO_CHAT: &str = "send it to /v1/chat/completions";
const TO_TEXT: &str = "send it to /v1/completions";
const TEXT_ONLY: &str = "the model reads and writes text";
const TRUNCATION: &str = "send temperature, top_p, top_k and min_p";
const BEAMS: &str = "send n, or best_of on /v1/completions";
const SCORES: &str = "send echo with logprobs to /v1/completions";
const NO_ROLES: &str = "this server does prefill and decode itself";
const NO_LORA: &str = "serve the merged weights with --model";
const THINKING: &str = "send chat_template_kwargs, as in {\"enable_thinking\": false}";
const BIAS: &str = "send logit_bias";

/// Every field.
pub const SURFACE: &[Row] = &[
    // OpenAI.
    row("model", None, Understood),
    row("messages", Some(Chat), Understood),
    not_on(Text, "messages", NONE, TO_CHAT),
    row("prompt", Some(Text), Understood),
    not_on(Chat, "prompt", NONE, TO_TEXT),
    row("stream", None, Understood),
    row("stream_options", None, Understood),
    row("max_tokens", None, Understood),
    row("max_completion_tokens", None, Understood),
    row("n", None, Understood),
    row("best_of", Some(Text), Understood),
    not_on(Chat, "best_of", ONE, TO_TEXT),
    row("echo", Some(Text), Understood),
    not_on(Chat, "echo", FALSE, TO_TEXT),
    not_on(Text, "suffix", NONE, "no served model fills in the middle: put the text into prompt"),
    not_on(Chat, "suffix", NONE, "no served model fills in the middle"),
    row("temperature", None, Understood),
    row("top_p", None, Understood),
    row("seed", None, Understood),
    row("stop", None, Understood),
    row("presence_penalty", None, Understood),
    row("frequency_penalty", None, Understood),
    row("logit_bias", None, Understood),
    row("logprobs", None, Understood),
    row("top_logprobs", Some(Chat), Understood),
    not_on(Text, "top_logprobs", NONE, "send logprobs with the number of alternatives"),
    row("response_format", None, Understood),
    row("tools", Some(Chat), Understood),
    not_on(Text, "tools", NONE, TO_CHAT),
    row("tool_choice", Some(Chat), Understood),
    not_on(Text, "tool_choice", &[Word("none"), Word("auto")], TO_CHAT),
    row("parallel_tool_calls", Some(Chat), Understood),
    row("parallel_tool_calls", Some(Text), NoEffect),
    row("reasoning_effort", Some(Chat), Understood),
    not_on(Text, "reasoning_effort", &[Word("none")], TO_CHAT),
    no("functions", NONE, "the API's old form: send tools"),
    no("function_call", &[Word("none"), Word("auto")], "the API's old form: send tool_choice"),
    no("modalities", &[Word("text")], TEXT_ONLY),
    no("audio", NONE, TEXT_ONLY),
    no("prediction", NONE, "leave it out: the answer is the same without it"),
    no("verbosity", &[Word("medium")], "ask for it in a message"),
    no("web_search_options", NONE, "give the model a tool"),
    no("reasoning", NONE, "send reasoning_effort"),
    row("user", None, NoEffect),
    row("metadata", None, NoEffect),
    row("store", None, NoEffect),
    row("service_tier", None, NoEffect),
    row("safety_identifier", None, NoEffect),
    row("prompt_cache_key", None, NoEffect),
    row("prompt_cache_retention", None, NoEffect),
    // Sampling and stopping beyond OpenAI's.
    row("top_k", None, Understood),
    row("min_p", None, Understood),
    row("repetition_penalty", None, Understood),
    row("min_tokens", None, Understood),
    row("ignore_eos", None, Understood),
    row("stop_token_ids", None, Understood),
    row("include_stop_str_in_output", None, Understood),
    row("no_stop_trim", None, Understood),
    row("skip_special_tokens", None, Understood),
    row("spaces_between_special_tokens", None, NoEffect),
    no("stop_regex", NONE, "send stop with plain strings"),
    no("stop_sequences", NONE, "send stop"),
    no("bad_words", NONE, BIAS),
    no("allowed_token_ids", NONE, "send guided_choice or guided_regex"),
    no("logits_processors", NONE, BIAS),
    no("custom_logit_processor", NONE, BIAS),
    no("custom_params", NONE, "no processor takes them"),
    no("no_repeat_ngram_size", ZERO, "send repetition_penalty or frequency_penalty"),
    no("repetition_detection", NONE, "send max_tokens or frequency_penalty"),
    no("encoder_repetition_penalty", ONE, "send repetition_penalty"),
    no("use_beam_search", FALSE, BEAMS),
    no("num_beams", ONE, BEAMS),
    row("length_penalty", None, NoEffect),
    row("early_stopping", None, NoEffect),
    no("do_sample", TRUE, "send temperature: 0 for greedy decoding"),
    no("typical_p", ONE, TRUNCATION),
    no("top_a", ZERO, TRUNCATION),
    no("tfs_z", ONE, TRUNCATION),
    no("top_n_sigma", &[Number(-1.0), Number(0.0)], TRUNCATION),
    no("epsilon_cutoff", ZERO, TRUNCATION),
    no("eta_cutoff", ZERO, TRUNCATION),
    no("mirostat", ZERO, TRUNCATION),
    no("mirostat_mode", ZERO, TRUNCATION),
    row("mirostat_tau", None, NoEffect),
    row("mirostat_eta", None, NoEffect),
    no("dynatemp_range", ZERO, TRUNCATION),
    row("dynatemp_exponent", None, NoEffect),
    no("xtc_probability", ZERO, TRUNCATION),
    row("xtc_threshold", None, NoEffect),
    no("dry_multiplier", ZERO, "send repetition_penalty or frequency_penalty"),
    row("dry_base", None, NoEffect),
    row("dry_allowed_length", None, NoEffect),
    row("dry_penalty_last_n", None, NoEffect),
    row("dry_sequence_breakers", None, NoEffect),
    no("samplers", NONE, TRUNCATION),
    no("repeat_penalty", ONE, "send repetition_penalty"),
    row("repeat_last_n", None, NoEffect),
    no("watermarking", FALSE, "leave it out"),
    no("max_new_tokens", NONE, "send max_tokens"),
    no("min_new_tokens", ZERO, "send min_tokens"),
    no("n_predict", NONE, "send max_tokens"),
    no("t_max_predict_ms", ZERO, "send max_tokens, or start with --request-timeout"),
    no("thinking_token_budget", NONE, "send max_tokens"),
    // Constrained output.
    row("guided_json", None, Understood),
    row("guided_regex", None, Understood),
    row("guided_choice", None, Understood),
    row("guided_grammar", None, Understood),
    row("json_schema", None, Understood),
    row("regex", None, Understood),
    row("structured_outputs", None, Understood),
    row("guided_decoding_backend", None, NoEffect),
    no("guided_json_object", FALSE, "send response_format with type json_object"),
    no("guided_whitespace_pattern", NONE, "leave it out: JSON is written as the schema allows"),
    no("ebnf", NONE, LARK),
    no("grammar", NONE, LARK),
    no("structural_tag", NONE, "send tools, or guided_grammar with a Lark grammar"),
    // The prompt.
    row("add_special_tokens", Some(Text), Understood),
    not_on(Chat, "add_special_tokens", FALSE, "the chat template writes its own special tokens"),
    row("add_generation_prompt", Some(Chat), Understood),
    not_on(Text, "add_generation_prompt", NONE, TO_CHAT),
    row("continue_final_message", Some(Chat), Understood),
    not_on(Text, "continue_final_message", FALSE, TO_CHAT),
    row("chat_template_kwargs", Some(Chat), Understood),
    not_on(Text, "chat_template_kwargs", NONE, TO_CHAT),
    no("chat_template", NONE, "the model's own is used: send a rendered prompt to /v1/completions"),
    no("documents", NONE, "put them into a message"),
    no("thinking", NONE, THINKING),
    no("enable_thinking", NONE, THINKING),
    no("truncate_prompt_tokens", NONE, "shorten the prompt; /tokenize counts its tokens"),
    row("truncation_side", None, NoEffect),
    no("prompt_embeds", NONE, "send prompt as text or token ids"),
    no("input_ids", NONE, "send prompt with token ids to /v1/completions"),
    row("mm_processor_kwargs", None, NoEffect),
    row("media_io_kwargs", None, NoEffect),
    row("images_config", None, NoEffect),
    // What comes back.
    row("separate_reasoning", Some(Chat), Understood),
    row("separate_reasoning", Some(Text), NoEffect),
    no("stream_reasoning", TRUE, "collect reasoning_content on your side"),
    no("include_reasoning", TRUE, "drop reasoning_content on your side"),
    row("return_tokens_as_token_ids", None, Understood),
    no("return_token_ids", FALSE, "send logprobs with return_tokens_as_token_ids"),
    no("return_prompt_text", FALSE, "send echo to /v1/completions"),
    row("return_token_offsets", None, NoEffect),
    row("return_mm_kwargs", None, NoEffect),
    no("return_hidden_states", FALSE, "hidden states are not kept"),
    no("return_routed_experts", FALSE, "routed experts are not kept"),
    row("routed_experts_start_len", None, NoEffect),
    row("routed_experts_prompt_start", None, NoEffect),
    no("return_cached_tokens_details", FALSE, "usage.prompt_tokens_details has the count"),
    no("prompt_logprobs", NONE, SCORES),
    no("logprob_token_ids", NONE, "send logprobs with the number of alternatives"),
    no("n_probs", ZERO, "send logprobs"),
    no("logprob_start_len", &[Number(-1.0)], SCORES),
    no("stream_interval", ONE, "every token is sent when it is there"),
    // Adapters, processors, roles.
    no("lora_path", NONE, NO_LORA),
    no("lora", NONE, NO_LORA),
    no("adapter_id", NONE, NO_LORA),
    no("session_params", NONE, "send the whole conversation: its prefix is cached"),
    no("vllm_xargs", NONE, "no extension takes them"),
    no("kv_transfer_params", NONE, NO_ROLES),
    no("ec_transfer_params", NONE, NO_ROLES),
    no("bootstrap_host", NONE, NO_ROLES),
    no("bootstrap_port", NONE, NO_ROLES),
    no("bootstrap_room", NONE, NO_ROLES),
    // Fields that belong elsewhere in the body.
    no("extra_body", NONE, "its fields belong at the top of the body"),
    no("sampling_params", NONE, "its fields belong at the top of the body"),
    no("options", NONE, "its fields belong at the top of the body, under their names here"),
    // Where and when it runs, and by which name.
    row("rid", None, Understood),
    row("cache_salt", None, Understood),
    row("extra_key", None, Understood),
    row("request_id", None, NoEffect),
    row("session_id", None, NoEffect),
    row("priority", None, NoEffect),
    row("cache_prompt", None, NoEffect),
    row("id_slot", None, NoEffect),
    row("n_keep", None, NoEffect),
    row("custom_labels", None, NoEffect),
    row("ngram_corpus_id", None, NoEffect),
    row("data_parallel_rank", None, NoEffect),
    row("routed_dp_rank", None, NoEffect),
    row("disagg_prefill_dp_rank", None, NoEffect),
];
