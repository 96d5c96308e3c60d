//! The bug that this project was started by, on a model whose answers show it: side lanes overlap
//! the main one while the arena was packed by the order in which ops are issued.
//!
//! The engine, its scheduler and the kernels are the product's. Only decode steps overlap, and only
//! some of them, as on a device where lanes mostly keep their order; what an indexer reads wrongly
//! is what another lane has really written there. As shipped, the same lanes run in the same orders
//! and the plan is the proven one.

use crate::engine::{Keeper, assembled};
use crate::fault_device::FaultDevice;
use crate::scene::SceneError;
use crate::strike::{Sabotage, Strike, StrikeLog};
use lockstep_device::CpuDevice;
use lockstep_device::cpu::CpuBackend;
use lockstep_engine::{Handle, Knobs, LoopTurn, StepLoop, plan_shape};
use lockstep_flow::{
    BucketKey, Event, EventKind, Micros, Request, RequestId, SamplingParams, Token,
};
use lockstep_model::Model;
use lockstep_plan::drill::PlanFault;
use lockstep_plan::{Fault, Hazard, pack_by_issue_order, prove};
use std::ops::Range;

/// Tokens of an answer beyond the right one's, at most: enough to see where a wrong one goes.
const LONGER: u32 = 40;

/// A dialogue whose assistant turns are known.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// All of it, as the model reads it.
    pub ids: Vec<Token>,
    /// The assistant's turns: each ends with the token that ends a turn.
    pub turns: Vec<Range<usize>>,
}

impl Session {
    /// The right answer of a turn, without the token that ends it.
    pub fn answer(&self, turn: usize) -> &[Token] {
        let Range { start, end } = self.turns[turn].clone();
        &self.ids[start..end - 1]
    }
}

/// What came back for one turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Index of the session.
    pub session: usize,
    /// Its turn.
    pub turn: usize,
    /// Tokens of the answer.
    pub tokens: Vec<Token>,
    /// Why it has no end, in words.
    pub failure: Option<String>,
}

/// A race: sessions side by side on one engine.
#[derive(Clone, Debug)]
pub struct Race {
    /// Seeds which steps overlap and in which order their lanes run.
    pub seed: u64,
    /// Sessions that run side by side.
    pub at_once: u32,
    /// One decode step in this many overlaps.
    pub odds: u32,
    /// The arena of overlapping steps is packed by issue order, and nobody proves the plan.
    pub by_issue_order: bool,
}

/// What a race came to.
#[derive(Clone, Default, Debug)]
pub struct RaceOutcome {
    /// Every turn's answer, by session and turn.
    pub answers: Vec<Answer>,
    /// Steps.
    pub steps: u64,
    /// Of those, steps whose lanes overlapped.
    pub overlapped: u64,
    /// Mismatches that the audit counted.
    pub mismatches: u64,
}

/// A session's turn that runs.
struct Running {
    session: usize,
    turn: usize,
    sink: Keeper,
}

impl Race {
    /// The knobs of the engine.
    pub fn knobs(&self) -> Knobs {
        let rows = self.at_once.max(1);
        Knobs {
            graph_max_bs: rows,
            running_max: rows,
            queued_max: 64,
            kv_bytes: 512 << 20,
            context_tokens: 4608,
            audit_rate: 0,
            ..Knobs::default()
        }
    }

    /// Plays every turn of every session, each with the history as it should be; `done` is told
    /// how many turns have ended.
    ///
    /// # Errors
    /// The engine could not be assembled.
    pub fn play(
        &self,
        model: Model,
        sessions: &[Session],
        done: &mut dyn FnMut(u64),
    ) -> Result<RaceOutcome, SceneError> {
        let strike = match self.by_issue_order {
            true => Strike::Plan(PlanFault::ArenaByIssueOrder),
            // Never hits: the seed alone is used, for the same orders.
            false => Strike::StrayWrite,
        };
        let times = if self.by_issue_order { u64::MAX } else { 0 };
        let per_million = crate::EVERY_STEP;
        let sabotage = Sabotage { strike, first: 1, times, seed: self.seed, per_million };
        let device = CpuDevice::new(2, "auto").map_err(SceneError::Device)?;
        let device = FaultDevice::new(device, Some(sabotage)).on_lanes_at_decode(self.odds);
        let log = device.log();
        let (handle, steps) = assembled(device, model, self.knobs())?;
        Ok(self.turn(&handle, steps, &log, sessions, done))
    }

