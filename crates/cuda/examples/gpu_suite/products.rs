//! Matrix products alone: right against f64, the same bits for every number of rows, and fast.

use crate::Table;
use crate::bed::{Rng, gpu};
use lockstep_cuda::{CudaBackend, Probe};
use lockstep_device::{Device, ExecId};
use lockstep_flow::{BucketKey, Lease};
use lockstep_plan::format::{Format, decode_blocks};
use lockstep_plan::{
    Axis, Backend, BufferKind, Elem, Epilogue, Gemm, GemmPart, LaneId, OpKind, PaddingPolicy,
    PlanBuilder, StepPlan, WeightData, pack, prove, seeded, unit_scale,
};
use std::sync::Arc;

/// Bytes a second that a copy moves on an H200, reads and writes together.
const BANDWIDTH: f64 = 4.35e12;

/// Rows whose bits are compared.
const ROWS: [u32; 32] = [
    1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 40, 48, 49, 63, 64, 65, 80, 95, 96, 97, 112,
    127, 128, 256, 257, 1000, 2144, 4096,
];

/// Rows that are timed.
const TIMED: [u32; 10] = [1, 8, 32, 64, 96, 256, 512, 1024, 2048, 4096];

/// A product: parts of equal input, gated or not.
struct Product {
    name: &'static str,
    n: &'static [u32],
    k: u32,
    gated: bool,
    /// The product is added to itself, as to a residual.
    added: bool,
    /// Of each part; bf16 where there is none.
    formats: &'static [Format],
}

const BF16: &[Format] = &[];

/// Those of the Qwen3-8B shape, some of the 0.6B shape, and ends that are no whole tile.
const PRODUCTS: [Product; 16] = [
    Product {
        name: "8B qkv",
        n: &[4096, 1024, 1024],
        k: 4096,
        gated: false,
        added: false,
        formats: BF16,
    },
    Product { name: "8B o", n: &[4096], k: 4096, gated: false, added: false, formats: BF16 },
    Product {
        name: "8B gate+up",
        n: &[12288, 12288],
        k: 4096,
        gated: true,
        added: false,
        formats: BF16,
    },
    Product { name: "8B down", n: &[4096], k: 12288, gated: false, added: false, formats: BF16 },
    Product {
        name: "0.6B qkv",
        n: &[2048, 1024, 1024],
        k: 1024,
        gated: false,
        added: false,
        formats: BF16,
    },
    Product {
        name: "0.6B gate+up",
        n: &[3072, 3072],
        k: 1024,
        gated: true,
        added: false,
        formats: BF16,
    },
    Product { name: "0.6B down", n: &[1024], k: 3072, gated: false, added: false, formats: BF16 },
    Product { name: "8B o, added", n: &[4096], k: 4096, gated: false, added: true, formats: BF16 },
    Product { name: "odd, added", n: &[1000], k: 576, gated: false, added: true, formats: BF16 },
    Product { name: "odd", n: &[200, 24, 56], k: 576, gated: false, added: false, formats: BF16 },
    Product {
        name: "odd gate+up",
        n: &[1000, 1000],
        k: 192,
        gated: true,
        added: false,
        formats: BF16,
    },
    Product {
        name: "8B gate+up Q8_0",
        n: &[12288, 12288],
        k: 4096,
        gated: true,
        added: false,
        formats: &[Format::Q8_0; 2],
    },
    Product {
        name: "8B gate+up Q4_1",
        n: &[12288, 12288],
        k: 4096,
        gated: true,
        added: false,
        formats: &[Format::Q4_1; 2],
    },
    Product {
        name: "8B down Q8_0",
        n: &[4096],
        k: 12288,
        gated: false,
        added: false,
        formats: &[Format::Q8_0],
    },
    Product {
        name: "8B down Q4_0",
        n: &[4096],
        k: 12288,
        gated: false,
        added: false,
        formats: &[Format::Q4_0],
    },
    Product {
        name: "odd Q4_1, Q6_K and Q8_0",
        n: &[200, 24, 56],
        k: 768,
        gated: false,
        added: false,
        formats: &[Format::Q4_1, Format::Q6_K, Format::Q8_0],
    },
];

