//! The compiled kernels: which were built in, which fit this GPU, and their names.

use crate::driver::{Driver, Function, Module};
use crate::gemm::WGMMA_STAGE;
use crate::{CudaError, nvrtc};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Where a device's kernels come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelSource {
    /// Those of this binary; where none is for the GPU, as [`KernelSource::Compiled`].
    BuiltIn {
        /// Where what was compiled is kept.
        cache: Option<PathBuf>,
    },
    /// A folder of cubins.
    Folder(PathBuf),
    /// Compiled by NVRTC now, or on an earlier run.
    Compiled {
        /// Where what was compiled is kept.
        cache: Option<PathBuf>,
    },
}

/// Architectures with kernels in this binary: `sm_80`, `sm_90a`, ...
pub fn architectures() -> Vec<String> {
    let mut names: Vec<String> = EMBEDDED.iter().filter_map(|(name, _)| arch_of(name)).collect();
    names.sort();
    names.dedup();
    names
}

/// The architecture of this binary's kernels that a GPU of this capability runs.
pub fn architecture_for(capability: (u32, u32)) -> Option<String> {
    architectures().into_iter().find(|arch| fits(arch, capability))
}

/// `gemm.sm_90a.cubin` is of `sm_90a`.
fn arch_of(file: &str) -> Option<String> {
    file.strip_suffix(".cubin")?.split('.').nth(1).map(str::to_string)
}

/// The architecture whose code a GPU of this capability runs: `a` code runs on its own capability
/// only, other code on every later minor of its major.
fn fits(arch: &str, (major, minor): (u32, u32)) -> bool {
    let Some(digits) = arch.strip_prefix("sm_") else { return false };
    let (number, exact) = match digits.strip_suffix('a') {
        Some(number) => (number, true),
        None => (digits, false),
    };
    let Ok(number) = number.parse::<u32>() else { return false };
    let (m, n) = (number / 10, number % 10);
    m == major && if exact { n == minor } else { n <= minor }
}

/// Kernels on the GPU, by name.
#[derive(Debug)]
pub struct Kernels {
    /// Owners of what is found.
    _modules: Vec<Module>,
    found: HashMap<&'static str, Function>,
    /// Whether blocks of a cluster can read each other's shared memory.
    pub clusters: bool,
    /// Whether warpgroups multiply: Hopper.
    pub wgmma: bool,
}

/// Every kernel that an op may need.
const NAMES: &[&str] = &[
    "gather_tokens",
    "embed",
    "rms_norm",
    "quantize_rows",
    "silu_mul",
    "rope_kv_write",
    "rope_kv_write_128",
    "pack_matrix",
    "pack_quantised",
    "mix",
    "digest_items",
    "first_difference",
    "attention_mma_16",
    "attention_mma_32",
    "attention_mma_64",
    "attention_mma_128",
    "attention_partial_f16_256",
    "attention_partial_f32_16",
    "attention_partial_f32_32",
    "attention_partial_f32_64",
    "attention_partial_f32_128",
    "attention_partial_f32_256",
    "attention_combine",
    "attention_decode_16",
    "attention_decode_32",
    "attention_decode_64",
    "attention_decode_128",
    "sample",
    "gemm_m1_n1",
    "gemm_m1_n2",
    "gemm_m1_n4",
    "gemm_m1_n6",
    "gemm_m1_n8",
    "gemm_m2_n1",
    "gemm_m2_n2",
    "gemm_m2_n4",
    "gemm_m2_n6",
    "gemm_seq_n8",
    "gemm_seq_n16",
];

/// Kernels that a Hopper GPU has beside them.
const HOPPER_NAMES: &[&str] = &[
    "attention_walk_16",
    "attention_walk_32",
    "attention_walk_64",
    "attention_walk_128",
    "gemm_wgmma_n8",
    "gemm_wgmma_n16",
    "gemm_wgmma_n32",
    "gemm_wgmma_n48",
    "gemm_wgmma_n64",
    "gemm_wgmma_n96",
    "gemm_wgmma_n128",
    "gemm_wgmma_n256",
    "gemm_wgmma_seq_n128",
    "gemm_wgmma_many",
    "gemm_wgmma_most",
    "gemm_wgmma_most_gated",
    "gemm_wgmma_wide_n8",
    "gemm_wgmma_wide_n16",
    "gemm_wgmma_wide_n32",
    "gemm_wgmma_pair_n8",
    "gemm_wgmma_pair_n16",
    "gemm_wgmma_pair_n32",
    "gemm_wgmma_pair_n48",
    "gemm_wgmma_pair_n64",
    "gemm_wgmma_pair_n96",
    "gemm_wgmma_wide_n48",
    "gemm_wgmma_wide_n64",
    "gemm_wgmma_wide_n96",
    "gemm_wgmma_wide_n192",
    "gemm_wgmma_q_n8",
    "gemm_wgmma_q_n16",
    "gemm_wgmma_q_n32",
    "gemm_wgmma_q_n48",
    "gemm_wgmma_q_n64",
    "gemm_wgmma_q_n96",
    "gemm_wgmma_q_n128",
    "gemm_wgmma_q_n256",
    "gemm_wgmma_q_seq_n128",
];

