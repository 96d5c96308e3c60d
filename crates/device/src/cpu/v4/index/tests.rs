//! Scores beside their definition, and selections beside a sort.

use super::super::super::lanes::isas;
use super::super::code::RowCodec;
use super::super::tests::noise;
use super::*;
use lockstep_plan::RowCode;

fn selected(scores: &[f32], k: usize) -> Vec<u32> {
    let of = |isa| {
        let mut out = vec![0; k];
        // SAFETY: the instruction set is there.
        unsafe { select(isa, scores, &mut out) };
        out
    };
    let all: Vec<_> = isas().into_iter().map(of).collect();
    assert!(all.windows(2).all(|w| w[0] == w[1]), "every instruction set selects the same");
    all[0].clone()
}

#[test]
fn ties_go_to_the_lowest_rows_and_nan_to_none() {
    assert_eq!(selected(&[0.0, 1.0, 1.0, 1.0, 0.5], 2), [1, 2]);
    assert_eq!(selected(&[-0.0, 0.0, -1.0, 0.0], 2), [0, 1]);
    assert_eq!(selected(&[f32::NAN, -5.0, f32::NEG_INFINITY, f32::NAN], 2), [1, 2]);
    assert_eq!(selected(&[f32::NAN, f32::NAN, f32::NAN], 2), [0, 1]);
}

#[test]
fn selection_is_that_of_a_stable_sort() {
    let mut state = 9u64;
    let sizes = (50..250).chain([2048, 9000]);
    for size in sizes {
        let scores: Vec<f32> = (0..size)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Few distinct values, so that there are ties.
                ((state >> 33) % 23) as f32 - 11.0
            })
            .collect();
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        let mut want = order[..17].to_vec();
        want.sort_unstable();
        assert_eq!(selected(&scores, 17), want);
    }
}

/// The definition of a score, in scalar code.
fn defined(q: &[f32], weights: &[f32], key: &[f32]) -> f32 {
    let root = |n: usize| (1.0 / (n as f64).sqrt()) as f32;
    let mut lanes = [0f32; 16];
    for head in 0..weights.len().next_multiple_of(16) {
        let (mut dot, mut weight) = (0f32, 0f32);
        if let Some(w) = weights.get(head) {
            let q = &q[head * key.len()..][..key.len()];
            dot = q.iter().zip(key).fold(0.0, |dot, (q, k)| k.mul_add(*q, dot));
            weight = w * root(weights.len());
        }
        let positive = if dot > 0.0 { dot } else { 0.0 };
        let share = positive * root(key.len());
        lanes[head % 16] = weight.mul_add(share, lanes[head % 16]);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

#[test]
fn scores_of_every_instruction_set_and_split_follow_the_definition() {
    // Heads that fill no vector or no tile; keys that fill no block.
    let shapes = [(1, 16), (16, 32), (20, 16), (32, 48), (40, 16), (48, 32), (50, 16), (64, 128)];
    for (n, (heads, dim)) in shapes.into_iter().enumerate() {
        for closed in [1usize, 5, 64, 130, 263] {
            let tokens = (4 * closed).next_multiple_of(32);
            let seed = 100 * n as u32 + closed as u32;
            // The row before has no key that is closed.
            let (row, rows_max) = (1, 300);
            let q = noise(2 * heads * dim, seed + 1);
            let weights = noise(2 * heads, seed + 2);
            let mut keys = noise(tokens / 4 * dim, seed + 3);
            let code = if n % 2 == 0 { RowCode::F32 } else { RowCode::Bf16 };
            let codec = RowCodec { code, dim };
            let mut kept = vec![0u32; tokens / 4 * codec.row_bytes() / 4];
            for (i, key) in keys.chunks_mut(dim).enumerate() {
                let place = kept.as_mut_ptr().cast::<u8>().wrapping_add(i * codec.row_bytes());
                // SAFETY: there is room for every key.
                unsafe {
                    codec.encode(key, place);
                    codec.decode(place, key.as_mut_ptr());
                }
            }
            let table: Vec<u32> = (0..tokens as u32 / 32).collect();
            let (positions, seqs) = ([0, 4 * closed as u32 - 1], [0, 0]);
            let want: Vec<f32> = keys
                .chunks(dim)
                .take(closed)
                .map(|key| defined(&q[heads * dim..], &weights[heads..], key))
                .collect();
            for (isa, rows) in isas().into_iter().flat_map(|isa| [(isa, 2), (isa, 64)]) {
                let mut scores = vec![f32::NAN; 2 * rows_max];
                let op = IndexScores {
                    isa,
                    rows,
                    heads,
                    dim,
                    topk: 0,
                    q: q.as_ptr(),
                    weights: weights.as_ptr(),
                    keys: PagedRows { pages: kept.as_ptr().cast_mut().cast(), codec, ratio: 4 },
                    tables: Tables {
                        positions: positions.as_ptr(),
                        token_seq: seqs.as_ptr(),
                        block_table: table.as_ptr(),
                        stride: table.len(),
                    },
                    scores: scores.as_mut_ptr(),
                    rows_max,
                };
                // In any order: tasks know nothing of each other.
                for task in (0..op.tasks()).rev() {
                    // SAFETY: the vectors have the two live rows that the fields name.
                    unsafe { op.run(task, 2) };
                }
                let got = &scores[row * rows_max..][..closed];
                let same = want.iter().zip(got).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{isa}, {heads} heads of {dim}, {closed} keys, {rows} rows");
                assert!(scores[row * rows_max + closed..].iter().all(|s| s.is_nan()));
            }
        }
    }
}
