//! An engine without a model. It keeps every promise of the `Engine` trait (one final event,
//! limits, pages, cancellation within a step, drain) and writes what the prompt tells it to:
//! `[[words]]` in a prompt is answered with `words`; without it the answer is a hash of prompt,
//! seed and position, which is any bytes at all. A grammar overrules both.

use lockstep_engine::Submission;
use lockstep_flow::status::{
    BucketMode, BucketUse, Counters, DeviceFacts, Health, ModelFacts, SubPoolUse,
};
use lockstep_flow::{
    BucketKey, EngineStatus, Event, EventKind, EventSink, Failure, FinishReason, Micros, Refusal,
    Request, RequestId, Ticket, Token, TokenLogprob, Usage,
};
use lockstep_serve::Engine;
use lockstep_text::{Encode, TextModel};
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
pub struct ToyConfig {
    pub running_max: u32,
    pub queued_max: u32,
    pub pages: u32,
    pub context: u32,
    pub step: Duration,
}

impl Default for ToyConfig {
    fn default() -> Self {
        ToyConfig {
            running_max: 8,
            queued_max: 64,
            pages: 256,
            context: 2048,
            step: Duration::ZERO,
        }
    }
}

const PAGE: u32 = 32;

struct Sequence {
    request: Request,
    sink: Box<dyn EventSink>,
    script: Option<VecDeque<Token>>,
    made: Vec<Token>,
    started: bool,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Sequence>,
    running: Vec<Sequence>,
    cancelled: HashSet<RequestId>,
    counters: Counters,
    paused: bool,
    draining: bool,
    stopping: bool,
    failed: Option<String>,
    /// Steps that were run, and those during which a cancelled request was still there.
    steps: u64,
}