struct Alone(BucketKey);

impl Lease for Alone {
    fn bucket(&self) -> BucketKey {
        self.0
    }
    fn step(&self) -> u64 {
        1
    }
}

impl Product {
    fn weight(&self, layer: u32, part: usize) -> String {
        format!("layers.{layer}.{}.{part}", self.name)
    }

    fn format(&self, part: usize) -> Format {
        self.formats.get(part).copied().unwrap_or(Format::BF16)
    }

    /// The bytes of a part that is not bf16, as a file has them: any codes, scales as of weights.
    fn file_bytes(&self, part: usize) -> Vec<u8> {
        let format = self.format(part);
        let elems = u64::from(self.n[part]) * u64::from(self.k);
        let size = format.bytes_for(elems).expect("whole blocks") as usize;
        let mut rng = Rng(0xb17e5 + part as u64);
        let mut bytes: Vec<u8> = (0..size.div_ceil(4)).flat_map(|_| rng.word()).collect();
        bytes.truncate(size);
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            // Where the scales of these formats stand, and how large their codes are.
            let (at, most): (&[usize], f32) = match format {
                Format::Q6_K => (&[208], 32.0 * 127.0),
                Format::Q4_1 => (&[0, 2], 15.0),
                Format::Q4_0 => (&[0], 8.0),
                _ => (&[0], 127.0),
            };
            for &at in at {
                let scale = half::f16::from_f32(unit_scale(self.k) / most);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes
    }

    /// Bytes of the matrices on the GPU.
    fn weight_bytes(&self) -> u64 {
        let backend = CudaBackend::default();
        let of = |(part, &n)| backend.matrix_bytes(self.format(part), n, self.k).expect("a shape");
        self.n.iter().enumerate().map(of).sum()
    }

    /// A row of weights as they are multiplied.
    fn row(&self, part: usize, n: u32, bytes: &[u8]) -> Vec<f64> {
        let (format, k) = (self.format(part), self.k as usize);
        if format == Format::BF16 {
            let at = u64::from(n) * k as u64;
            let w = |i: usize| f64::from(seeded(part as u64, at + i as u64, unit_scale(self.k)));
            return (0..k).map(w).collect();
        }
        let row_bytes = bytes.len() / self.n[part] as usize;
        let mut values = vec![0f32; k];
        decode_blocks(format, &bytes[n as usize * row_bytes..][..row_bytes], &mut values);
        values.iter().map(|v| f64::from(half::bf16::from_f32(*v))).collect()
    }

    fn plan(&self, rows: u32, layers: u32) -> StepPlan {
        let mut b = PlanBuilder::new(BucketKey::decode(rows), 1);
        b.live_counts();
        let kind = BufferKind::Input { padding: PaddingPolicy::Word(0), late: false };
        let x = b.rows("x", kind, Axis::T, u64::from(self.k) * 2, Elem::QuantRows);
        let cols = if self.gated { self.n[0] } else { self.n.iter().sum() };
        let bytes = if self.gated { 2 } else { 4 };
        let elem = if self.gated { Elem::QuantRows } else { Elem::F32 };
        let out = b.rows(
            "out",
            BufferKind::Output { fetched: true },
            Axis::T,
            u64::from(cols) * bytes,
            elem,
        );
        for layer in 0..layers {
            let mut out_col = 0;
            let mut parts = Vec::new();
            for (i, &n) in self.n.iter().enumerate() {
                let format = self.format(i);
                let size = CudaBackend::default().matrix_bytes(format, n, self.k).expect("a shape");
                let w = b.weight(self.weight(layer, i), size, Elem::Opaque);
                parts.push(GemmPart { w, format, n, out_col, bias: None });
                out_col += if self.gated { 0 } else { n };
            }
            let epilogue = if self.gated { Epilogue::SwiGluQuantised } else { Epilogue::Store };
            let (axis, k, out_cols) = (Axis::T, self.k, cols);
            let gemm = Gemm { axis, k, x: None, xq: Some(x), parts, epilogue, out, out_cols };
            let name = format!("layers.{layer}.{}", self.name);
            b.op(name.clone(), LaneId::MAIN, OpKind::Gemm(gemm.clone()));
            if self.added {
                let again = Gemm { epilogue: Epilogue::AddTo, ..gemm };
                b.op(format!("{name}.again"), LaneId::MAIN, OpKind::Gemm(again));
            }
        }
        b.finish()
    }
}

/// Element `i` of row `row`.
fn x_at(row: u32, i: u32) -> half::bf16 {
    seeded(0x7007, u64::from(row) << 20 | u64::from(i), 1.0)
}

struct Ran {
    bits: Vec<u8>,
    row_bytes: usize,
}

fn capture(
    device: &mut dyn Device,
    product: &Product,
    rows: u32,
    layers: u32,
) -> (ExecId, lockstep_device::ArenaId) {
    let plan = product.plan(rows, layers);
    let packing = pack(&plan);
    let proven = prove(plan, packing).unwrap_or_else(|h| panic!("{h:?}"));
    let arena = device.arena(proven.packing().arena_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let proven = Arc::new(proven);
    let exec = device.capture(&proven, arena).unwrap_or_else(|e| panic!("{e}"));
    device.seal(exec).unwrap_or_else(|e| panic!("{e}"));
    let id = |name: &str| proven.plan().find(name).expect("declared above");
    let live: Vec<u8> = [rows; 3].iter().flat_map(|v| v.to_le_bytes()).collect();
    device.input_mut(exec, id("live_counts")).copy_from_slice(&live);
    let x = device.input_mut(exec, id("x"));
    for (row, to) in x.chunks_exact_mut(product.k as usize * 2).enumerate() {
        for (i, to) in to.chunks_exact_mut(2).enumerate() {
            to.copy_from_slice(&x_at(row as u32, i as u32).to_le_bytes());
        }
    }
    (exec, arena)
}

fn run_rows(device: &mut dyn Device, product: &Product, rows: u32) -> Ran {
    let (exec, arena) = capture(device, product, rows, 1);
    let replayed = device.replay(exec, &Alone(BucketKey::decode(rows)));
    replayed.unwrap_or_else(|e| panic!("{}, {rows} rows: {e}", product.name));
    let out = product.plan(rows, 1).find("out").expect("declared above");
    let bits = device.output(exec, out).to_vec();
    device.release(exec).and_then(|()| device.free_arena(arena)).expect("nothing runs");
    Ran { row_bytes: bits.len() / rows as usize, bits }
}

/// The greatest distance from f64 over some outputs of the first row, relative to their norm.
fn distance(product: &Product, files: &[Vec<u8>], ran: &Ran) -> f64 {
    let dot = |part: usize, n: u32| -> f64 {
        let row = product.row(part, n, &files[part]);
        row.iter().zip(0..).map(|(w, i)| w * f64::from(x_at(0, i))).sum()
    };
    let (mut off, mut all) = (0.0, 0.0);
    let mut see = |found: f64, right: f64| {
        off += (found - right) * (found - right);
        all += right * right;
    };
    if product.gated {
        for n in (0..product.n[0]).step_by(97) {
            let gate = dot(0, n);
            let right = gate / (1.0 + (-gate).exp()) * dot(1, n);
            let at = n as usize * 2;
            let found = half::bf16::from_le_bytes([ran.bits[at], ran.bits[at + 1]]);
            see(f64::from(found), right);
        }
    } else {
        let mut first = 0;
        for (part, &count) in product.n.iter().enumerate() {
            for n in (0..count).step_by(97).chain([count - 1]) {
                let at = (first + n) as usize * 4;
                let bytes = [ran.bits[at], ran.bits[at + 1], ran.bits[at + 2], ran.bits[at + 3]];
                let times = if product.added { 2.0 } else { 1.0 };
                see(f64::from(f32::from_le_bytes(bytes)), times * dot(part, n));
            }
            first += count;
        }
    }
    (off / all).sqrt()
}

fn bits(device: &mut dyn Device, product: &Product, files: &[Vec<u8>], table: &mut Table) {
    let most = run_rows(device, product, 4096);
    let d = distance(product, files, &most);
    let bar = if product.gated { 3e-3 } else { 1e-5 };
    let mut differ = Vec::new();
    for rows in ROWS {
        let ran = run_rows(device, product, rows);
        let len = ran.bits.len().min(most.bits.len());
        if ran.row_bytes != most.row_bytes || ran.bits[..len] != most.bits[..len] {
            differ.push(rows);
        }
    }
    let name = product.name;
    let ok = d < bar && differ.is_empty();
    let of = ROWS.len() - differ.len();
    let but = if differ.is_empty() { String::new() } else { format!(", not at {differ:?}") };
    table.verdict(
        ok,
        format!("product {name}: {d:.1e} from f64; equal bits at {of} numbers of rows{but}"),
    );
}

fn speed(
    device: &mut lockstep_cuda::CudaDevice,
    product: &Product,
    layers: u32,
    table: &mut Table,
) {
    let probe = Arc::new(Probe::default());
    device.set_probe(probe.clone());
    let n: u64 = product.n.iter().map(|n| u64::from(*n)).sum();
    let bytes = product.weight_bytes() as f64;
    let mut line = format!("     product {}:", product.name);
    for rows in TIMED {
        let (exec, arena) = capture(device, product, rows, layers);
        probe.ask();
        device.replay(exec, &Alone(BucketKey::decode(rows))).unwrap_or_else(|e| panic!("{e}"));
        device.release(exec).and_then(|()| device.free_arena(arena)).expect("nothing runs");
        for report in probe.take() {
            let us = f64::from(report.replay_us) / f64::from(layers);
            let flops = 2.0 * (n * u64::from(product.k) * u64::from(rows)) as f64;
            let (limit, rate) = (bytes / BANDWIDTH * 1e6, flops / us / 1e6);
            let share = if rows < 256 { limit / us * 100.0 } else { rate / 790.0 * 100.0 };
            line += &format!(" {rows}: {us:.1} us ({share:.0}%)");
        }
    }
    table.line(line);
}

pub fn run(table: &mut Table) {
    for product in &PRODUCTS {
        let mut device = gpu();
        let file = |part| match product.format(part) {
            Format::BF16 => Vec::new(),
            _ => product.file_bytes(part),
        };
        let files: Vec<Vec<u8>> = (0..product.n.len()).map(file).collect();
        // More than the second-level cache holds.
        let layers = (400u64 << 20).div_ceil(product.weight_bytes()).clamp(2, 64) as u32;
        for layer in 0..layers {
            for (part, &n) in product.n.iter().enumerate() {
                let (k, seed, scale) = (product.k, part as u64, unit_scale(product.k));
                let format = product.format(part);
                let data = match format {
                    Format::BF16 => WeightData::Seeded { n, k, seed, scale },
                    _ => WeightData::Matrix { format, n, k, bytes: &files[part] },
                };
                let loaded = device.load_weight(&product.weight(layer, part), data);
                loaded.unwrap_or_else(|e| panic!("{e}"));
            }
        }
        bits(&mut device, product, &files, table);
        if !product.name.starts_with("odd") && !product.added {
            speed(&mut device, product, layers, table);
        }
    }
}