    fn turn(
        &self,
        handle: &Handle,
        mut steps: StepLoop,
        log: &StrikeLog,
        sessions: &[Session],
        done: &mut dyn FnMut(u64),
    ) -> RaceOutcome {
        let mut out = RaceOutcome::default();
        let mut waiting = (0..sessions.len()).rev().collect::<Vec<_>>();
        let mut running: Vec<Running> = Vec::new();
        let mut number = 0;
        let mut start = |session: usize, turn: usize| {
            let sink = Keeper::default();
            let request = request(&sessions[session], turn, number);
            number += 1;
            let refused = handle.submit(request, Box::new(sink.clone())).err();
            (Running { session, turn, sink }, refused)
        };
        loop {
            let mut next = Vec::new();
            running.retain(|r| {
                if !r.sink.ended() {
                    return true;
                }
                out.answers.push(answer(r, &r.sink.events()));
                next.push((r.session, r.turn + 1));
                false
            });
            next.retain(|(session, turn)| *turn < sessions[*session].turns.len());
            while running.len() + next.len() < self.at_once as usize {
                let Some(session) = waiting.pop() else { break };
                next.push((session, 0));
            }
            for (session, turn) in next {
                let (started, refused) = start(session, turn);
                match refused {
                    None => running.push(started),
                    Some(e) => out.answers.push(Answer {
                        session,
                        turn,
                        tokens: Vec::new(),
                        failure: Some(e.to_string()),
                    }),
                }
            }
            done(out.answers.len() as u64);
            let turn = steps.turn();
            if turn == LoopTurn::Stopped || running.is_empty() {
                break;
            }
        }
        out.answers.sort_by_key(|a| (a.session, a.turn));
        out.steps = log.steps();
        out.overlapped = log.overlapped();
        out.mismatches = handle.status().counters.audit_mismatches;
        out
    }
}

fn request(session: &Session, turn: usize, number: u64) -> Request {
    let Range { start, end } = session.turns[turn].clone();
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: (end - start) as u32 + LONGER,
        ignore_eos: true,
        stop_tokens: session.ids[end - 1..end].to_vec(),
        ..SamplingParams::default()
    };
    Request {
        id: RequestId(number),
        prompt: session.ids[..start].to_vec().into(),
        params,
        grammar: None,
        arrived: Micros(number + 1),
        deadline: None,
        adapter: 0,
        use_prefix_cache: true,
    }
}

fn answer(r: &Running, events: &[Event]) -> Answer {
    let (mut tokens, mut failure) = (Vec::new(), None);
    for event in events {
        match &event.kind {
            EventKind::Token { token, .. } => tokens.push(*token),
            EventKind::Failed { failure: why, .. } => failure = Some(why.to_string()),
            _ => {}
        }
    }
    Answer { session: r.session, turn: r.turn, tokens, failure }
}

/// What the prover says of the plan that races: hazards of the decode bucket of `at_once` rows
/// whose arena is packed by issue order, those first that name an op of the indexer.
///
/// # Errors
/// The model has no such plan.
pub fn verdict(model: &Model, race: &Race) -> Result<Vec<Hazard>, SceneError> {
    let shape = plan_shape(&race.knobs(), model, &CpuBackend).map_err(SceneError::Engine)?;
    let plan = model.plan(&CpuBackend, &shape, BucketKey::decode(race.at_once));
    let plan = plan.map_err(SceneError::Model)?;
    let packing = pack_by_issue_order(&plan);
    let mut hazards = prove(plan, packing).err().unwrap_or_default();
    let of_indexer = |h: &Hazard| {
        let index = |name: &str| name.contains(".index_");
        matches!(h.fault, Fault::Aliasing { .. }) && h.touches().iter().any(|t| index(&t.op_name))
    };
    hazards.sort_by_key(|h| !of_indexer(h));
    Ok(hazards)
}
