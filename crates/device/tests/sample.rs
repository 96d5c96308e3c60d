//! Sampling against an oracle that sorts, and contract 1: a row's choice depends on that row.

mod support;

use lockstep_device::cpu::isa::Isa;
use lockstep_device::cpu::math::exp;
use lockstep_device::cpu::sample::{
    BiasEntry, Sample, SampleParams, SampleResult, SampleStatus, philox, scratch_bytes,
};
use lockstep_flow::limits::{LOGIT_BIAS_MAX, TOP_LOGPROBS_MAX};
use lockstep_flow::{SamplingParams, Seed, Token};
use proptest::prelude::*;
use support::{PAGE, Rng};

/// One row of a step.
#[derive(Clone, Debug)]
struct Case {
    logits: Vec<f32>,
    params: SampleParams,
    mask: Vec<u32>,
    bias: Vec<(u32, f32)>,
    history: Vec<u32>,
}

impl Case {
    fn new(logits: Vec<f32>, params: SamplingParams) -> Case {
        let params = SampleParams::of(&params, 0, 1, false);
        let mask = vec![u32::MAX; logits.len().div_ceil(32)];
        Case { logits, params, mask, bias: Vec::new(), history: vec![0] }
    }

    fn with_history(mut self, prompt: &[u32], output: &[u32]) -> Case {
        self.history = [prompt, output].concat();
        self.params.prompt_len = prompt.len() as u32;
        self.params.position = self.history.len() as u32 - 1;
        self
    }

    fn with_bias(mut self, bias: &[(u32, f32)]) -> Case {
        self.bias = bias.to_vec();
        self.params.bias_count = bias.len() as u32;
        self
    }

    fn with_mask(mut self, allowed: impl Fn(u32) -> bool) -> Case {
        self.mask.fill(0);
        for t in (0..self.logits.len() as u32).filter(|&t| allowed(t)) {
            self.mask[t as usize / 32] |= 1 << (t % 32);
        }
        self.params.masked = 1;
        self
    }

    fn run(&self) -> SampleResult {
        run(Isa::detect(), core::slice::from_ref(self)).0[0]
    }
}

/// Runs the rows as one step; gives results and last tokens. Row r has slot r + 1.
fn run(isa: Isa, cases: &[Case]) -> (Vec<SampleResult>, Vec<u32>) {
    let vocab = cases[0].logits.len();
    let rows = cases.len();
    let words = vocab.div_ceil(32);
    let stride = vocab + 3;
    let per_seq = cases.iter().map(|c| c.history.len().div_ceil(PAGE)).max().unwrap() + 1;
    let mut logits = vec![f32::NAN; rows * stride];
    let mut masks = vec![0u32; rows * words];
    let mut bias = vec![BiasEntry { token: 0, bias: f32::NAN }; rows * LOGIT_BIAS_MAX];
    let mut table = vec![u32::MAX; rows * per_seq];
    let mut pages = vec![u32::MAX; (rows * per_seq + 1) * PAGE];
    let params: Vec<SampleParams> = cases.iter().map(|c| c.params).collect();
    for (r, c) in cases.iter().enumerate() {
        logits[r * stride..][..vocab].copy_from_slice(&c.logits);
        masks[r * words..][..words].copy_from_slice(&c.mask);
        for (entry, &(token, bias)) in bias[r * LOGIT_BIAS_MAX..].iter_mut().zip(&c.bias) {
            *entry = BiasEntry { token, bias };
        }
        for (position, &token) in c.history.iter().enumerate() {
            let page = rows * per_seq - (r * per_seq + position / PAGE);
            table[r * per_seq + position / PAGE] = page as u32;
            pages[page * PAGE + position % PAGE] = token;
        }
    }
    // Rows of the step are in the reverse order of the sequences.
    let logit_rows: Vec<u32> = (0..rows as u32).rev().collect();
    let token_seq: Vec<u32> = (0..rows as u32).rev().collect();
    let slots: Vec<u32> = (1..=rows as u32).collect();
    let mut last = vec![77u32; rows + 1];
    let mut scratch = vec![u32::MAX; rows * scratch_bytes(vocab as u32) as usize / 4];
    let blank = SampleResult {
        token: 9999,
        status: 9999,
        logprob: 0.0,
        top_count: 9999,
        top_ids: [0; TOP_LOGPROBS_MAX],
        top_logprobs: [0.0; TOP_LOGPROBS_MAX],
    };
    let mut results = vec![blank; rows];
    let op = Sample {
        isa,
        rows: rows as u32,
        vocab: vocab as u32,
        logits: logits.as_ptr(),
        logits_stride: stride,
        params: params.as_ptr(),
        logit_rows: logit_rows.as_ptr(),
        logit_slots: slots.as_ptr(),
        token_seq: token_seq.as_ptr(),
        masks: masks.as_ptr(),
        mask_stride: words,
        bias: bias.as_ptr(),
        block_table: table.as_ptr(),
        table_stride: per_seq,
        token_pages: pages.as_ptr(),
        last_token: last.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
        results: results.as_mut_ptr(),
    };
    for task in 0..op.tasks() {
        // SAFETY: every table has a row for each case.
        unsafe { op.run(task, rows as u32) };
    }
    (results, last)
}