pub struct Toy {
    config: ToyConfig,
    text: Arc<TextModel>,
    state: Mutex<State>,
    wake: Condvar,
    begun: Instant,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Sequence {
    fn pages(&self) -> u32 {
        (self.request.prompt.len() as u32 + self.request.params.max_tokens).div_ceil(PAGE)
    }

    fn usage(&self, ended_by_token: bool) -> Usage {
        Usage {
            prompt_tokens: self.request.prompt.len() as u32,
            cached_tokens: 0,
            completion_tokens: self.made.len() as u32 + u32::from(ended_by_token),
            ..Usage::default()
        }
    }

    fn emit(&mut self, kind: EventKind) -> bool {
        self.sink.emit(Event { request: self.request.id, kind })
    }

    fn fail(mut self, failure: Failure) {
        let usage = self.usage(false);
        self.emit(EventKind::Failed { failure, usage });
    }

    /// A score for every token that may come next, highest first.
    fn ranking(&mut self, vocab: u32) -> Result<Vec<(Token, f32)>, Failure> {
        let p = &self.request.params;
        let draw = if p.temperature == 0.0 { 0 } else { hash((p.seed.0, p.choice)) };
        let context = hash((&self.request.prompt[..], &self.made, draw));
        let next = self.script.as_mut().and_then(VecDeque::pop_front);
        let mut words = vec![u32::MAX; vocab.div_ceil(32) as usize];
        if let Some(grammar) = &mut self.request.grammar {
            grammar.fill(&mut words).map_err(Failure::Grammar)?;
        }
        let allowed = |t: u32| words[t as usize / 32] >> (t % 32) & 1 == 1;
        let score = |t: u32| {
            let noise = -0.1 - (hash((context, t)) % 10_000) as f32 / 1000.0;
            if next == Some(Token(t)) { -0.01 } else { noise }
        };
        let mut all: Vec<(Token, f32)> =
            (0..vocab).filter(|t| allowed(*t)).map(|t| (Token(t), score(t))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ok(all)
    }

    fn scored(&self, token: Token, ranking: &[(Token, f32)]) -> Option<TokenLogprob> {
        let n = self.request.params.logprobs? as usize;
        let logprob = ranking.iter().find(|(t, _)| *t == token).map_or(-20.0, |(_, l)| *l);
        Some(TokenLogprob { token, logprob, top: ranking.iter().take(n).copied().collect() })
    }
}

impl Toy {
    pub fn start(config: ToyConfig, text: Arc<TextModel>) -> Arc<Toy> {
        let toy = Arc::new(Toy {
            config,
            text,
            state: Mutex::default(),
            wake: Condvar::new(),
            begun: Instant::now(),
            thread: Mutex::new(None),
        });
        let looping = Arc::clone(&toy);
        *toy.thread.lock().unwrap() = Some(std::thread::spawn(move || looping.run()));
        toy
    }

    /// Holds the step loop between two steps.
    pub fn pause(&self) {
        self.state.lock().unwrap().paused = true;
    }

    pub fn resume(&self) {
        self.state.lock().unwrap().paused = false;
        self.wake.notify_all();
    }

    /// The step fails, and with it the engine.
    pub fn fail(&self, why: &str) {
        let mut state = self.state.lock().unwrap();
        state.failed = Some(why.into());
        state.stopping = true;
        self.wake.notify_all();
    }

    /// Requests that the engine was told to end and has not looked at since.
    pub fn cancellations(&self) -> usize {
        self.state.lock().unwrap().cancelled.len()
    }

    pub fn steps(&self) -> u64 {
        self.state.lock().unwrap().steps
    }

    fn run(&self) {
        loop {
            let mut state = self.state.lock().unwrap();
            while (state.paused || state.queued.is_empty() && state.running.is_empty())
                && !state.stopping
            {
                state = self.wake.wait(state).unwrap();
            }
            if state.stopping {
                let failure = match &state.failed {
                    Some(what) => Failure::Engine { what: what.clone() },
                    None => Failure::ShuttingDown,
                };
                let mut rest: Vec<Sequence> = state.queued.drain(..).collect();
                rest.append(&mut state.running);
                state.counters.failed += rest.len() as u64;
                rest.into_iter().for_each(|s| s.fail(failure.clone()));
                return;
            }
            self.step(&mut state);
            drop(state);
            std::thread::sleep(self.config.step);
        }
    }

    fn step(&self, state: &mut State) {
        state.steps += 1;
        let cancelled = std::mem::take(&mut state.cancelled);
        let now = self.now();
        let late = |s: &Sequence| s.request.deadline.is_some_and(|d| d <= now);
        let mut ended = Vec::new();
        let all = state.queued.drain(..).collect::<Vec<_>>();
        for s in all {
            match (cancelled.contains(&s.request.id), late(&s)) {
                (true, _) => ended.push((s, Failure::Cancelled)),
                (_, true) => ended.push((s, Failure::DeadlineExceeded)),
                _ => state.queued.push_back(s),
            }
        }
        for s in std::mem::take(&mut state.running) {
            match (cancelled.contains(&s.request.id), late(&s)) {
                (true, _) => ended.push((s, Failure::Cancelled)),
                (_, true) => ended.push((s, Failure::DeadlineExceeded)),
                _ => state.running.push(s),
            }
        }
        for (s, failure) in ended {
            match failure {
                Failure::Cancelled => state.counters.cancelled += 1,
                _ => state.counters.failed += 1,
            }
            s.fail(failure);
        }
        while let Some(next) = state.queued.front() {
            let used: u32 = state.running.iter().map(Sequence::pages).sum();
            let fits = used + next.pages() <= self.config.pages;
            if state.running.len() as u32 >= self.config.running_max || !fits {
                break;
            }
            let next = state.queued.pop_front();
            state.running.extend(next);
        }
        state.counters.steps += 1;
        state.counters.decode_steps += 1;
        state.counters.decode_steps_captured += 1;
        for mut s in std::mem::take(&mut state.running) {
            match self.advance(&mut s, &mut state.counters) {
                Ok(true) => state.running.push(s),
                Ok(false) => {}
                Err(failure) => {
                    match failure {
                        Failure::Cancelled => state.counters.cancelled += 1,
                        _ => state.counters.failed += 1,
                    }
                    s.fail(failure);
                }
            }
        }
    }

    /// One token; false where the sequence has ended.
    fn advance(&self, s: &mut Sequence, counters: &mut Counters) -> Result<bool, Failure> {
        let vocab = self.text.vocab_size();
        if !s.started {
            s.started = true;
            s.emit(EventKind::Started { cached_tokens: 0 });
            if s.request.params.prompt_logprobs {
                let ranking = s.ranking(vocab)?;
                let scored = |t: &Token| s.scored(*t, &ranking);
                let entries: Vec<TokenLogprob> =
                    s.request.prompt[1..].iter().filter_map(scored).collect();
                s.emit(EventKind::Prompt { from: 1, entries });
                if let Some(script) = self.script(&s.request) {
                    s.script = Some(script);
                }
            }
        }
        let finish = |s: &mut Sequence, reason, by_token: bool, counters: &mut Counters| {
            counters.finished += 1;
            let usage = s.usage(by_token);
            s.emit(EventKind::Finished { reason, usage });
            Ok(false)
        };
        if s.request.grammar.as_mut().is_some_and(|g| g.is_complete()) {
            return finish(s, FinishReason::Stop, false, counters);
        }
        let ranking = s.ranking(vocab)?;
        let Some(&(token, _)) = ranking.first() else {
            return Err(Failure::Engine { what: "the grammar allows nothing".into() });
        };
        counters.generated_tokens += 1;
        if let Some(grammar) = &mut s.request.grammar {
            grammar.accept(token).map_err(Failure::Grammar)?;
        }
        let p = &s.request.params;
        let ends = self.text.eos_tokens().contains(&token) && !p.ignore_eos
            || p.stop_tokens.contains(&token);
        if ends && s.made.len() as u32 >= p.min_tokens {
            return finish(s, FinishReason::Stop, true, counters);
        }
        let logprob = s.scored(token, &ranking);
        let index = s.made.len() as u32;
        s.made.push(token);
        if !s.emit(EventKind::Token { token, index, logprob }) {
            return Err(Failure::Cancelled);
        }
        if s.made.len() as u32 >= s.request.params.max_tokens {
            return finish(s, FinishReason::Length, false, counters);
        }
        Ok(true)
    }

    fn script(&self, request: &Request) -> Option<VecDeque<Token>> {
        let prompt = self.text.decode(&request.prompt, false);
        let (_, rest) = prompt.rsplit_once("[[")?;
        let (words, _) = rest.split_once("]]")?;
        let how = Encode { add_bos: false, parse_special: true };
        let mut tokens: VecDeque<Token> = self.text.encode(words, how).ok()?.into();
        tokens.push_back(self.text.eos_tokens()[0]);
        Some(tokens)
    }

    fn refusal(&self, request: &Request, count: u32, state: &State) -> Option<Refusal> {
        let (prompt, max) = (request.prompt.len() as u32, request.params.max_tokens);
        let vocab = self.text.vocab_size();
        let outside = request.prompt.iter().position(|t| t.0 >= vocab);
        let queued = state.queued.len() as u32;
        if let Some(why) = &state.failed {
            Some(Refusal::NotServing { why: why.clone() })
        } else if state.draining {
            Some(Refusal::NotServing { why: "it is draining".into() })
        } else if prompt == 0 {
            Some(Refusal::EmptyPrompt)
        } else if let Some(at) = outside {
            Some(Refusal::TokenOutOfRange { token: request.prompt[at], at: at as u32, vocab })
        } else if prompt + max > self.config.context {
            Some(Refusal::ContextTooLong {
                prompt_tokens: prompt,
                max_tokens: max,
                context_max_tokens: self.config.context,
            })
        } else if (prompt + max).div_ceil(PAGE) > self.config.pages {
            Some(Refusal::PoolTooSmall {
                needed_tokens: prompt + max,
                capacity_tokens: self.config.pages * PAGE,
            })
        } else if count > self.config.queued_max + self.config.running_max {
            let limit = self.config.queued_max + self.config.running_max;
            Some(Refusal::TooManySequences { sequences: count, limit })
        } else if queued + count > self.config.queued_max {
            let limit = self.config.queued_max;
            Some(Refusal::QueueFull { queued, limit, retry_after_s: 3 })
        } else {
            None
        }
    }
}

impl Engine for Toy {
    fn submit_all(&self, all: Vec<Submission>) -> Result<Vec<Ticket>, Refusal> {
        let mut state = self.state.lock().unwrap();
        let count = all.len() as u32;
        let refusal = all.iter().find_map(|(r, _)| self.refusal(r, count, &state));
        if let Some(refusal) = refusal {
            match refusal {
                Refusal::QueueFull { .. } => state.counters.refused_queue_full += u64::from(count),
                _ => state.counters.refused_other += u64::from(count),
            }
            return Err(refusal);
        }
        let mut tickets = Vec::new();
        for (request, sink) in all {
            tickets.push(Ticket { id: request.id, queued_before: state.queued.len() as u32 });
            state.counters.admitted += 1;
            state.counters.prompt_tokens += request.prompt.len() as u64;
            let script = self.script(&request);
            let (made, started) = (vec![], false);
            state.queued.push_back(Sequence { script, request, sink, made, started });
        }
        self.wake.notify_all();
        Ok(tickets)
    }

    fn cancel(&self, id: RequestId) {
        self.state.lock().unwrap().cancelled.insert(id);
    }

    fn status(&self) -> EngineStatus {
        let state = self.state.lock().unwrap();
        let key = BucketKey::decode(self.config.running_max);
        let used: u32 = state.running.iter().map(Sequence::pages).sum();
        EngineStatus {
            health: match (&state.failed, state.draining) {
                (Some(why), _) => Health::Failed { why: why.clone() },
                (None, true) => Health::Draining,
                (None, false) => Health::Serving,
            },
            model: ModelFacts {
                name: "toy".into(),
                path: "models/toy.gguf".into(),
                architecture: "llama".into(),
                quantization: "F32".into(),
                vocab: self.text.vocab_size(),
                context_max_tokens: self.config.context,
                parameters: 1,
                weight_bytes: 4,
                weights_digest: "0123456789abcdef".into(),
                stands_in: String::new(),
            },
            device: DeviceFacts {
                name: "cpu".into(),
                isa: "portable".into(),
                threads: 1,
                arena_bytes: 64,
            },
            uptime: self.now(),
            running: state.running.len() as u32,
            queued: state.queued.len() as u32,
            running_max: self.config.running_max,
            queued_max: self.config.queued_max,
            chunked_prefill_tokens: 512,
            pools: vec![SubPoolUse {
                name: "full".into(),
                page_tokens: PAGE,
                pages_total: self.config.pages,
                pages_used: used,
                pages_canary: 0,
                pages_cached: 0,
                tokens_used: u64::from(used * PAGE),
                bytes_total: 4096,
            }],
            generation: 1,
            generations: Vec::new(),
            arenas: Default::default(),
            buckets: vec![BucketUse {
                key,
                mode: BucketMode::Captured,
                replays: state.steps,
                eager_steps: 0,
                live_rows: state.steps,
                padded_rows: 0,
                audit: Default::default(),
            }],
            counters: state.counters,
            ..EngineStatus::default()
        }
    }

    fn now(&self) -> Micros {
        Micros(self.begun.elapsed().as_micros() as u64)
    }

    fn drain(&self) {
        self.state.lock().unwrap().draining = true;
    }

    fn shutdown(&self) {
        self.state.lock().unwrap().stopping = true;
        self.wake.notify_all();
        if let Some(thread) = self.thread.lock().unwrap().take() {
            thread.join().unwrap();
        }
    }
}
