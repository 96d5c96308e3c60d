//! Kernels compiled at run time, by NVRTC: the path of development, and of GPUs that no kernel of
//! this binary is for.
//!
//! The sources are part of the binary; the library and CUDA's own headers come from a toolkit on
//! the machine. What was compiled is kept on disk under the digest of everything that it follows
//! from: source, headers, options, version and architecture.

use crate::CudaError;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use libloading::Library;
use lockstep_plan::Digest;
use std::ffi::CString;
use std::path::{Path, PathBuf};

macro_rules! sources {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Files of kernels.
const SOURCES: &[(&str, &str)] = sources![
    "attention.cu",
    "attention_decode.cu",
    "attention_mma.cu",
    "attention_walk.cu",
    "gemm.cu",
    "gemm_wgmma.cu",
    "gemm_wgmma_many.cu",
    "gemm_wgmma_most.cu",
    "gemm_wgmma_q.cu",
    "mix.cu",
    "rows.cu",
    "sample.cu"
];

/// What they include.
const HEADERS: &[(&str, &str)] = sources![
    "attention.cuh",
    "attention_pages.cuh",
    "common.cuh",
    "gemm.cuh",
    "gemm_wgmma.cuh",
    "gemm_wgmma_many.cuh",
    "gemm_wgmma_most.cuh",
    "quantised.cuh",
    "rope.cuh",
    "wgmma.cuh"
];

/// The one header of C that the sources name; NVRTC has none.
const STDINT: (&str, &str) = (
    "stdint.h",
    "#pragma once\n\
     typedef signed char int8_t; typedef short int16_t; typedef int int32_t;\n\
     typedef long long int64_t; typedef unsigned char uint8_t; typedef unsigned short uint16_t;\n\
     typedef unsigned int uint32_t; typedef unsigned long long uint64_t;\n\
     typedef unsigned long long uintptr_t;\n\
     #ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif\n",
);

/// Names of the library, newest first.
const LIBRARIES: [&str; 4] =
    ["libnvrtc.so.13", "libnvrtc.so", "libnvrtc.so.12", "libnvrtc.alt.so.13"];

/// Folders of a toolkit that hold libraries, and that hold headers.
const LIBRARY_FOLDERS: [&str; 4] =
    ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"];
const HEADER_FOLDERS: [&str; 2] = ["include", "targets/x86_64-linux/include"];

/// A header of CUDA's that every source needs.
const PROBED_HEADER: &str = "cuda_bf16.h";

/// Bytes of a compiled file, at most.
const CUBIN_BYTES_MAX: usize = 256 << 20;

/// Files of compiled kernels.
pub struct Compiled {
    /// Name, as of a file that is built in, and bytes.
    pub cubins: Vec<(String, Vec<u8>)>,
    /// How many of them were on the disk.
    pub kept: usize,
}

/// The compiler of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiler {
    /// Where its library is, or its name where the loader finds it.
    pub library: PathBuf,
    /// Folders of CUDA's headers.
    pub headers: Vec<PathBuf>,
    /// Its version.
    pub version: (i32, i32),
}

/// Looks for NVRTC where `CUDA_HOME` and `CUDA_PATH` point, in `/usr/local/cuda` and where the
/// loader looks.
///
/// # Errors
/// It is not there, or CUDA's headers are not.
pub fn compiler() -> Result<Compiler, CudaError> {
    Nvrtc::find().map(|n| n.about)
}

