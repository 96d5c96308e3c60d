//! The drills.

use crate::books::Books;
use crate::strike::Strike;
use lockstep_plan::drill::PlanFault;

/// One fault, in each form that it has: in a plan, in a running engine, in the pool's books.
#[derive(Clone, Copy, Debug)]
pub struct Drill {
    /// Its name.
    pub name: &'static str,
    /// What it corrupts.
    pub corrupts: &'static str,
    /// Where the field met it.
    pub seen_in: &'static str,
    /// In a plan: what prover, explorer and threads are given.
    pub plan: Option<PlanFault>,
    /// In a running engine: what the audit is given.
    pub strike: Option<fn() -> Strike>,
    /// In the pool's books: what the lease is asked for.
    pub books: Option<Books>,
    /// Who is to see it where no layer of a server can: the reason is part of the words.
    pub beyond: Option<&'static str>,
}

const fn drill(name: &'static str, corrupts: &'static str, seen_in: &'static str) -> Drill {
    Drill { name, corrupts, seen_in, plan: None, strike: None, books: None, beyond: None }
}

const fn of_plan(mut drill: Drill, plan: PlanFault) -> Drill {
    drill.plan = Some(plan);
    drill
}

const fn of_engine(mut drill: Drill, strike: fn() -> Strike) -> Drill {
    drill.strike = Some(strike);
    drill
}

const fn of_books(mut drill: Drill, books: Books) -> Drill {
    drill.books = Some(books);
    drill
}

const fn beyond(mut drill: Drill, why: &'static str) -> Drill {
    drill.beyond = Some(why);
    drill
}

