//! Embeds the kernels that `cargo xtask cuda` compiled into `cubins/`, where there are any: a
//! build without them works and says at run time that it has none.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let folder = here.join("cubins");
    println!("cargo::rerun-if-changed=cubins");
    println!("cargo::rerun-if-changed=build.rs");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map(|entries| entries.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    found.retain(|p| p.extension().is_some_and(|e| e == "cubin"));
    found.sort();
    let mut text = String::from("pub static EMBEDDED: &[(&str, &[u8])] = &[\n");
    for path in &found {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        writeln!(text, "    ({name:?}, include_bytes!({:?})),", path.display().to_string())
            .expect("writing to a string");
    }
    text.push_str("];\n");
    let out = std::env::var("OUT_DIR").expect("set by cargo");
    std::fs::write(Path::new(&out).join("embedded.rs"), text).expect("OUT_DIR is writable");
}
