//! The sequences of one answer, from submission to their final events.

use crate::app::App;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::live::Registered;
use crate::metrics::Metrics;
use lockstep_engine::Submission;
use lockstep_flow::{
    Event, EventKind, EventSink, Failure, Micros, Request, RequestId, SamplingParams, Token,
    TokenMask, Usage,
};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// One sequence to be submitted.
#[derive(Debug)]
pub struct Planned {
    /// Shared between the choices of a prompt.
    pub prompt: Arc<[Token]>,
    /// With this choice's number in it.
    pub params: SamplingParams,
    /// This choice's own grammar state.
    pub grammar: Option<Box<dyn TokenMask>>,
    /// Shares no prefix with other requests (`cache_salt`).
    pub private: bool,
}

/// Events beside one a token that a sequence may have: started, finished, and slack.
const EVENTS_BESIDE_TOKENS: usize = 8;

impl Planned {
    fn events_max(&self) -> usize {
        let prompt = if self.params.prompt_logprobs { self.prompt.len() } else { 0 };
        self.params.max_tokens as usize + prompt + EVENTS_BESIDE_TOKENS
    }
}

/// The running sequences of one answer. Dropping it cancels those that have not ended, which is
/// how a client that goes away frees its pages.
pub struct Run {
    engine: Arc<dyn Engine>,
    events: mpsc::Receiver<(usize, EventKind)>,
    ids: Vec<RequestId>,
    ended: Vec<bool>,
    /// Told to end; of these only the last event is seen.
    stopped: Vec<bool>,
    open: usize,
    _registered: Registered,
}

impl Run {
    /// Submits every sequence or none. `param` is the field that the prompts came from.
    pub fn start(
        app: &App,
        planned: Vec<Planned>,
        name: &str,
        rid: Option<&str>,
        param: &'static str,
    ) -> Result<Run, ApiError> {
        let ids: Vec<RequestId> = planned.iter().map(|_| app.ids.request()).collect();
        let registered = app.live.register(name, rid, &ids).ok_or_else(|| {
            ApiError::field("rid", "is in use by a request that has not ended; choose another")
        })?;
        // Bounded by what the sequences may produce, so a full channel is a broken promise of
        // the engine; memory is taken block by block as events arrive.
        let bound = planned.iter().map(Planned::events_max).sum();
        let (sender, events) = mpsc::channel(bound);
        let mut run = Run {
            engine: Arc::clone(&app.engine),
            events,
            ended: vec![true; ids.len()],
            stopped: vec![false; ids.len()],
            open: 0,
            ids,
            _registered: registered,
        };
        let arrived = app.engine.now();
        let deadline = app.request_timeout.map(|t| Micros(arrived.0 + t.as_micros() as u64));
        let submission = |(index, p): (usize, Planned)| -> Submission {
            let request = Request {
                id: run.ids[index],
                prompt: p.prompt,
                params: p.params,
                grammar: p.grammar,
                arrived,
                deadline,
                adapter: 0,
                use_prefix_cache: !p.private,
            };
            (request, Box::new(Sink::new(index, sender.clone(), Arc::clone(&app.metrics))))
        };
        let all = planned.into_iter().enumerate().map(submission).collect();
        app.engine.submit_all(all).map_err(|refusal| ApiError::Refused { refusal, param })?;
        run.ended.fill(false);
        run.open = run.ids.len();
        Ok(run)
    }

    /// The next event and whose it is; `None` once every sequence has ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, EventKind)>> {
        while self.open > 0 {
            match self.events.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some((index, _))) if self.ended[index] => {}
                Poll::Ready(Some((index, kind))) if self.stopped[index] && !kind.is_final() => {}
                Poll::Ready(Some((index, kind))) => {
                    if kind.is_final() {
                        self.close(index);
                    }
                    return Poll::Ready(Some((index, kind)));
                }
                Poll::Ready(None) => {
                    let Some(index) = self.ended.iter().position(|ended| !ended) else { break };
                    self.close(index);
                    let failure = Failure::Engine { what: "it dropped the request".into() };
                    return Poll::Ready(Some((
                        index,
                        EventKind::Failed { failure, usage: Usage::default() },
                    )));
                }
            }
        }
        Poll::Ready(None)
    }

    /// [`Run::poll_next`] as a future.
    pub async fn next(&mut self) -> Option<(usize, EventKind)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Ends a sequence that has all that was wanted of it (a stop string): the engine is told,
    /// and of its later events only the last is seen, which comes within a step.
    pub fn end(&mut self, index: usize) {
        if !self.ended[index] && !self.stopped[index] {
            self.engine.cancel(self.ids[index]);
            self.stopped[index] = true;
        }
    }

    fn close(&mut self, index: usize) {
        self.ended[index] = true;
        self.open -= 1;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for (id, ended) in self.ids.iter().zip(&self.ended) {
            if !ended {
                self.engine.cancel(*id);
            }
        }
    }
}

/// Takes events on the step thread: stamps the time, passes on, never waits.
struct Sink {
    index: usize,
    sender: mpsc::Sender<(usize, EventKind)>,
    metrics: Arc<Metrics>,
    arrived: Instant,
    last_token: Option<Instant>,
}

impl Sink {
    fn new(index: usize, sender: mpsc::Sender<(usize, EventKind)>, metrics: Arc<Metrics>) -> Sink {
        Sink { index, sender, metrics, arrived: Instant::now(), last_token: None }
    }

    fn observe(&mut self, kind: &EventKind) {
        let now = Instant::now();
        let since = |then: Instant| now.duration_since(then).as_secs_f64();
        match kind {
            EventKind::Started { .. } => self.metrics.queue_seconds.observe(since(self.arrived)),
            EventKind::Token { .. } => {
                match self.last_token.replace(now) {
                    None => self.metrics.first_token_seconds.observe(since(self.arrived)),
                    Some(last) => self.metrics.inter_token_seconds.observe(since(last)),
                };
            }
            EventKind::Finished { .. } => self.metrics.request_seconds.observe(since(self.arrived)),
            EventKind::Prompt { .. } | EventKind::Failed { .. } => {}
        }
    }
}

impl EventSink for Sink {
    fn emit(&mut self, event: Event) -> bool {
        self.observe(&event.kind);
        match self.sender.try_send((self.index, event.kind)) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                tracing::error!(request = event.request.0, "more events than max_tokens allows");
                false
            }
        }
    }
}