/// The definition by sorting, in scalar code that shares only `exp` and `philox` with the kernel.
fn oracle(c: &Case) -> Result<u32, SampleStatus> {
    let p = &c.params;
    let mut x = c.logits.clone();
    for (t, x) in x.iter_mut().enumerate() {
        let is = |h: &&u32| **h as usize == t;
        let seen = c.history.iter().any(|h| h as &u32 == &(t as u32));
        let count = c.history[p.prompt_len as usize..].iter().filter(is).count();
        if seen {
            let r = p.repetition_penalty;
            *x = if *x > 0.0 { *x / r } else { *x * r };
        }
        if count > 0 {
            *x = *x - count as f32 * p.frequency_penalty - p.presence_penalty;
        }
    }
    for &(t, b) in &c.bias {
        if (t as usize) < x.len() {
            x[t as usize] += b;
        }
    }
    if p.masked != 0 {
        for (t, x) in x.iter_mut().enumerate() {
            if c.mask[t / 32] >> (t % 32) & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    let m = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if m == f32::NEG_INFINITY {
        return Err(SampleStatus::NothingAllowed);
    }
    if p.temperature == 0.0 || p.top_k == 1 {
        return Ok(x.iter().position(|v| *v == m).unwrap() as u32);
    }
    let inverse = (1.0 / p.temperature).min(f32::MAX);
    let q: Vec<u64> = x
        .iter()
        .map(|x| (exp((x - m) * inverse) * (1u32 << 30) as f32).round_ties_even() as u64)
        .collect();
    let mut order: Vec<usize> = (0..q.len()).filter(|&t| q[t] > 0).collect();
    order.sort_by_key(|&t| (core::cmp::Reverse(q[t]), t));
    if p.top_k > 0 {
        order.truncate(p.top_k as usize);
    }
    if p.top_p < 1.0 {
        let all: u64 = order.iter().map(|&t| q[t]).sum();
        let need = (f64::from(p.top_p) * all as f64).ceil() as u64;
        let mut sum = 0;
        let enough = order.iter().position(|&t| {
            sum += q[t];
            sum >= need
        });
        order.truncate(enough.unwrap() + 1);
    }
    let least = (f64::from(p.min_p) * f64::from(1u32 << 30)).ceil() as u64;
    order.retain(|&t| q[t] >= least);
    order.sort_unstable();
    let mass: u64 = order.iter().map(|&t| q[t]).sum();
    let [low, high, ..] = philox([p.position + 1, p.choice, 0, 0], [p.seed_low, p.seed_high]);
    let uniform = u128::from(high) << 32 | u128::from(low);
    let mut left = ((uniform * u128::from(mass)) >> 64) as u64;
    for t in order {
        if left < q[t] {
            return Ok(t as u32);
        }
        left -= q[t];
    }
    panic!("the oracle drew past its mass");
}

fn check(c: &Case, got: &SampleResult) {
    match oracle(c) {
        Ok(token) => {
            assert_eq!(got.status, SampleStatus::Ok as u32, "{:?}", c.params);
            assert_eq!(got.token, token, "{:?}", c.params);
        }
        Err(status) => assert_eq!(got.status, status as u32),
    }
    let m = c.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = c.logits.iter().map(|&x| f64::from(x - m).exp()).sum();
    let logprob = |t: u32| f64::from(c.logits[t as usize]) - f64::from(m) - sum.ln();
    if got.status != 0 || c.params.logprobs < 0 {
        assert!(got.logprob.is_nan() && got.top_count == 0);
        return;
    }
    assert!((f64::from(got.logprob) - logprob(got.token)).abs() < 2e-6 * (1.0 + sum.ln()));
    let mut order: Vec<u32> = (0..c.logits.len() as u32).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (c.logits[a as usize], c.logits[b as usize]);
        y.partial_cmp(&x).unwrap().then(a.cmp(&b))
    });
    let finite = c.logits.iter().filter(|x| x.is_finite()).count();
    let n = (c.params.logprobs as usize).min(finite);
    assert_eq!(got.top_count as usize, n);
    assert_eq!(got.top_ids[..n], order[..n]);
    for (got, &token) in got.top_logprobs[..n].iter().zip(&order) {
        assert!((f64::from(*got) - logprob(token)).abs() < 1e-4);
    }
}

