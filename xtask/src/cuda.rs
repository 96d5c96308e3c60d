//! The CUDA kernels: compiled by the toolkit's own wheels on any x86-64 Linux, checked for spills
//! and registers, and left where the cuda room embeds them from. No GPU and no driver is needed.

use crate::args::{Outcome, Stop, only_flags};
use crate::peer::cache_root;
use crate::proc::must;
use crate::python::Venv;
use crate::tree::root;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a GPU of which generation runs.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// CUDA 13.0's compiler, its run-time compiler and headers, from the Python index: about 200 MB to fetch.
const WHEELS: [&str; 6] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

const FETCH_LIMIT: Duration = Duration::from_secs(900);

/// `cargo xtask cuda`: compiles every kernel for every architecture into `crates/cuda/cubins`.
/// `--check` leaves nothing behind.
pub fn main(args: &[String]) -> Outcome {
    only_flags(args, &["--check"])?;
    let kernels = if args.iter().any(|a| a == "--check") {
        check()?
    } else {
        compile_into(&root().join("crates/cuda/cubins"))?
    };
    println!("{kernels} kernels compiled");
    Ok(())
}

/// Compiles every kernel and leaves nothing behind; returns how many there are, every architecture
/// counted. Fails where one spills, takes more registers than its file allows, or has its matrix
/// instructions serialised.
pub fn check() -> Result<usize, Stop> {
    let out = std::env::temp_dir().join(format!("lockstep-cubins-{}", std::process::id()));
    let found = compile_into(&out);
    std::fs::remove_dir_all(&out)
        .map_err(|e| Stop::failed(format!("{}: {e}", out.display())))
        .and(found)
}

fn compile_into(out: &Path) -> Result<usize, Stop> {
    let nvcc = compiler()?;
    std::fs::create_dir_all(out).map_err(|e| Stop::failed(format!("{}: {e}", out.display())))?;
    let mut jobs = Vec::new();
    for path in sources(&root().join("crates/cuda/kernels"))? {
        let source = Source::read(path)?;
        jobs.extend(source.architectures().map(|arch| (source.clone(), arch)));
    }
    let (mut count, mut faults) = (0, Vec::new());
    for ((source, arch), report) in jobs.iter().zip(compile_all(&nvcc, &jobs, out)) {
        let kernels = read_report(&report?);
        count += kernels.0.len();
        faults.extend(judge(source, arch, &kernels));
    }
    if faults.is_empty() { Ok(count) } else { Err(Stop::failed(faults.join("\n"))) }
}

/// Reports of all compilations in order, as many at a time as there are processors.
fn compile_all(
    nvcc: &Path,
    jobs: &[(Source, &'static str)],
    out: &Path,
) -> Vec<Result<String, Stop>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((source, arch)) = jobs.get(at) else { return };
            let report = compile(nvcc, &source.path, arch, out);
            done.lock().expect("nobody panics with it").push((at, report));
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        (0..threads).for_each(|_| _ = scope.spawn(work));
    });
    let mut done = done.into_inner().expect("nobody panics with it");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, report)| report).collect()
}

