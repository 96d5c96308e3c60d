//! `lockstep doctor`: what this machine can run, and why not.

use crate::args::DoctorArgs;
use crate::exit::{Exit, Failure};
use crate::{memory, out};
use lockstep_device::CpuDevice;
use serde_json::{Value, json};

/// What was found of one device.
struct Finding {
    device: &'static str,
    /// Whether `serve --device` would start.
    runs: bool,
    /// In words: what it would run on, or what is missing and what would help.
    words: Vec<String>,
    facts: Value,
}

/// Prints the findings.
pub fn run(args: &DoctorArgs) -> Result<Exit, Failure> {
    let findings = [cpu(), cuda()];
    if args.json {
        let one = |f: &Finding| {
            (f.device.to_string(), json!({"runs": f.runs, "words": f.words, "facts": f.facts}))
        };
        out::line(Value::Object(findings.iter().map(one).collect()));
        return Ok(Exit::Done);
    }
    for f in &findings {
        let verdict = if f.runs { "runs here" } else { "does not run here" };
        out::line(format_args!("--device {}: {verdict}", f.device));
        for words in &f.words {
            out::page(&format!("  {words}"), 4);
        }
    }
    Ok(Exit::Done)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn cpu() -> Finding {
    let memory = memory::bytes();
    let (runs, mut words, isa, threads) = match CpuDevice::new(0, "auto") {
        Ok(device) => {
            let (isa, threads) = (device.isa().name(), device.threads());
            (true, vec![format!("kernels for {isa} on {threads} threads")], Some(isa), threads)
        }
        Err(e) => (false, vec![e.to_string()], None, 0),
    };
    match memory {
        Some(bytes) => words.push(format!("{:.1} GiB of memory for this process", gib(bytes))),
        None => words.push("the system does not say how much memory there is".into()),
    }
    let facts = json!({"isa": isa, "threads": threads, "memory_bytes": memory});
    Finding { device: "cpu", runs, words, facts }
}

/// The version that the kernel module of an NVIDIA driver reports.
fn kernel_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    module_version(&text)
}

fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with("NVRM version:"))?;
    let numbers = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(numbers).map(str::to_string)
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Finding {
    let module = kernel_module();
    let mut words = vec![
        "this binary was built without the CUDA device; one with it comes from `cargo xtask cuda` \
         and `cargo build --release --features cuda`"
            .to_string(),
    ];
    words.push(match &module {
        Some(version) => format!("there is an NVIDIA driver here, version {version}"),
        None => "there is no NVIDIA driver here either".into(),
    });
    let facts = json!({"built_in": false, "kernel_module": module});
    Finding { device: "cuda", runs: false, words, facts }
}

#[cfg(feature = "cuda")]
fn cuda() -> Finding {
    let module = kernel_module();
    let built = lockstep_cuda::architectures();
    let mut words = vec![match built.as_slice() {
        [] => "no kernels in this binary: `cargo xtask cuda` compiles them before a build".into(),
        all => format!("kernels in this binary: {}", all.join(", ")),
    }];
    let compiler = lockstep_cuda::compiler();
    words.push(match &compiler {
        Ok(c) => format!(
            "NVRTC {}.{} at {} compiles for GPUs that none of them is for",
            c.version.0,
            c.version.1,
            c.library.display()
        ),
        Err(e) => e.to_string(),
    });
    if let Some(version) = &module {
        words.push(format!("NVIDIA driver {version}"));
    }
    let nvrtc = compiler.as_ref().ok().map(|c| format!("{}.{}", c.version.0, c.version.1));
    let mut facts =
        json!({"built_in": true, "kernel_module": module, "kernels": built, "nvrtc": nvrtc});
    let (version, gpus) = match lockstep_cuda::gpus() {
        Ok(found) => found,
        Err(e) => {
            words.push(e.to_string());
            return Finding { device: "cuda", runs: false, words, facts };
        }
    };
    words.push(format!("the driver speaks CUDA {}.{}", version / 1000, version % 1000 / 10));
    if gpus.is_empty() {
        words.push("the driver sees no GPU".into());
    }
    let mut runs = false;
    let mut all = Vec::new();
    for gpu in &gpus {
        let (fault, fact) = look_at(gpu, compiler.is_ok(), &mut words);
        // `serve` takes the first one.
        runs |= gpu.ordinal == 0 && fault.is_none();
        words.extend(fault);
        all.push(fact);
    }
    facts["cuda"] = json!(version);
    facts["gpus"] = Value::Array(all);
    Finding { device: "cuda", runs, words, facts }
}

/// What a GPU is, and what keeps it from being used.
#[cfg(feature = "cuda")]
fn look_at(
    gpu: &lockstep_cuda::Gpu,
    compiles: bool,
    words: &mut Vec<String>,
) -> (Option<String>, Value) {
    let (major, minor) = gpu.capability;
    let arch = lockstep_cuda::architecture_for(gpu.capability);
    let slice = if gpu.is_slice() { ", a slice of a partitioned GPU (MIG)" } else { "" };
    words.push(format!(
        "GPU {}: {}{slice}: compute capability {major}.{minor}, {} multiprocessors at up to {} \
         MHz, {:.1} GiB at up to {} MHz{}",
        gpu.ordinal,
        gpu.name,
        gpu.multiprocessors,
        gpu.clock_mhz,
        gib(gpu.memory_bytes),
        gpu.memory_clock_mhz,
        arch.as_ref().map(|a| format!(", with the kernels for {a}")).unwrap_or_default(),
    ));
    let fault = if arch.is_none() && !compiles {
        Some(format!(
            "GPU {}: no kernel here is for {major}.{minor}, and none can be compiled",
            gpu.ordinal
        ))
    } else if gpu.prohibited {
        Some(format!("GPU {}: its compute mode lets no process use it", gpu.ordinal))
    } else {
        None
    };
    let fact = json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "capability": format!("{major}.{minor}"),
        "multiprocessors": gpu.multiprocessors,
        "memory_bytes": gpu.memory_bytes,
        "clock_mhz": gpu.clock_mhz,
        "memory_clock_mhz": gpu.memory_clock_mhz,
        "mig": gpu.is_slice(),
        "kernels": arch,
        "fault": fault,
    });
    (fault, fact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_read() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n\
                    GCC version: gcc version 12.2.0\n";
        assert_eq!(module_version(text).as_deref(), Some("580.159.04"));
        assert_eq!(module_version("nothing of the kind\n"), None);
    }

    #[test]
    fn a_machine_without_a_gpu_is_told_so_in_words() {
        let found = cuda();
        assert!(!found.words.is_empty());
        if !found.runs {
            let said = found.words.join("; ");
            assert!(said.contains("driver") || said.contains("GPU"), "{said}");
        }
        assert!(cpu().runs, "the machine of the tests runs the CPU device");
    }
}
