//! Which room may use which, and which libraries a room may use.

use super::Finding;
use crate::metadata::{Kind, Metadata, Package};
use crate::tree::Tree;

/// A room's row: what it may depend on. Any other edge fails.
struct Room {
    /// The folder under `crates/`; the package is `lockstep-<name>` (`xtask` stands for itself).
    name: &'static str,
    /// Rooms that the shipped code may use.
    rooms: &'static [&'static str],
    /// Rooms that only its tests, examples and benches may use, beside those.
    test_rooms: &'static [&'static str],
    /// Libraries that the shipped code may use.
    libraries: &'static [&'static str],
    /// Why it is fenced so; part of the finding.
    why: &'static str,
}

/// Libraries that any room's tests may use.
const TEST_LIBRARIES: &[&str] = &["allocation-counter", "proptest", "serde_json"];

const ROOMS: &[Room] = &[
    Room {
        name: "flow",
        rooms: &[],
        test_rooms: &[],
        libraries: &[],
        why: "flow holds nouns: no IO, no clock, no library",
    },
    Room {
        name: "text",
        rooms: &["flow"],
        test_rooms: &["weights"],
        libraries: &[
            "tokenizers",
            "minijinja",
            "minijinja-contrib",
            "llguidance",
            "serde",
            "serde_json",
        ],
        why: "text turns text into ids and back; it knows no engine type and no tokio",
    },
    Room {
        name: "weights",
        rooms: &["flow", "plan"],
        test_rooms: &[],
        libraries: &["half", "memmap2", "safetensors", "serde", "serde_json", "sha2"],
        why: "weights reads files and takes block formats from plan",
    },
    Room {
        name: "pool",
        rooms: &["flow"],
        test_rooms: &[],
        libraries: &[],
        why: "pool keeps books; it sees no byte or pointer of KV",
    },
    Room {
        name: "sched",
        rooms: &["flow", "pool"],
        test_rooms: &[],
        libraries: &[],
        why: "sched is a pure function: no clock, thread or device",
    },
    Room {
        name: "plan",
        rooms: &["flow"],
        test_rooms: &[],
        libraries: &["half", "sha2"],
        why: "plan knows no model and no backend",
    },
    Room {
        name: "model",
        rooms: &["flow", "plan", "weights"],
        test_rooms: &["device"],
        libraries: &["half", "libm"],
        why: "model describes steps; it neither allocates nor schedules",
    },
    Room {
        name: "device",
        rooms: &["flow", "plan"],
        test_rooms: &[],
        libraries: &["bytemuck", "half", "libc"],
        why: "device executes plans, whatever the model",
    },
    Room {
        name: "cuda",
        rooms: &["flow", "plan", "device"],
        test_rooms: &["engine", "model", "sim", "weights"],
        libraries: &["cudarc", "half", "libc", "libloading"],
        why: "cuda is one more device",
    },
    Room {
        name: "engine",
        rooms: &["flow", "pool", "sched", "plan", "model", "device"],
        test_rooms: &["weights", "text"],
        libraries: &["bytemuck"],
        why: "engine knows no HTTP and opens no file",
    },
    Room {
        name: "transfer",
        rooms: &["flow", "pool", "device"],
        test_rooms: &[],
        libraries: &["libc", "libloading"],
        why: "transfer moves pages; it knows no model",
    },
    Room {
        name: "serve",
        rooms: &["flow", "text", "engine", "transfer"],
        test_rooms: &["weights", "model", "device", "plan", "pool", "sched"],
        libraries: &[
            "axum",
            "http-body",
            "hyper",
            "hyper-util",
            "tokio",
            "serde",
            "serde_json",
            "tracing",
            "prometheus-client",
        ],
        why: "serve reaches the step thread through the engine's handle only",
    },
    Room {
        name: "check",
        rooms: &["flow", "text"],
        test_rooms: &[],
        libraries: &[
            "http-body",
            "http-body-util",
            "hyper",
            "hyper-util",
            "tokio",
            "serde",
            "serde_json",
        ],
        why: "check is a client: it must work against servers that are not ours",
    },
    Room {
        name: "change",
        rooms: &["flow", "check"],
        test_rooms: &[],
        libraries: &["rustix", "serde", "serde_json", "sha2", "tokio", "toml_edit"],
        why: "change knows no engine's internals",
    },
    Room {
        name: "sim",
        rooms: &[
            "flow", "weights", "pool", "sched", "plan", "model", "device", "engine", "transfer",
        ],
        test_rooms: &[],
        libraries: &["bytemuck"],
        why: "sim drives the production rooms",
    },
    Room {
        name: "cli",
        rooms: &[
            "flow", "text", "weights", "pool", "sched", "plan", "model", "device", "cuda",
            "engine", "transfer", "serve", "check", "change", "sim",
        ],
        test_rooms: &[],
        libraries: &[
            "clap",
            "tokio",
            "serde",
            "serde_json",
            "toml",
            "toml_edit",
            "tracing",
            "tracing-subscriber",
            "indicatif",
            "rustix",
            "sha2",
        ],
        why: "cli is arguments and wiring",
    },
    Room {
        name: "xtask",
        rooms: &["flow"],
        test_rooms: &[],
        libraries: &["serde_json", "sha2"],
        why: "xtask starts in seconds; it reads the knob registry and nothing else of the product",
    },
];

