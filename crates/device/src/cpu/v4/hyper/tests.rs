//! Rows together beside rows alone, on every instruction set.

use super::super::super::lanes::isas;
use super::super::tests::noise;
use super::*;

/// Normed rows and mixes of a bucket of `rows` rows.
fn computed(isa: Isa, rows: usize, (streams, dim): (usize, usize), head: bool) -> [Vec<f32>; 2] {
    let outputs = if head { streams } else { 2 * streams + streams * streams };
    let width = streams * dim;
    let x = noise(40 * width, 1);
    let (projection, base) = (noise(outputs * width, 2), noise(outputs, 3));
    let (scale, norm) = (noise(3, 4), noise(dim, 5));
    let mut out = vec![f32::NAN; rows * dim];
    let mut mix = vec![f32::NAN; rows * (streams + streams * streams)];
    let op = HyperIn {
        isa,
        rows: rows as u32,
        streams,
        dim,
        iters: 20,
        hyper_eps: 1e-6,
        norm_eps: 1e-6,
        x: x.as_ptr(),
        row_index: core::ptr::null(),
        projection: projection.as_ptr(),
        base: base.as_ptr(),
        scale: scale.as_ptr(),
        norm: norm.as_ptr(),
        out: out.as_mut_ptr(),
        mix: if head { core::ptr::null_mut() } else { mix.as_mut_ptr() },
    };
    for task in 0..op.tasks() {
        // SAFETY: the vectors have the rows that the fields name.
        unsafe { op.run(task, rows as u32) };
    }
    [out, mix]
}

/// The first rows of `most` are those of `some`.
fn assert_same(some: &[Vec<f32>; 2], most: &[Vec<f32>; 2], how: &str) {
    for (some, most) in some.iter().zip(most) {
        let same = some.iter().zip(most).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{how}");
    }
}

#[test]
fn rows_that_share_a_task_have_the_bits_of_rows_alone() {
    // Widths of a part of a stretch, of one, of one and a part, and of four.
    let wide = [(4, 320), (3, 352), (1, 1024), (1, 1040), (4, 1024)];
    for shape in [(4, 64), (2, 48), (3, 16), (1, 32)].into_iter().chain(wide) {
        for head in [false, true] {
            let want = computed(Isa::Portable, 40, shape, head);
            for isa in isas() {
                let most = computed(isa, 40, shape, head);
                for rows in [1, 3, 7, 9, 12, 17, 20, 28, 33] {
                    let some = computed(isa, rows, shape, head);
                    assert_same(&some, &most, &format!("{isa}, {shape:?}, {rows} rows"));
                }
                assert_same(&want, &most, &format!("{isa}, {shape:?}"));
            }
        }
    }
}
