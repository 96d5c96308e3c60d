//! Attention against the textbook in f64, and contract 1: the same bits on every instruction set,
//! in any company, however rows are spread over tasks.

mod support;

use lockstep_device::cpu::attention::Layout;
use lockstep_device::cpu::isa::Isa;
use lockstep_plan::{AttnShape, KvDtype};
use proptest::prelude::*;
use support::{Cache, Rng};

const SMALL: AttnShape =
    AttnShape { heads: 6, kv_heads: 2, head_dim: 32, kv_dtype: KvDtype::F32, window: 0 };

const FUSED: Layout = Layout { parts: 1, rows_per_task: 1, ways: 1 };

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

fn shapes() -> impl Strategy<Value = AttnShape> {
    let window = prop_oneof![Just(0u32), 1u32..40, 200u32..600];
    let dtype = prop_oneof![Just(KvDtype::F32), Just(KvDtype::F16)];
    (1u32..=3, prop_oneof![1u32..=8, Just(13u32), Just(16u32)], 1u32..=7, dtype, window).prop_map(
        |(kv_heads, group, dim, kv_dtype, window)| AttnShape {
            heads: kv_heads * group,
            kv_heads,
            head_dim: dim * 16,
            kv_dtype,
            window,
        },
    )
}

/// Rows of a mixed step: runs of consecutive positions of some sequences.
fn rows_of(lens: &[usize], seed: u64) -> Vec<(u32, u32)> {
    let mut rng = Rng(seed * 2 + 1);
    let mut rows = Vec::new();
    for (seq, &len) in lens.iter().enumerate() {
        let n = 1 + rng.below(len.min(20) as u32);
        let first = rng.below(len as u32 - n + 1);
        rows.extend((first..first + n).map(|p| (seq as u32, p)));
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn same_bits_on_every_path_and_near_the_textbook(
        shape in shapes(),
        lens in proptest::collection::vec(1usize..700, 1..4),
        seed in 1u64..1 << 40,
    ) {
        let cache = Cache::random(shape, &lens, seed);
        let rows = rows_of(&lens, seed);
        let width = (shape.heads * shape.head_dim) as usize;
        let q = Rng(seed | 1).floats(rows.len() * width);
        let base = cache.attend(Isa::Portable, &rows, &q, FUSED);
        for (got, want) in base.iter().zip(cache.reference(&rows, &q)) {
            prop_assert!((f64::from(*got) - want).abs() < 3e-6, "{got} is not {want}");
        }
        let base = bits(&base);
        for isa in Isa::available() {
            for layout in [
                FUSED,
                Layout { parts: 1, rows_per_task: 5, ways: 1 },
                Layout { parts: 1, rows_per_task: 16, ways: 1 },
                Layout { parts: 3, rows_per_task: 1, ways: 1 },
                Layout { parts: 3, rows_per_task: 3, ways: 2 },
                Layout { parts: 8, rows_per_task: 1, ways: 8 },
            ] {
                let got = cache.attend(isa, &rows, &q, layout);
                prop_assert_eq!(&bits(&got), &base, "{:?} {:?}", isa, layout);
            }
        }
        // Each row alone, and all rows in another order.
        let isa = Isa::detect();
        for (r, row) in rows.iter().enumerate() {
            let alone = cache.attend(isa, &[*row], &q[r * width..][..width], FUSED);
            prop_assert_eq!(&bits(&alone)[..], &base[r * width..][..width]);
        }
        let order: Vec<usize> = (0..rows.len()).map(|i| (i * 7 + 3) % rows.len()).collect();
        if (0..rows.len()).all(|i| order.contains(&i)) {
            let mixed: Vec<_> = order.iter().map(|&r| rows[r]).collect();
            let mixed_q: Vec<f32> =
                order.iter().flat_map(|&r| q[r * width..][..width].to_vec()).collect();
            let layout = Layout { parts: 1, rows_per_task: 16, ways: 1 };
            let got = bits(&cache.attend(isa, &mixed, &mixed_q, layout));
            for (i, &r) in order.iter().enumerate() {
                prop_assert_eq!(&got[i * width..][..width], &base[r * width..][..width]);
            }
        }
    }
}

/// A split count taken from the longest row of the live batch changes a short row's bits (pegainfer
/// #438). Here the short row's neighbour grows from 10 to 2,000 tokens.
#[test]
fn a_long_neighbour_changes_no_bits() {
    let short = |neighbour: usize| {
        let cache = Cache::random(SMALL, &[300, neighbour], 5);
        let rows = [(0, 299), (1, neighbour as u32 - 1)];
        let q = Rng(9).floats(2 * 192);
        let out = cache.attend(Isa::detect(), &rows, &q, Layout::of(&SMALL, 2, 4096));
        bits(&out[..192])
    };
    assert_eq!(short(10), short(300));
    assert_eq!(short(10), short(2000));
}

/// The tail of a sequence's last page, and positions that a row does not see, hold anything at
/// all: here NaN.
#[test]
fn poison_behind_the_last_position_is_never_read() {
    let cache = Cache::random(SMALL, &[37], 3);
    let q = Rng(4).floats(5 * 192);
    let rows: Vec<_> = (32..37).map(|p| (0, p)).collect();
    for isa in Isa::available() {
        let out = cache.attend(isa, &rows, &q, Layout { parts: 1, rows_per_task: 5, ways: 1 });
        assert!(out.iter().all(|x| x.is_finite()), "{isa:?}");
    }
}

/// A later token of the same chunk that overflows must not reach an earlier row, as it would not
/// where the chunk ends between them.
#[test]
fn an_infinite_value_later_in_the_chunk_stays_there() {
    let shape = AttnShape { kv_dtype: KvDtype::F16, ..SMALL };
    let mut cache = Cache::random(shape, &[40], 3);
    let q = Rng(4).floats(3 * 192);
    let rows = [(0, 36), (0, 37), (0, 38)];
    let layout = Layout { parts: 1, rows_per_task: 4, ways: 1 };
    let before = cache.attend(Isa::detect(), &rows, &q, layout);
    // Position 38 lies in the second page; every channel of its V row becomes infinite.
    let (page, offset) = (cache.table[1] as usize, 38 % support::PAGE);
    for head in 0..2 {
        let row = ((page * 2 + head) * support::PAGE + offset) * 32;
        for d in 0..32 {
            cache.v_pages[(row + d) * 2..][..2].copy_from_slice(&0x7c00u16.to_le_bytes());
        }
    }
    let after = cache.attend(Isa::detect(), &rows, &q, layout);
    assert_eq!(bits(&before[..2 * 192]), bits(&after[..2 * 192]));
    assert!(after[2 * 192..].iter().all(|x| !x.is_finite()));
    // NaNs in K reach the row that sees them, as the one quiet NaN on every path.
    for element in cache.k_pages.as_chunks_mut::<2>().0.iter_mut().step_by(3) {
        *element = 0x7d55u16.to_le_bytes();
    }
    for isa in Isa::available() {
        let out = cache.attend(isa, &rows, &q, layout);
        assert!(out.iter().all(|x| x.to_bits() == f32::NAN.to_bits()), "{isa:?}");
    }
}

#[test]
fn layouts_follow_shapes() {
    let shape = AttnShape { heads: 9, kv_heads: 3, head_dim: 64, ..SMALL };
    assert_eq!(Layout::of(&shape, 1, 8192), Layout { parts: 32, rows_per_task: 1, ways: 16 });
    assert_eq!(Layout::of(&shape, 16, 8192), Layout { parts: 1, rows_per_task: 1, ways: 1 });
    assert_eq!(Layout::of(&shape, 512, 8192), Layout { parts: 1, rows_per_task: 16, ways: 1 });
    assert_eq!(Layout::of(&shape, 1, 100), Layout { parts: 1, rows_per_task: 1, ways: 1 });
}