fn room_of(package: &str) -> Option<&'static Room> {
    let name = package.strip_prefix("lockstep-").unwrap_or(package);
    ROOMS.iter().find(|r| r.name == name)
}

/// Fails on a member without a row, on an edge that its row does not have, and on a row that
/// would make the rooms go in a circle.
pub fn check(metadata: &Metadata, tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.members() {
        let manifest = manifest_path(package);
        let Some(room) = room_of(&package.name) else {
            findings.push(Finding {
                rule: "rooms",
                file: manifest,
                line: 1,
                found: format!("package {} has no row in the room table", package.name),
                remedy: "give it a row in xtask/src/tidy/rooms.rs, or move it into a room".into(),
            });
            continue;
        };
        for edge in &package.edges {
            let (used, allowed) = verdict(room, &edge.name, edge.kind);
            if !allowed {
                findings.push(Finding {
                    rule: "rooms",
                    line: line_of(tree.text(&manifest), &edge.name),
                    file: manifest.clone(),
                    found: format!("{} uses {used} ({:?})", room.name, edge.kind),
                    remedy: remedy(room),
                });
            }
        }
    }
    findings
}

/// The edge's far end in words, and whether the row has it.
fn verdict(room: &Room, dependency: &str, kind: Kind) -> (String, bool) {
    if let Some(other) = dependency.strip_prefix("lockstep-") {
        let shipped = room.rooms.contains(&other);
        let allowed = shipped || (kind == Kind::Dev && room.test_rooms.contains(&other));
        (format!("room {other}"), allowed)
    } else {
        let shipped = room.libraries.contains(&dependency);
        let allowed = shipped || (kind == Kind::Dev && TEST_LIBRARIES.contains(&dependency));
        (format!("library {dependency}"), allowed)
    }
}

fn remedy(room: &Room) -> String {
    let list = |words: &[&str]| {
        if words.is_empty() { "none".to_string() } else { words.join(", ") }
    };
    format!(
        "{}; rooms: {}; for tests also: {}; libraries: {}; let data flow down, return a value \
         instead of calling back",
        room.why,
        list(room.rooms),
        list(room.test_rooms),
        list(room.libraries)
    )
}

fn manifest_path(package: &Package) -> String {
    let tail: Vec<String> = package
        .manifest
        .components()
        .rev()
        .take(3)
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect();
    match tail.as_slice() {
        [file, dir, crates] if crates == "crates" => format!("{crates}/{dir}/{file}"),
        [file, dir, ..] => format!("{dir}/{file}"),
        _ => "Cargo.toml".into(),
    }
}

fn line_of(manifest: Option<&str>, dependency: &str) -> usize {
    manifest
        .and_then(|text| text.lines().position(|l| l.trim_start().starts_with(dependency)))
        .map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &str, dependency: &str, kind: &str) -> Metadata {
        Metadata::parse(&format!(
            r#"{{"workspace_members":["x"],"target_directory":"t","packages":[
            {{"id":"x","name":"{name}","manifest_path":"r/crates/x/Cargo.toml",
              "dependencies":[{{"name":"{dependency}","kind":{kind}}}]}}]}}"#
        ))
        .unwrap()
    }

    fn found(name: &str, dependency: &str, kind: &str) -> Vec<Finding> {
        let manifest = format!("[package]\n[dependencies]\n{dependency}.workspace = true\n");
        let tree = Tree::of(&[("crates/x/Cargo.toml", &manifest)]);
        check(&metadata(name, dependency, kind), &tree)
    }

    #[test]
    fn an_edge_outside_the_table_fails_with_its_line() {
        let findings = found("lockstep-sched", "lockstep-device", "null");
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].file.as_str(), findings[0].line), ("crates/x/Cargo.toml", 3));
        assert!(findings[0].found.contains("sched uses room device"));
        assert!(findings[0].remedy.contains("rooms: flow, pool"));
    }

    #[test]
    fn an_edge_of_the_table_passes() {
        assert!(found("lockstep-sched", "lockstep-pool", "null").is_empty());
        assert!(found("lockstep-cli", "clap", "null").is_empty());
    }

    #[test]
    fn a_library_outside_the_row_fails_even_for_tests() {
        assert_eq!(found("lockstep-text", "tokio", "null").len(), 1);
        assert_eq!(found("lockstep-text", "tokio", "\"dev\"").len(), 1);
        assert_eq!(found("lockstep-flow", "proptest", "\"build\"").len(), 1);
        assert!(found("lockstep-flow", "proptest", "\"dev\"").is_empty());
    }

    #[test]
    fn a_test_room_is_for_tests_only() {
        assert!(found("lockstep-model", "lockstep-device", "\"dev\"").is_empty());
        assert_eq!(found("lockstep-model", "lockstep-device", "null").len(), 1);
    }

    #[test]
    fn a_package_without_a_row_fails() {
        let findings = found("lockstep-attic", "serde", "null");
        assert!(findings[0].found.contains("no row"), "{findings:?}");
    }

    /// The table itself has no circle: walking shipped edges from any room never comes back.
    #[test]
    fn the_table_has_no_circle() {
        fn reaches(from: &str, to: &str, depth: usize) -> bool {
            assert!(depth < ROOMS.len() + 1, "a circle through {from}");
            let room = room_of(from).unwrap();
            room.rooms.iter().any(|next| *next == to || reaches(next, to, depth + 1))
        }
        for room in ROOMS {
            assert!(!reaches(room.name, room.name, 0), "{} reaches itself", room.name);
        }
    }
}