type Cubin = (Cow<'static, str>, Cow<'static, [u8]>);

/// Files of kernels, of any architecture.
fn cubins(source: &KernelSource, capability: (u32, u32)) -> Result<Vec<Cubin>, CudaError> {
    let compile = |cache: &Option<PathBuf>| {
        let compiled = nvrtc::compile(&nvrtc::target(capability), cache.as_deref())?;
        let owned = |(name, bytes): (String, Vec<u8>)| (name.into(), bytes.into());
        Ok(compiled.cubins.into_iter().map(owned).collect())
    };
    match source {
        KernelSource::BuiltIn { cache } if architecture_for(capability).is_none() => compile(cache)
            .map_err(|e: CudaError| {
                let (built, compiler) = (architectures(), Some(Box::new(e)));
                CudaError::NoKernels { capability, built, compiler }
            }),
        KernelSource::BuiltIn { .. } => {
            Ok(EMBEDDED.iter().map(|(name, bytes)| ((*name).into(), (*bytes).into())).collect())
        }
        KernelSource::Folder(folder) => {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let read = |entry: std::fs::DirEntry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                std::fs::read(entry.path()).ok().map(|bytes| (name.into(), bytes.into()))
            };
            Ok(entries.filter_map(read).collect())
        }
        KernelSource::Compiled { cache } => compile(cache),
    }
}

impl Kernels {
    /// Loads what fits this GPU.
    pub fn load(driver: &Arc<Driver>, source: &KernelSource) -> Result<Kernels, CudaError> {
        let capability = driver.capability;
        let mut modules = Vec::new();
        for (name, bytes) in cubins(source, capability)? {
            if arch_of(&name).is_some_and(|arch| fits(&arch, capability)) {
                modules.push(Module::load(driver, &bytes)?);
            }
        }
        if modules.is_empty() {
            let built = match source {
                KernelSource::Folder(folder) => vec![folder.display().to_string()],
                _ => architectures(),
            };
            return Err(CudaError::NoKernels { capability, built, compiler: None });
        }
        let mut found = HashMap::new();
        let wgmma = driver.capability == (9, 0);
        for name in NAMES.iter().chain(HOPPER_NAMES.iter().filter(|_| wgmma)) {
            for module in &modules {
                if let Some(function) = module.function(name)? {
                    found.insert(*name, function);
                    break;
                }
            }
            if !found.contains_key(name) {
                return Err(CudaError::KernelMissing { kernel: (*name).into() });
            }
        }
        Ok(Kernels { _modules: modules, found, clusters: driver.capability.0 >= 9, wgmma })
    }

    /// Whether a product over `k` channels is one of `gemm_wgmma.cu`, and so are its weights laid out.
    pub fn on_wgmma(&self, k: u32) -> bool {
        self.wgmma && k.is_multiple_of(WGMMA_STAGE)
    }

    /// A kernel by name.
    ///
    /// # Panics
    /// Where the name is not among those that were loaded, which is a mistake of this room.
    pub fn get(&self, name: &str) -> Function {
        *self.found.get(name).unwrap_or_else(|| panic!("{name} is not a kernel of this room"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_on_its_own_architecture() {
        assert_eq!(arch_of("gemm.sm_90a.cubin").as_deref(), Some("sm_90a"));
        assert_eq!(arch_of("gemm.cu"), None);
        assert!(fits("sm_90a", (9, 0)) && !fits("sm_90a", (9, 1)) && !fits("sm_90a", (10, 0)));
        assert!(fits("sm_80", (8, 0)) && fits("sm_80", (8, 9)) && !fits("sm_80", (9, 0)));
        assert!(fits("sm_100a", (10, 0)) && !fits("sm_100a", (10, 3)));
        assert!(!fits("compute_90", (9, 0)) && !fits("sm_x", (9, 0)));
    }
}