/// What is wrong with the kernels of a file.
fn judge(source: &Source, arch: &str, (kernels, serialised): &(Vec<Kernel>, bool)) -> Vec<String> {
    let mut faults = Vec::new();
    let name = source.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if *serialised {
        faults.push(format!("{name} {arch}: wgmma instructions are serialised"));
    }
    let most = kernels.iter().map(|k| k.registers).max().unwrap_or(0);
    let budget = source.registers;
    println!("{name} {arch}: {} kernels, at most {most} of {budget} registers", kernels.len());
    if kernels.is_empty() {
        faults.push(format!("{name} {arch}: the compiler reported on no kernel"));
    }
    for k in kernels {
        if k.spilled > 0 {
            faults.push(format!("{name} {arch}: {} spills {} bytes", k.name, k.spilled));
        }
        if k.registers > budget {
            let taken = k.registers;
            faults.push(format!(
                "{name} {arch}: {} takes {taken} registers; its file allows {budget} (// registers:)",
                k.name
            ));
        }
    }
    faults
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>, Stop> {
    let io = |e: std::io::Error| Stop::failed(format!("{}: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(io)?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    found.retain(|p| p.extension().is_some_and(|e| e == "cu"));
    found.sort();
    Ok(found)
}

/// A file of kernels, with what the lines at its head that are for this command say.
#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    /// `// only: sm_90a`: the one architecture that it is for.
    only: Option<String>,
    /// `// registers: 128`: what a thread of any of its kernels takes at most.
    registers: u32,
}

impl Source {
    fn read(path: PathBuf) -> Result<Source, Stop> {
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Stop::failed(format!("{}: {e}", path.display())))?;
        let said = |key: &str| {
            text.lines()
                .take(2)
                .find_map(|l| l.strip_prefix("// ")?.strip_prefix(key))
                .map(str::trim)
        };
        let registers = said("registers:").and_then(|n| n.parse().ok()).ok_or_else(|| {
            Stop::failed(format!(
                "{}: its first two lines have no '// registers: N', the most that a thread of its \
                 kernels may take",
                path.display()
            ))
        })?;
        let only = said("only:").map(str::to_string);
        Ok(Source { only, registers, path })
    }

    fn architectures(&self) -> impl Iterator<Item = &'static str> + '_ {
        let wanted = |arch: &&str| self.only.as_deref().is_none_or(|only| only == *arch);
        ARCHITECTURES.into_iter().filter(wanted)
    }
}

/// What the assembler warns of where matrix instructions wait for each other.
const SERIALISED: &str = "wgmma.mma_async instructions are serialized";

/// Where the wheels lie, as a toolkit does: `CUDA_HOME` for NVRTC and its headers.
pub fn toolkit() -> Result<PathBuf, Stop> {
    Ok(cache_root()?.join("cuda-13.0/nvidia/cu13"))
}

/// nvcc out of the wheels, fetched once into the cache.
fn compiler() -> Result<PathBuf, Stop> {
    let dir = cache_root()?.join("cuda-13.0");
    let nvcc = toolkit()?.join("bin/nvcc");
    let stamp = dir.join("wheels");
    let recipe = WHEELS.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|s| s == recipe) && nvcc.exists() {
        return Ok(nvcc);
    }
    let io = |e: std::io::Error| Stop::failed(format!("{}: {e}", dir.display()));
    println!("fetching CUDA 13.0's compiler into {}", dir.display());
    std::fs::create_dir_all(&dir).map_err(io)?;
    let venv = Venv::ensure(&dir.join("pip"), "")?;
    must(
        Command::new(venv.python())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--upgrade", "--target"])
            .arg(&dir)
            .args(WHEELS),
        FETCH_LIMIT,
        "pip install of CUDA 13.0's compiler",
    )?;
    std::fs::write(&stamp, recipe).map_err(io)?;
    Ok(nvcc)
}

/// Compiles one file for one architecture; returns what the assembler said of each kernel.
fn compile(nvcc: &Path, source: &Path, arch: &str, out: &Path) -> Result<String, Stop> {
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let to = out.join(format!("{stem}.{arch}.cubin"));
    let number = arch.trim_start_matches("sm_");
    let ran = Command::new(nvcc)
        .arg(format!("-gencode=arch=compute_{number},code=sm_{number}"))
        .args(["-std=c++17", "-cubin", "-Xptxas", "-v", "-o"])
        .arg(&to)
        .arg(source)
        .output()
        .map_err(|e| Stop::failed(format!("{}: {e}", nvcc.display())))?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() { Ok(said) } else { Err(Stop::failed(format!("{arch}: {said}"))) }
}

/// What one kernel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kernel {
    name: String,
    registers: u32,
    /// Bytes of registers that did not fit.
    spilled: u32,
}

/// Reads the assembler's report: its kernels, and whether matrix instructions were serialised.
fn read_report(text: &str) -> (Vec<Kernel>, bool) {
    let mut kernels: Vec<Kernel> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let name = rest.split('\'').next().unwrap_or_default().to_string();
            kernels.push(Kernel { name, registers: 0, spilled: 0 });
        } else if let Some(kernel) = kernels.last_mut() {
            let before = |words: &str| number_before(line, words);
            kernel.registers = kernel.registers.max(before(" registers"));
            kernel.spilled += before(" bytes spill stores");
        }
    }
    (kernels, text.contains(SERIALISED))
}

fn number_before(line: &str, words: &str) -> u32 {
    let Some((head, _)) = line.split_once(words) else { return 0 };
    head.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_registers_and_spills_of_each_kernel() {
        let text = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_90a'\n\
            ptxas info    : Function properties for a\n    \
            16 bytes stack frame, 16 bytes spill stores, 36 bytes spill loads\n\
            ptxas info    : Used 128 registers, used 1 barriers\n\
            ptxas info    : Compiling entry function 'b' for 'sm_90a'\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 22 registers, 380 bytes cmem[0]\n";
        let kernel =
            |name: &str, registers, spilled| Kernel { name: name.into(), registers, spilled };
        let (kernels, serialised) = read_report(text);
        assert_eq!(kernels, [kernel("a", 128, 16), kernel("b", 22, 0)]);
        assert!(!serialised && read_report(&format!("{text}{SERIALISED} in a")).1);
        let source = |registers| Source { path: "x.cu".into(), only: None, registers };
        let faults = |registers, s| judge(&source(registers), "sm_80", &(kernels.clone(), s));
        assert_eq!(faults(128, false), ["x.cu sm_80: a spills 16 bytes"]);
        assert_eq!(faults(127, true).len(), 3);
    }
}