/// Every drill.
pub const DRILLS: &[Drill] = &[
    of_engine(
        of_plan(
            drill(
                "arena-reuse-by-issue-order",
                "intermediates of one lane, by what another writes over them",
                "TensorRT-LLM #15265, #16290",
            ),
            PlanFault::ArenaByIssueOrder,
        ),
        || Strike::Plan(PlanFault::ArenaByIssueOrder),
    ),
    of_engine(
        of_plan(
            drill(
                "dropped-edge",
                "whatever is read before it is written",
                "sglang #22811 (index keys read without waiting for their load)",
            ),
            PlanFault::DroppedEdge,
        ),
        || Strike::Plan(PlanFault::DroppedEdge),
    ),
    of_engine(
        of_plan(
            drill(
                "event-from-older-fork",
                "whatever is read before it is written",
                "events recycled between captured graphs (vllm fork #102)",
            ),
            PlanFault::EventFromOlderFork,
        ),
        || Strike::Plan(PlanFault::EventFromOlderFork),
    ),
    of_engine(
        of_plan(
            drill(
                "shared-scratch",
                "scratch of one branch, by the other",
                "vllm #41834, sglang #39314",
            ),
            PlanFault::SharedScratch,
        ),
        || Strike::Plan(PlanFault::SharedScratch),
    ),
    of_engine(
        of_plan(
            drill(
                "undeclared-workspace",
                "whoever was given the same bytes",
                "TensorRT-LLM #14297, #18624; sglang #29216",
            ),
            PlanFault::UndeclaredScratch,
        ),
        || Strike::Plan(PlanFault::UndeclaredScratch),
    ),
    of_engine(
        of_plan(
            drill(
                "programmatic-launch-edge",
                "what is read before its writer has ended",
                "a kernel that reads its predecessor's result before its wait",
            ),
            PlanFault::ReadBeforeWait,
        ),
        || Strike::EarlyRead,
    ),
    of_plan(
        drill(
            "undefined-read",
            "what is computed from bytes that nobody has written",
            "vllm #42444 (a schedule that was planned outside the graph)",
        ),
        PlanFault::NeverWritten,
    ),
    of_engine(
        of_plan(
            drill(
                "live-stride-in-metadata",
                "every row but the first, where batch and bucket differ",
                "vllm #52448, #41834",
            ),
            PlanFault::LiveStride,
        ),
        || Strike::LiveStride,
    ),
    of_engine(
        drill(
            "live-stride-in-replay",
            "every row but the first, where batch and bucket differ",
            "vllm #52448 (where only the captured consumer has it)",
        ),
        || Strike::LiveStrideInReplay,
    ),
    of_engine(
        of_plan(
            drill(
                "frozen-shortcut",
                "rows longer than the batch seen at capture",
                "vllm #52492 (a short context takes all keys)",
            ),
            PlanFault::FrozenShortcut,
        ),
        || Strike::FrozenShortcut,
    ),
    of_engine(
        of_books(
            drill(
                "stale-block-table",
                "a sequence that has grown a page",
                "a host copy of the table that misses the row which has grown",
            ),
            Books::StaleEntry,
        ),
        || Strike::StaleBlockTable,
    ),
    of_engine(
        of_books(
            drill(
                "page-freed-in-flight",
                "another request's KV",
                "sglang #24527 (pages freed while a transfer still writes)",
            ),
            Books::FreedInFlight,
        ),
        || Strike::PageGivenTwice,
    ),
    of_engine(
        of_plan(
            drill(
                "padded-row-writes-live-page",
                "another request's KV",
                "xllm #1939 (a batch of 100 in a bucket of 112)",
            ),
            PlanFault::PaddedRowWritesLivePage,
        ),
        || Strike::PaddedRowsWrite,
    ),
    of_plan(
        drill("reads-padded-rows", "live rows, by leftovers in padded ones", "xllm #1939"),
        PlanFault::ReadsPaddedRows,
    ),
    beyond(
        of_engine(
            of_plan(
                drill(
                    "output-read-after-next-replay",
                    "tokens on their way to the client",
                    "outputs of one graph read after the other's replay (TensorRT-LLM #14443)",
                ),
                PlanFault::OutputReadAfterNextReplay,
            ),
            || Strike::OutputOfAnotherStep,
        ),
        "in an engine, device and twin hold the right results and only the host has the wrong \
         ones: the proof keeps it out; what slips past is the gate's to see",
    ),
    of_engine(
        of_plan(
            drill(
                "input-written-during-replay",
                "tables and ids of the running step",
                "sglang #26380 (index maps overwritten while the forward still read)",
            ),
            PlanFault::InputWrittenDuringReplay,
        ),
        || Strike::InputsOfAnotherStep,
    ),
    of_engine(
        drill(
            "top-k-tie-order",
            "which of equally good rows or tokens is taken",
            "sglang #31115, #24654; aiter #4376",
        ),
        || Strike::TiesByArrival,
    ),
    of_engine(
        of_plan(
            drill(
                "index-row-not-written",
                "selection and attention, by rows of an earlier step",
                "Mooncake #2236; sglang #27504",
            ),
            PlanFault::RowNotWritten,
        ),
        || Strike::RowNotWritten,
    ),
    beyond(
        of_engine(
            drill(
                "index-row-not-written-by-kernel",
                "selection and attention, by rows of an earlier step",
                "a kernel that is wrong wherever it runs",
            ),
            || Strike::RowNotWrittenByKernel,
        ),
        "replay and twin share it, tables and digests are of what was written: a kernel's own \
         tests and the gate's known answers are to see it",
    ),
    of_engine(
        of_plan(
            drill(
                "weights-repacked-live",
                "every request",
                "a weight buffer re-allocated or repacked after capture",
            ),
            PlanFault::WeightsRepackedLive,
        ),
        || Strike::WeightRepacked,
    ),
    of_engine(
        drill(
            "sampler-reads-another-row",
            "one request's token, by another's",
            "a gather of logits through another row",
        ),
        || Strike::SamplesAnotherRow,
    ),
    of_engine(
        drill(
            "stray-write-to-another-page",
            "another request's KV, or a cached prefix",
            "a kernel that writes past its slots",
        ),
        || Strike::StrayWrite,
    ),
    of_engine(drill("page-bit-flip", "one value of a closed page", "memory that fails"), || {
        Strike::PageBit
    }),
    of_engine(drill("weight-bit-flip", "every request, a little", "memory that fails"), || {
        Strike::WeightBit
    }),
    of_plan(
        drill(
            "lanes-wait-for-each-other",
            "nothing: the replay never ends",
            "two events that wait for each other",
        ),
        PlanFault::LanesWaitForEachOther,
    ),
];
