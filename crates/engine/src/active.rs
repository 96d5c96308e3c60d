//! What the engine keeps of a live request beside the scheduler's entry.

use crate::masks::Guide;
use lockstep_device::sample::SampleResult;
use lockstep_flow::{
    Event, EventKind, EventSink, Failure, Request, RequestId, SamplingParams, Token,
};
use lockstep_sched::{Outcome, Run};
use std::collections::HashMap;
use std::sync::Arc;

/// One live request.
pub struct Active {
    /// Its sampling parameters.
    pub params: SamplingParams,
    /// Its prompt.
    pub prompt: Arc<[Token]>,
    /// What constrains it, unless that is with the workers.
    pub guide: Option<Guide>,
    constrained: bool,
    sink: Box<dyn EventSink>,
    /// False once the sink said that nobody listens.
    listening: bool,
    /// True once the final event is out.
    ended: bool,
    /// Why it cannot go on, once known.
    failure: Option<Failure>,
}

impl Active {
    /// Takes over a request that the scheduler has admitted.
    pub fn new(request: Request, guide: Option<Guide>, sink: Box<dyn EventSink>) -> Active {
        let Request { params, prompt, .. } = request;
        let constrained = guide.is_some();
        Active {
            params,
            prompt,
            guide,
            constrained,
            sink,
            listening: true,
            ended: false,
            failure: None,
        }
    }

    /// True where a grammar constrains it, wherever that is now.
    pub const fn is_constrained(&self) -> bool {
        self.constrained
    }

    /// Tells the client; false once nobody listens. Nothing follows a final event.
    pub fn emit(&mut self, request: RequestId, kind: EventKind) -> bool {
        if self.ended {
            return false;
        }
        self.ended = kind.is_final();
        self.listening = self.listening && self.sink.emit(Event { request, kind });
        self.listening
    }

    /// Notes why the request cannot go on; the first reason stays.
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Why the request cannot go on, if it cannot.
    pub fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// What sampled rows mean for this request: the first is that of its last token, each further
    /// one that of a draft, and counts where the row before sampled that draft and did not end the
    /// text with it. A constrained request is held until its grammar has moved past the token.
    /// `drafted` looks up what was drafted after a row, where drafts are made.
    pub fn take_sample(
        &mut self,
        results: &[SampleResult],
        checked: &[Token],
        ends: impl Fn(u32, Token) -> bool,
        drafted: Option<impl FnOnce(usize) -> Run>,
    ) -> Outcome {
        if let Some(failure) = self.failure.clone() {
            return Outcome::Failed(failure);
        }
        let mut sampled = Run::default();
        for (i, result) in results.iter().enumerate() {
            if let Some(fault) = result.fault() {
                return Outcome::Failed(Failure::Engine { what: fault.into() });
            }
            let token = Token(result.token);
            sampled.push(token);
            if checked.get(i) != Some(&token) || ends(i as u32, token) {
                break;
            }
        }
        let (first, last) = (sampled.as_slice()[0], sampled.as_slice().len() - 1);
        match (self.constrained, drafted) {
            (true, _) => Outcome::SampledHeld(first),
            (false, None) => Outcome::Sampled(first),
            (false, Some(drafted)) => Outcome::Verified { sampled, drafts: drafted(last) },
        }
    }
}

/// Live requests by id.
pub type ActiveMap = HashMap<RequestId, Active>;