/// A result as words: NaN log-probabilities compare as bits.
fn words(r: &SampleResult) -> Vec<u32> {
    let mut w = vec![r.token, r.status, r.logprob.to_bits(), r.top_count];
    w.extend(r.top_ids);
    w.extend(r.top_logprobs.map(f32::to_bits));
    w
}

fn random_case(vocab: usize, seed: u64) -> Case {
    let mut rng = Rng(seed * 2 + 1);
    let scale = [0.0, 0.01, 1.0, 5.0, 30.0][rng.below(5) as usize];
    // Coarse steps make ties, which the order by id has to break.
    let step = [0.0, 0.5][rng.below(2) as usize];
    let logits = (0..vocab).map(|_| {
        let x = rng.float() * scale;
        if step > 0.0 { (x / step).round() * step } else { x }
    });
    let logits: Vec<f32> = logits.collect();
    let pick = |rng: &mut Rng, of: &[f32]| of[rng.below(of.len() as u32) as usize];
    let params = SamplingParams {
        temperature: pick(&mut rng, &[0.0, 1e-30, 0.2, 0.7, 1.0, 1.0, 2.0, 100.0]),
        top_k: [0, 0, 1, 2, 5, 40, vocab as u32, u32::MAX][rng.below(8) as usize],
        top_p: pick(&mut rng, &[1.0, 1.0, 1e-6, 0.1, 0.5, 0.9, 0.999_999]),
        min_p: pick(&mut rng, &[0.0, 0.0, 0.05, 0.5, 1.0]),
        repetition_penalty: pick(&mut rng, &[1.0, 1.0, 1.3, 0.5]),
        presence_penalty: pick(&mut rng, &[0.0, 0.0, 0.6, -1.5]),
        frequency_penalty: pick(&mut rng, &[0.0, 0.0, 0.2, -0.7]),
        seed: Seed(rng.next()),
        choice: rng.below(3),
        logprobs: [None, Some(0), Some(1), Some(20)][rng.below(4) as usize],
        ..SamplingParams::default()
    };
    let mut tokens = |n: u32| -> Vec<u32> {
        let n = 1 + rng.below(n);
        (0..n).map(|_| rng.below(vocab as u32)).collect()
    };
    let (prompt, output) = (tokens(90), tokens(70));
    let case = Case::new(logits, params).with_history(&prompt, &output);
    let case = match rng.below(3) {
        0 => case.with_bias(&[(3, 2.5), (rng.below(vocab as u32), -100.0), (1 << 30, 1.0)]),
        _ => case,
    };
    match rng.below(4) {
        0 => case.with_mask(|t| t % 3 == 1),
        1 => case.with_mask(|t| t / 40 % 2 == 0),
        _ => case,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn choices_are_those_of_the_sorting_oracle_on_every_path(
        vocab in prop_oneof![1usize..70, 500usize..9000],
        seed in 1u64..1 << 40,
        rows in 1usize..5,
    ) {
        let cases: Vec<Case> = (0..rows).map(|r| random_case(vocab, seed * 8 + r as u64)).collect();
        let (base, last) = run(Isa::Portable, &cases);
        for (r, (case, got)) in cases.iter().zip(&base).enumerate() {
            check(case, got);
            prop_assert_eq!(last[r + 1], got.token);
        }
        prop_assert_eq!(last[0], 77, "slot 0 keeps nothing");
        for isa in Isa::available() {
            let (got, _) = run(isa, &cases);
            for (got, base) in got.iter().zip(&base) {
                prop_assert_eq!(words(got), words(base), "{:?}", isa);
            }
        }
        // In another company, a row chooses the same.
        for (case, base) in cases.iter().zip(&base) {
            prop_assert_eq!(words(&case.run()), words(base));
        }
    }
}

/// Draws over many positions follow the softmax: chi-square with a fixed seed, 49 degrees of
/// freedom, whose 99.99% quantile is 96.
#[test]
fn draws_follow_the_distribution() {
    let logits = Rng(11).floats(50).iter().map(|x| x * 2.0).collect::<Vec<_>>();
    for temperature in [0.6f32, 1.0, 1.7] {
        let params = SamplingParams { temperature, seed: Seed(42), ..SamplingParams::default() };
        let draws = 20_000;
        let mut counts = [0u32; 50];
        let mut case = Case::new(logits.clone(), params);
        for position in 0..draws {
            case.params.position = position;
            counts[case.run().token as usize] += 1;
        }
        let weights: Vec<f64> =
            logits.iter().map(|&x| (f64::from(x) / f64::from(temperature)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let chi: f64 = counts
            .iter()
            .zip(&weights)
            .map(|(&n, w)| {
                let expected = f64::from(draws) * w / sum;
                (f64::from(n) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < 96.0 && chi > 15.0, "chi-square {chi} at temperature {temperature}");
    }
}

#[test]
fn a_draw_depends_on_seed_choice_and_position_alone() {
    let params = SamplingParams { seed: Seed(7), ..SamplingParams::default() };
    let base = Case::new(vec![0.0; 4096], params);
    let token = |f: &dyn Fn(&mut SampleParams)| {
        let mut case = base.clone();
        f(&mut case.params);
        case.run().token
    };
    let first = token(&|_| {});
    assert_eq!(first, token(&|_| {}));
    assert_ne!(first, token(&|p| p.position = 1));
    assert_ne!(first, token(&|p| p.choice = 1));
    assert_ne!(first, token(&|p| p.seed_low = 8));
    assert_ne!(first, token(&|p| p.seed_high = 1));
}

#[test]
fn greedy_ties_go_to_the_lowest_id() {
    let mut logits = vec![-1.0; 100];
    (logits[63], logits[17], logits[90]) = (2.0, 2.0, 2.0);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    assert_eq!(Case::new(logits, greedy.clone()).run().token, 17);
    // Zeros of either sign are equal.
    assert_eq!(Case::new(vec![-1.0, -0.0, 0.0], greedy).run().token, 1);
}

#[test]
fn broken_logits_give_a_status_and_no_panic() {
    for temperature in [0.0, 1.0] {
        let params = || SamplingParams { temperature, logprobs: Some(5), ..Default::default() };
        for (bad, at) in [(f32::NAN, 0), (f32::NAN, 40), (f32::INFINITY, 16), (-f32::NAN, 46)] {
            let mut logits = vec![0.5; 47];
            logits[at] = bad;
            for isa in Isa::available() {
                let (results, last) = run(isa, &[Case::new(logits.clone(), params())]);
                assert_eq!(results[0].status, SampleStatus::NotFinite as u32, "{bad} at {at}");
                assert_eq!((results[0].token, last[1]), (0, 0));
            }
        }
        let all_masked = Case::new(vec![0.5; 47], params()).with_mask(|_| false);
        assert_eq!(all_masked.run().status, SampleStatus::NothingAllowed as u32);
        let nothing = Case::new(vec![f32::NEG_INFINITY; 47], params());
        assert_eq!(nothing.run().status, SampleStatus::NothingAllowed as u32);
        let overflow = Case::new(vec![3e38; 47], params()).with_bias(&[(3, 3e38)]);
        assert_eq!(overflow.run().status, SampleStatus::NotFinite as u32);
    }
}

#[test]
fn echo_reports_a_target_and_leaves_the_slot_alone() {
    let logits = Rng(3).floats(300);
    let mut case = Case::new(logits.clone(), SamplingParams::default());
    case.params = SampleParams::report(123, 2);
    let (results, last) = run(Isa::detect(), &[case.clone()]);
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    assert_eq!((results[0].token, results[0].status, results[0].top_count), (123, 0, 2));
    assert!((f64::from(results[0].logprob) - (f64::from(logits[123]) - sum.ln())).abs() < 1e-6);
    assert_eq!(last[1], 77);
    case.params = SampleParams::report(300, 2);
    assert_eq!(case.run().status, SampleStatus::BadTarget as u32);
}

#[test]
fn bias_and_params_are_written_as_the_kernel_reads_them() {
    let params = SamplingParams {
        temperature: 0.0,
        logit_bias: vec![(Token(5), 100.0), (Token(9), -3.0)],
        seed: Seed(0x1234_5678_9abc_def0),
        ..SamplingParams::default()
    };
    let mut row = [BiasEntry { token: 1, bias: 0.0 }; 3];
    BiasEntry::fill(&params, &mut row);
    assert_eq!(row[0], BiasEntry { token: 5, bias: 100.0 });
    assert_eq!(row[2], BiasEntry { token: 1, bias: 0.0 });
    let p = SampleParams::of(&params, 8, 3, true);
    assert_eq!((p.seed_low, p.seed_high), (0x9abc_def0, 0x1234_5678));
    assert_eq!((p.bias_count, p.position, p.prompt_len, p.masked, p.target), (2, 8, 3, 1, -1));
    let case = Case::new(vec![0.0; 16], params).with_bias(&[(5, 100.0), (9, -3.0)]);
    assert_eq!(case.run().token, 5);
}