/// Compiles all kernels for `arch` (`sm_90a`), or takes what an earlier call has left in `cache`.
///
/// # Errors
/// There is no NVRTC, or it refuses a file.
pub fn compile(arch: &str, cache: Option<&Path>) -> Result<Compiled, CudaError> {
    let nvrtc = Nvrtc::find()?;
    let wanted = SOURCES.iter().filter(|(_, text)| is_for(text, arch));
    let mut done = Compiled { cubins: Vec::new(), kept: 0 };
    let results: Vec<Result<File, CudaError>> = std::thread::scope(|scope| {
        let one = |source: &'static (&str, &str)| {
            let nvrtc = &nvrtc;
            scope.spawn(move || nvrtc.file(*source, arch, cache))
        };
        let threads: Vec<_> = wanted.map(one).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    for result in results {
        let (name, bytes, kept) = result?;
        done.cubins.push((name, bytes));
        done.kept += usize::from(kept);
    }
    Ok(done)
}

/// Whether a file is for an architecture: its first line may name the only one.
fn is_for(text: &str, arch: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("// only: ").is_none_or(|only| only.trim() == arch)
}

/// What a GPU of this capability is compiled for: all that it has, from 9.0 on.
pub fn target((major, minor): (u32, u32)) -> String {
    format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
}

type Program = *mut c_void;

/// A file's name, its bytes, and whether it was on the disk.
type File = (String, Vec<u8>, bool);

/// The library, with the calls that are used of it.
struct Nvrtc {
    library: Library,
    /// What lies beside it and it would look for where the loader does.
    _builtins: Vec<Library>,
    about: Compiler,
}

/// An entry of the library.
macro_rules! entry {
    ($self:ident, $name:literal, fn($($arg:ty),*)) => {{
        // SAFETY: the signature is the one of NVRTC's header, unchanged since CUDA 11.
        let found = unsafe { $self.library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($name) };
        let missing = |_| CudaError::NoCompiler { looked_for: vec![format!("{} in NVRTC", $name)] };
        *found.map_err(missing)?
    }};
}

impl Nvrtc {
    fn find() -> Result<Nvrtc, CudaError> {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let fixed = ["/usr/local/cuda", "/opt/cuda", "/usr"].map(PathBuf::from);
        let roots: Vec<PathBuf> =
            set("CUDA_HOME").into_iter().chain(set("CUDA_PATH")).chain(fixed).collect();
        let mut tried: Vec<PathBuf> = Vec::new();
        for root in &roots {
            for folder in LIBRARY_FOLDERS {
                tried.extend(LIBRARIES.iter().map(|name| root.join(folder).join(name)));
            }
        }
        tried.retain(|path| path.exists());
        tried.extend(LIBRARIES.iter().map(PathBuf::from));
        let open = |path: &PathBuf| {
            let builtins = builtins_beside(path);
            // SAFETY: NVRTC is made to be loaded so; its initialisers touch nothing of ours.
            let library = unsafe { Library::new(path.as_os_str()) }.ok()?;
            Some((library, builtins, path.clone()))
        };
        let missing = |what: &str| {
            let places = roots.iter().map(|r| r.display().to_string()).collect::<Vec<_>>();
            CudaError::NoCompiler { looked_for: vec![format!("{what} in {}", places.join(", "))] }
        };
        let (library, builtins, path) =
            tried.iter().find_map(open).ok_or_else(|| missing(LIBRARIES[0]))?;
        let beside = path.parent().and_then(Path::parent).map(Path::to_path_buf);
        let headers = beside.iter().chain(&roots).find_map(|root| {
            let with = HEADER_FOLDERS.iter().map(|f| root.join(f));
            with.into_iter().find(|folder| folder.join(PROBED_HEADER).exists())
        });
        let headers = headers.ok_or_else(|| missing(PROBED_HEADER))?;
        let headers = vec![headers.join("cccl"), headers];
        let about = Compiler { library: path, headers, version: (0, 0) };
        let mut nvrtc = Nvrtc { library, _builtins: builtins, about };
        nvrtc.about.version = nvrtc.version()?;
        Ok(nvrtc)
    }

    fn version(&self) -> Result<(i32, i32), CudaError> {
        let version = entry!(self, "nvrtcVersion", fn(*mut c_int, *mut c_int));
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places of this frame.
        unsafe { version(&mut major, &mut minor) };
        Ok((major, minor))
    }

    fn options(&self, arch: &str) -> Vec<String> {
        let mut options = vec![format!("--gpu-architecture={arch}"), "--std=c++17".into()];
        let folders = self.about.headers.iter();
        options.extend(folders.map(|folder| format!("--include-path={}", folder.display())));
        options
    }

    /// A file's cubin, and whether it was on the disk.
    fn file(
        &self,
        (name, text): (&str, &str),
        arch: &str,
        cache: Option<&Path>,
    ) -> Result<File, CudaError> {
        let options = self.options(arch);
        let digest = Digest::of(&(text, HEADERS, STDINT, &options, self.about.version)).to_string();
        let stem = name.trim_end_matches(".cu");
        let file = format!("{stem}.{arch}.{}.cubin", &digest[..16]);
        let kept = cache.map(|folder| folder.join(&file));
        if let Some(bytes) = kept.as_deref().and_then(read_kept) {
            return Ok((format!("{stem}.{arch}.cubin"), bytes, true));
        }
        let bytes = self.translate(name, text, &options)?;
        if let Some(at) = kept {
            // Whoever cannot keep it compiles again.
            let _ = keep(&at, &bytes);
        }
        Ok((format!("{stem}.{arch}.cubin"), bytes, false))
    }

    fn translate(&self, name: &str, text: &str, options: &[String]) -> Result<Vec<u8>, CudaError> {
        let words = |s: &str| CString::new(s).expect("sources and paths hold no zero byte");
        let headers = || HEADERS.iter().chain(core::iter::once(&STDINT));
        let texts: Vec<CString> = headers().map(|h| words(h.1)).collect();
        let names: Vec<CString> = headers().map(|h| words(h.0)).collect();
        let options: Vec<CString> = options.iter().map(|o| words(o)).collect();
        let list = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (texts_at, names_at, options_at) = (list(&texts), list(&names), list(&options));
        let (text, file) = (words(text), words(name));
        type Texts = *const *const c_char;
        let create = entry!(
            self,
            "nvrtcCreateProgram",
            fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts)
        );
        let compile = entry!(self, "nvrtcCompileProgram", fn(Program, c_int, Texts));
        let destroy = entry!(self, "nvrtcDestroyProgram", fn(*mut Program));
        let mut program = null_mut();
        // SAFETY: terminated strings and lists that live to the end of this function.
        let code = unsafe {
            let count = texts_at.len() as c_int;
            let (texts, names) = (texts_at.as_ptr(), names_at.as_ptr());
            create(&mut program, text.as_ptr(), file.as_ptr(), count, texts, names)
        };
        self.check(name, code, null_mut())?;
        // SAFETY: the program was just made; as above.
        let code = unsafe { compile(program, options_at.len() as c_int, options_at.as_ptr()) };
        let done = self.check(name, code, program);
        let bytes = done.and_then(|()| self.take(name, program));
        // SAFETY: made above and destroyed once.
        unsafe { destroy(&mut program) };
        bytes
    }

    /// The compiled bytes of a program.
    fn take(&self, name: &str, program: Program) -> Result<Vec<u8>, CudaError> {
        let size = entry!(self, "nvrtcGetCUBINSize", fn(Program, *mut usize));
        let get = entry!(self, "nvrtcGetCUBIN", fn(Program, *mut c_char));
        let mut len = 0;
        // SAFETY: a program that has been compiled; a place of this frame.
        self.check(name, unsafe { size(program, &mut len) }, null_mut())?;
        let mut bytes = vec![0u8; len.min(CUBIN_BYTES_MAX)];
        // SAFETY: as many bytes as the library asked for.
        self.check(name, unsafe { get(program, bytes.as_mut_ptr().cast()) }, null_mut())?;
        Ok(bytes)
    }

    /// A code of the library's as an error, with its log where there is a program.
    fn check(&self, file: &str, code: c_int, program: Program) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let log = if program.is_null() { String::new() } else { self.log(program)? };
        Err(CudaError::Compile { file: file.into(), code: code as u32, log })
    }

    fn log(&self, program: Program) -> Result<String, CudaError> {
        let size = entry!(self, "nvrtcGetProgramLogSize", fn(Program, *mut usize));
        let get = entry!(self, "nvrtcGetProgramLog", fn(Program, *mut c_char));
        let mut len = 0;
        // SAFETY: a program; a place of this frame.
        unsafe { size(program, &mut len) };
        let mut bytes = vec![0u8; len.saturating_add(1)];
        // SAFETY: as many bytes as the library asked for, and a zero behind them.
        let text = unsafe {
            get(program, bytes.as_mut_ptr().cast());
            CStr::from_ptr(bytes.as_ptr().cast())
        };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Loads the functions that NVRTC brings into every program from beside it, where the loader may not look
/// (a toolkit of Python wheels): NVRTC asks for them by name and takes what is loaded.
fn builtins_beside(library: &Path) -> Vec<Library> {
    let Some(Ok(files)) = library.parent().map(std::fs::read_dir) else { return Vec::new() };
    let named =
        |f: &std::fs::DirEntry| f.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so");
    // SAFETY: a library of data, made to be loaded so.
    let load = |f: std::fs::DirEntry| unsafe { Library::new(f.path().as_os_str()) }.ok();
    files.flatten().filter(named).filter_map(load).collect()
}

/// A cubin that was kept: an ELF file with something in it.
fn read_kept(at: &Path) -> Option<Vec<u8>> {
    let size = std::fs::metadata(at).ok()?.len();
    if size > CUBIN_BYTES_MAX as u64 {
        return None;
    }
    std::fs::read(at).ok().filter(|bytes| bytes.starts_with(b"\x7fELF"))
}

/// Keeps a cubin: whole, or not at all.
fn keep(at: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = at.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = at.with_extension(format!("part-{}", std::process::id()));
    std::fs::write(&part, bytes)?;
    std::fs::rename(&part, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_and_header_is_part_of_the_binary() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let known = |list: &[(&str, &str)]| list.iter().any(|(n, _)| *n == name);
            assert!(known(SOURCES) || known(HEADERS), "{name}");
        }
    }

    #[test]
    fn a_file_for_one_architecture_is_left_out_elsewhere() {
        assert_eq!(
            [target((8, 0)), target((9, 0)), target((12, 0))],
            ["sm_80", "sm_90a", "sm_120a"]
        );
        let wgmma = SOURCES.iter().find(|s| s.0 == "gemm_wgmma.cu").unwrap().1;
        assert!(is_for(wgmma, "sm_90a") && !is_for(wgmma, "sm_80"));
        assert!(is_for("// anything\n", "sm_80"));
    }

    /// NVRTC takes less than the toolkit's compiler does: a generic lambda went past that one.
    #[test]
    #[ignore = "needs NVRTC; `cargo xtask test --only kernels` fetches it and runs this"]
    fn nvrtc_takes_every_file_for_hopper() {
        let compiled = compile("sm_90a", None).unwrap_or_else(|e| panic!("{e}"));
        let wanted = SOURCES.iter().filter(|(_, text)| is_for(text, "sm_90a")).count();
        assert_eq!((compiled.cubins.len(), compiled.kept), (wanted, 0));
        assert!(compiled.cubins.iter().all(|(_, bytes)| bytes.starts_with(b"\x7fELF")));
    }

    #[test]
    fn what_was_kept_is_found_again_and_a_broken_file_is_not() {
        let folder = std::env::temp_dir().join(format!("lockstep-kept-{}", std::process::id()));
        let at = folder.join("a.sm_90a.0.cubin");
        assert_eq!(read_kept(&at), None);
        keep(&at, b"\x7fELF and more").unwrap();
        assert_eq!(read_kept(&at).as_deref(), Some(b"\x7fELF and more".as_slice()));
        std::fs::write(&at, b"").unwrap();
        assert_eq!(read_kept(&at), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
