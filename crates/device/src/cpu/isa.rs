//! Which instruction set a kernel runs on, chosen once at start, and counters that say which one
//! really ran.
//!
//! Every kernel gives the same bits on each of them (contract 1), so the choice is about speed
//! alone.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// Plain Rust: the scalar definitions themselves.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI (and what [`Isa::Avx2`] needs).
    Avx512,
}

/// An instruction set was asked for that this CPU lacks, or that does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IsaError {
    /// The CPU lacks these features.
    Missing { isa: Isa, features: Vec<&'static str> },
    /// No instruction set has this name.
    Unknown { found: String },
}

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IsaError::Missing { isa, features } => {
                write!(f, "this CPU cannot run the {isa} kernels: it lacks")?;
                for feature in features {
                    write!(f, " {feature}")?;
                }
                write!(f, "; the best it can run is {}", Isa::detect())
            }
            IsaError::Unknown { found } => {
                write!(f, "'{found}' is no instruction set; use auto, avx512, avx2 or portable")
            }
        }
    }
}

impl core::error::Error for IsaError {}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// The name in the knob `device.isa`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// The fastest one that this CPU has.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rfind(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// Those that this CPU has, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// True where this CPU can run it.
    pub fn is_available(self) -> bool {
        self.missing().is_empty()
    }

    /// The one that the knob `device.isa` names: `auto` or a name.
    pub fn choose(name: &str) -> Result<Isa, IsaError> {
        if name == "auto" {
            return Ok(Isa::detect());
        }
        let isa = Isa::ALL.into_iter().find(|isa| isa.name() == name);
        let isa = isa.ok_or_else(|| IsaError::Unknown { found: name.to_string() })?;
        match isa.missing() {
            features if features.is_empty() => Ok(isa),
            features => Err(IsaError::Missing { isa, features }),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn missing(self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        macro_rules! need {
            ($($feature:tt),*) => {
                $(if !std::arch::is_x86_feature_detected!($feature) { missing.push($feature); })*
            };
        }
        if self >= Isa::Avx2 {
            need!("avx2", "fma", "f16c");
        }
        if self >= Isa::Avx512 {
            need!("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni");
        }
        missing
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn missing(self) -> Vec<&'static str> {
        match self {
            Isa::Portable => Vec::new(),
            Isa::Avx2 => vec!["avx2"],
            Isa::Avx512 => vec!["avx512f"],
        }
    }
}

/// A family of kernels, as the counters see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KernelKind {
    /// Matrix multiply with quantised weights.
    GemmQuantised,
    /// Matrix multiply with float weights.
    GemmFloat,
    /// Quantising of activation rows.
    Quantise,
    Norm,
    Rope,
    Attention,
    Embed,
    Sample,
}

impl KernelKind {
    /// Every kind, in counter order.
    pub const ALL: [KernelKind; 8] = [
        KernelKind::GemmQuantised,
        KernelKind::GemmFloat,
        KernelKind::Quantise,
        KernelKind::Norm,
        KernelKind::Rope,
        KernelKind::Attention,
        KernelKind::Embed,
        KernelKind::Sample,
    ];
}

/// How often kernels ran since the process started, by kind and instruction set.
#[derive(Debug)]
pub struct Counters([[AtomicU64; Isa::ALL.len()]; KernelKind::ALL.len()]);

static COUNTERS: Counters =
    Counters([const { [const { AtomicU64::new(0) }; Isa::ALL.len()] }; KernelKind::ALL.len()]);

/// The counters of this process.
pub fn counters() -> &'static Counters {
    &COUNTERS
}

impl Counters {
    /// Counts one invocation. A kernel that is split into tasks counts with its first task only.
    #[inline]
    pub fn count(&self, kind: KernelKind, isa: Isa) {
        self.0[kind as usize][isa as usize].fetch_add(1, Relaxed);
    }

    /// Invocations of `kind` on `isa`.
    pub fn get(&self, kind: KernelKind, isa: Isa) -> u64 {
        self.0[kind as usize][isa as usize].load(Relaxed)
    }

    /// Invocations of any kind on `isa`.
    pub fn total(&self, isa: Isa) -> u64 {
        KernelKind::ALL.into_iter().map(|kind| self.get(kind, isa)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_there_and_auto_is_the_best() {
        assert_eq!(Isa::choose("portable"), Ok(Isa::Portable));
        assert_eq!(Isa::choose("auto"), Ok(Isa::detect()));
        assert_eq!(Isa::available().last(), Some(Isa::detect()));
    }

    #[test]
    fn names_that_are_none_are_refused_with_those_that_are() {
        let error = Isa::choose("neon").unwrap_err();
        assert_eq!(error, IsaError::Unknown { found: "neon".into() });
        assert!(error.to_string().contains("auto, avx512, avx2 or portable"));
    }

    #[test]
    fn a_missing_feature_is_named_with_what_would_work() {
        let error = IsaError::Missing { isa: Isa::Avx512, features: vec!["avx512vnni"] };
        let words = error.to_string();
        assert!(words.contains("lacks avx512vnni"), "{words}");
        assert!(words.contains(Isa::detect().name()), "{words}");
    }

    #[test]
    fn counters_count_by_kind_and_isa() {
        let before = counters().get(KernelKind::Sample, Isa::Portable);
        counters().count(KernelKind::Sample, Isa::Portable);
        assert!(counters().get(KernelKind::Sample, Isa::Portable) > before);
        assert!(counters().total(Isa::Portable) > before);
    }
}
