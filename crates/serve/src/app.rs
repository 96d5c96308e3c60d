//! What every route shares.

use crate::auth::Keys;
use crate::engine::{Engine, present};
use crate::ids::Ids;
use crate::live::Live;
use crate::load::Load;
use crate::metrics::Metrics;
use lockstep_flow::Settings;
use lockstep_flow::status::{EngineStatus, ModelFacts};
use lockstep_text::TextModel;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, Semaphore};

/// The state of the server, shared by its handlers.
pub type Shared = Arc<App>;

/// Bodies above this size are parsed and tokenized a few at a time.
pub const LARGE_BODY_BYTES: usize = 256 << 10;
/// How many large bodies are worked on at once.
const LARGE_BODIES: usize = 2;

/// See [`Shared`].
pub struct App {
    /// The step loop.
    pub engine: Arc<dyn Engine>,
    /// Tokenizer, chat template, grammars.
    pub text: Arc<TextModel>,
    /// Every knob.
    pub settings: Settings,
    /// Who may call what.
    pub keys: Keys,
    /// The name in `/v1/models`.
    pub model_name: String,
    /// Other names that `model` may have in a request.
    pub aliases: Vec<String>,
    /// Fixed facts of the model.
    pub model: ModelFacts,
    /// `fp_` and a digest of weights and build.
    pub fingerprint: String,
    /// Longest token of the vocabulary in bytes, to refuse hopeless prompts before tokenizing.
    pub token_bytes_max: usize,
    /// Tokens of KV that the pool holds.
    pub capacity_tokens: u64,
    /// Sequences that can be live at once: running and queued.
    pub sequences_max: u32,
    /// Names of requests and responses.
    pub ids: Ids,
    /// Answers in the making.
    pub live: Arc<Live>,
    /// Counters of this side.
    pub metrics: Arc<Metrics>,
    /// What the last minutes were like.
    pub load: Arc<Load>,
    /// After this a request ends with an error.
    pub request_timeout: Option<Duration>,
    /// Set when a stop was asked for.
    pub stopping: AtomicBool,
    /// The last health probe that succeeded; the lock keeps probes from piling up.
    pub probe: Mutex<Option<Instant>>,
    /// Permits for [`LARGE_BODY_BYTES`].
    pub large: Semaphore,
    /// Unix seconds of the start.
    pub started_unix: u64,
    /// How the server was started, for `/server_info`.
    pub launch_command: Option<String>,
    /// The settings file that a start like this one reads, for `/server_info`.
    pub settings_file: Option<PathBuf>,
}

/// What a server needs to know beside its engine and its text model.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Every knob.
    pub settings: Settings,
    /// Names of the model, best first: the store's, the file's. The first one is served where
    /// `server.served-model-name` is not set; requests may use all of them.
    pub aliases: Vec<String>,
    /// Shown in `/server_info`; without keys.
    pub launch_command: Option<String>,
    /// The settings file that a start like this one reads, whether it is there or not.
    pub settings_file: Option<PathBuf>,
}

impl ServeConfig {
    /// The name in `/v1/models`.
    pub fn model_name<'a>(&'a self, model: &'a ModelFacts) -> &'a str {
        let named = self.settings.text_opt("server.served-model-name");
        named.or(self.aliases.first().map(String::as_str)).unwrap_or(&model.name)
    }
}

impl App {
    /// Puts the state together. `loopback` says where the server listens.
    pub fn new(
        config: ServeConfig,
        engine: Arc<dyn Engine>,
        text: Arc<TextModel>,
        loopback: bool,
    ) -> App {
        let s = &config.settings;
        let status = engine.status();
        let capacity_tokens = status.capacity_tokens();
        let sequences_max = status.running_max + status.queued_max;
        let model = status.model;
        let model_name = config.model_name(&model).to_owned();
        let keys = Keys {
            api: s.text_opt("server.api-key").map(str::to_owned),
            admin: s.text_opt("server.admin-key").map(str::to_owned),
            loopback,
        };
        let seconds = Some(s.number("server.request-timeout")).filter(|s| *s > 0);
        let load = Arc::new(Load::default());
        let metrics = Metrics::new(Arc::clone(&engine), Arc::clone(&load), &model_name);
        App {
            fingerprint: fingerprint(&model),
            token_bytes_max: token_bytes_max(&text),
            capacity_tokens,
            sequences_max,
            ids: Ids::new(),
            live: Arc::default(),
            metrics: Arc::new(metrics),
            request_timeout: seconds.map(Duration::from_secs),
            stopping: AtomicBool::new(false),
            probe: Mutex::new(None),
            large: Semaphore::new(LARGE_BODIES),
            started_unix: unix_seconds(),
            launch_command: config.launch_command,
            settings_file: config.settings_file,
            aliases: config.aliases,
            settings: config.settings,
            engine,
            text,
            keys,
            model_name,
            model,
            load,
        }
    }

    /// A snapshot; a stop that was asked for shows as draining at once.
    pub fn status(&self) -> EngineStatus {
        use lockstep_flow::status::Health;
        let mut status = present(self.engine.as_ref());
        if self.stopping.load(Ordering::Relaxed) && status.health.is_serving() {
            status.health = Health::Draining;
        }
        status
    }

    /// True where a request may name the model so.
    pub fn is_served(&self, name: &str) -> bool {
        let own = [&self.model_name, &self.model.name];
        own.into_iter().chain(&self.aliases).any(|n| n == name)
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn fingerprint(model: &ModelFacts) -> String {
    let digest: String = model.weights_digest.chars().take(12).collect();
    format!("fp_{}_{digest}", env!("CARGO_PKG_VERSION"))
}

fn token_bytes_max(text: &TextModel) -> usize {
    use lockstep_flow::Token;
    let tokens = (0..text.vocab_size()).map(Token);
    tokens.map(|t| text.token_bytes(t).len()).max().unwrap_or(0).max(1)
}
