//! Rows beside each other, and alone.

use super::super::super::lanes::isas;
use super::super::super::tile::repack;
use super::*;
use lockstep_plan::format::Format;

const EXPERTS: usize = 3;
const PER_TOKEN: usize = 2;
/// One pair of tiles and a tile.
const N: usize = 48;
/// Odd, so that a tile is padded.
const K: usize = 81;
/// Some experts have more rows than a kernel call, some of those a part of one more.
const ROWS_ALL: usize = 70;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

fn noise(i: usize) -> f32 {
    (i.wrapping_mul(2_654_435_761) % 1999) as f32 / 999.0 - 1.0
}

fn packed(desc: &PackedMatrix, seed: usize) -> Vec<Line> {
    let bf16 = |i: usize| ((noise(i + seed).to_bits() >> 16) as u16).to_le_bytes();
    let source: Vec<u8> = (0..EXPERTS * N * K).flat_map(bf16).collect();
    let mut bytes = vec![0; desc.bytes()];
    repack(desc, &source, &mut bytes).unwrap();
    let line = |c: &[u8]| Line(core::array::from_fn(|i| c.get(i).copied().unwrap_or(0)));
    bytes.chunks(64).map(line).collect()
}

#[test]
fn an_expert_s_rows_have_the_bits_of_rows_alone() {
    let desc = PackedMatrix::plan(Format::BF16, EXPERTS * N, K).unwrap();
    let (gate, up) = (packed(&desc, 1), packed(&desc, 7));
    let x: Vec<f32> = (0..ROWS_ALL * PER_TOKEN * K).map(|i| noise(3 * i)).collect();
    // The first expert has most of them.
    let of = |i: usize| if i.is_multiple_of(5) { 1 + i as u32 / 5 % 2 } else { 0 };
    let chosen: Vec<u32> = (0..ROWS_ALL * PER_TOKEN).map(of).collect();
    for isa in isas() {
        let run = |first: usize, rows: usize, down: bool| -> Vec<u32> {
            let mut out = vec![f32::NAN; rows * PER_TOKEN * N];
            let product = Product {
                isa,
                rows: rows as u32,
                per_token: PER_TOKEN,
                experts: EXPERTS,
                desc,
                weights: gate.as_ptr().cast(),
                chosen: chosen[first * PER_TOKEN..].as_ptr(),
                x: x[first * PER_TOKEN * K..].as_ptr(),
                x_row: PER_TOKEN * K,
                x_choice: if down { K } else { 0 },
                out: out.as_mut_ptr(),
            };
            for task in 0..product.tasks() {
                // SAFETY: the vectors have the rows that the fields name.
                unsafe {
                    match down {
                        true => ExpertDown(product).run(task, rows as u32),
                        false => {
                            let up = up.as_ptr().cast();
                            ExpertUp { product, up, limit: 1.5 }.run(task, rows as u32);
                        }
                    }
                }
            }
            out.into_iter().map(f32::to_bits).collect()
        };
        for down in [false, true] {
            let together = run(0, ROWS_ALL, down);
            let alone: Vec<u32> = (0..ROWS_ALL).flat_map(|row| run(row, 1, down)).collect();
            assert_eq!(together, alone, "{isa}, down {down}");
            assert!(!together.contains(&f32::NAN.to_bits()), "every choice has its products");
        }
    }
}
