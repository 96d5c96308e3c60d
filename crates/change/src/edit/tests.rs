//! What edits change and what they must not: cases by hand, properties, and the shell itself as
//! the judge of what a program sees.

use super::*;
use proptest::prelude::*;
use std::process::Command as Process;

const PARALLEL: Wanted<'static> = Wanted { spellings: &["--parallel", "-np"], program: None };

fn set(text: &str, value: &str) -> Result<String, EditError> {
    set_flag(text.as_bytes(), Syntax::Shell, &PARALLEL, value)
        .map(|e| String::from_utf8(e.text).unwrap())
}

fn set_unit(text: &str, value: &str) -> Result<String, EditError> {
    set_flag(text.as_bytes(), Syntax::Unit, &PARALLEL, value)
        .map(|e| String::from_utf8(e.text).unwrap())
}

#[test]
fn only_the_flags_own_text_changes() {
    for (before, after) in [
        ("exec s --parallel 4 --x\n", "exec s --parallel 16 --x\n"),
        ("s --parallel=4", "s --parallel=16"),
        ("s -np 4 # --parallel 9\n", "s -np 16 # --parallel 9\n"),
        ("s \\\n  --parallel \\\n    4 \\\n --x\n", "s \\\n  --parallel \\\n    16 \\\n --x\n"),
        ("s --parallel \"4\"", "s --parallel \"16\""),
        ("s '--parallel=4' --x", "s '--parallel=16' --x"),
        ("s --parallel='4'", "s --parallel='16'"),
        ("s --parallel \"\"", "s --parallel 16"),
        ("N=4\nexec s --parallel $N", "N=16\nexec s --parallel $N"),
        ("export N=\"4\"\ns --parallel \"${N}\"", "export N=\"16\"\ns --parallel \"${N}\""),
        ("s --parallel ${N:-4}", "s --parallel ${N:-16}"),
        ("N=${N:-4}\ns --parallel=$N", "N=${N:-16}\ns --parallel=$N"),
        ("A=\"--x 1 --parallel 4\"\ns $A", "A=\"--x 1 --parallel 16\"\ns $A"),
        ("A=(--x 1\n  --parallel 4)\ns \"${A[@]}\"", "A=(--x 1\n  --parallel 16)\ns \"${A[@]}\""),
        ("exec sh -c 's --parallel 4'", "exec sh -c 's --parallel 16'"),
        ("echo --parallel 3\ns --parallel 4", "echo --parallel 3\ns --parallel 16"),
        ("s --parallel 4 2>log", "s --parallel 16 2>log"),
        ("cat <<E\n--parallel 3\nE\ns --parallel 4", "cat <<E\n--parallel 3\nE\ns --parallel 16"),
        ("X=1 nice s --parallel 4 &", "X=1 nice s --parallel 16 &"),
    ] {
        assert_eq!(set(before, "16").as_deref(), Ok(after), "{before}");
    }
}

#[test]
fn what_is_not_sure_is_refused_with_its_lines() {
    let said = |text: &str| set(text, "16").unwrap_err().to_string();
    assert!(said("s --parallel 4\nt -np 5").contains("2 times (lines 1, 2)"));
    assert!(said("s --parallel 4 --parallel 8").contains("2 times (lines 1, 1)"));
    assert!(said("\ns --parallel --x").contains("line 2 has no value"));
    assert!(said("s --parallel $(nproc)").contains("computed by the shell"));
    assert!(said("s --parallel $N").contains("takes its value from $N"));
    assert!(said("N=1\nN=2\ns --parallel $N").contains("N= is there 2 times (lines 1, 2)"));
    assert!(said("s --x").contains("is not there"));
    assert!(said("s \\\n $(echo --parallel 4)").contains("stands on line 2"));
    assert!(said("s '--parallel 4").contains("opens a single quote"));
    assert_eq!(said("# s --parallel 4\n"), said("s --x"), "a comment is no flag");
}

#[test]
fn a_value_that_a_shell_would_read_is_quoted_as_a_whole() {
    let json = "{\"max\":[1,2]}";
    assert_eq!(set("s --parallel 4", json).unwrap(), format!("s --parallel '{json}'"));
    assert_eq!(set("s --parallel=\"4\"", json).unwrap(), format!("s --parallel='{json}'"));
    assert!(
        set("A=\"--parallel 4\"\ns $A", json).unwrap_err().to_string().contains("inside other")
    );
}

#[test]
fn the_program_tells_two_commands_apart() {
    let wanted = Wanted { spellings: &["--port"], program: Some("decode") };
    let text = b"/opt/prefill --port 1 &\n/opt/decode --port 2\n";
    let edited = set_flag(text, Syntax::Shell, &wanted, "3").unwrap();
    assert_eq!(edited.text, b"/opt/prefill --port 1 &\n/opt/decode --port 3\n");
    assert_eq!((edited.line, edited.was.as_deref()), (2, Some("2")));
    let absent = Wanted { spellings: &["--new"], program: Some("decode") };
    let edited = set_flag(text, Syntax::Shell, &absent, "3").unwrap();
    assert_eq!(edited.text, b"/opt/prefill --port 1 &\n/opt/decode --new 3 --port 2\n");
    assert_eq!(edited.was, None);
}

/// A short flag of whatever runs the server was once taken for the server's own.
#[test]
fn a_wrapper_s_flags_are_its_own() {
    let ctx = |program| Wanted { spellings: &["--ctx-size", "-c"], program };
    let set = |text: &str, program| {
        let edited = set_flag(text.as_bytes(), Syntax::Shell, &ctx(program), "8192");
        edited.map(|e| String::from_utf8(e.text).unwrap())
    };
    let named = Some("s");
    for (before, after, program) in [
        ("taskset -c 0-3 s -c 4096", "taskset -c 0-3 s -c 8192", named),
        ("taskset -c 0-3 s --ctx-size 4096", "taskset -c 0-3 s --ctx-size 8192", None),
        ("sh -c 's -c 4096'", "sh -c 's -c 8192'", None),
        (
            "A=1 exec nice -n 5 taskset -c 1 /bin/s -c=1 -c 4",
            "A=1 exec nice -n 5 taskset -c 1 /bin/s -c=1 -c 8192",
            named,
        ),
        ("s -c 4096", "s -c 8192", None),
    ] {
        assert_eq!(set(before, program).as_deref(), Ok(after), "{before}");
    }
    assert!(set("taskset -c 0-3 s", None).is_err(), "there is none of the server's");
    assert_eq!(set("taskset -c 0 s", named).unwrap(), "taskset -c 0 s --ctx-size 8192");
    let command = |words: &str, program| {
        let text = format!("[launch]\ncommand = [{words}]\n");
        set_command(text.as_bytes(), &ctx(program), "8192")
            .map(|e| String::from_utf8(e.text).unwrap())
    };
    assert!(
        command("'taskset', '-c', '0', 's', '-c', '1'", named)
            .unwrap()
            .contains("'0', 's', '-c', \"8192\"")
    );
    assert!(command("'sh', '-c', 's -c 1'", None).is_err());
}

#[test]
fn unit_files_are_edited_in_place() {
    let unit = "[Service]\nEnvironment=\"N=4\" M=5\nExecStart=/bin/s --x 'a b' \\\n# why\n  \
                --parallel ${N}\nRestart=always\n";
    assert_eq!(set_unit(unit, "16").unwrap(), unit.replace("N=4", "N=16"));
    let unit =
        "[Service]\nExecStart=/bin/s --parallel=4\nExecStart=\nExecStart=/bin/s \"--parallel\" 5\n";
    assert_eq!(set_unit(unit, "16").unwrap(), unit.replace(" 5", " 16"), "the reset counts");
    let unit = "[Unit]\nDescription=s --parallel 9\n[Service]\nExecStart=/bin/s --parallel 4\n";
    assert_eq!(set_unit(unit, "16").unwrap(), unit.replace(" 4", " 16"));
    let edited = set_variable(b"[Service]\nEnvironment=A=1 B=2\n", Syntax::Unit, "B", "0").unwrap();
    assert_eq!(edited.text, b"[Service]\nEnvironment=A=1 B=0\n");
}

#[test]
fn a_settings_file_keeps_its_comments() {
    let text = b"# ours\n[decode]\ngraph-max-bs = 32 # the largest\n[pool]\nkv-memory = \"1GiB\"\n";
    let edited = set_toml(text, "decode.graph-max-bs", &TomlValue::Number(96)).unwrap();
    let after = String::from_utf8(text.to_vec()).unwrap().replace("32", "96");
    assert_eq!(edited.text, after.as_bytes());
    assert_eq!((edited.was.as_deref(), edited.line), (Some("32"), 3));
    let fresh = set_toml(b"", "decode.graph-max-bs", &TomlValue::Number(96)).unwrap();
    assert_eq!(fresh.text, b"[decode]\ngraph-max-bs = 96\n");
    let dotted =
        set_toml(b"decode.lanes = 2\n", "decode.graph-max-bs", &TomlValue::Number(9)).unwrap();
    assert!(String::from_utf8(dotted.text).unwrap().contains("decode.graph-max-bs = 9"));
    assert!(set_toml(b"[decode", "decode.lanes", &TomlValue::Number(1)).is_err());
    assert!(set_toml(b"decode = 1", "decode.lanes", &TomlValue::Number(1)).is_err());
}

#[test]
fn a_targets_command_keeps_its_layout() {
    let text = "[launch]\ncommand = [\n  \"s\", # the server\n  \"--parallel\", \"4\",\n]\n";
    let set = |text: &str| set_command(text.as_bytes(), &PARALLEL, "16");
    let edited = set(text).unwrap();
    assert_eq!(String::from_utf8(edited.text).unwrap(), text.replace("\"4\"", "\"16\""));
    assert_eq!(edited.was.as_deref(), Some("4"));
    let attached = set("[launch]\ncommand = ['s', '--parallel=4']\n").unwrap();
    assert!(String::from_utf8(attached.text).unwrap().contains("\"--parallel=16\""));
    assert!(set("[launch]\ncommand = ['s', '-np', '4', '--parallel', '5']\n").is_err());
    assert!(set("[launch]\ncommand = ['s', '-np']\n").is_err());
    assert!(set("[launch]\nmethod = 's'\n").is_err());
}

/// A word in one of the ways that people write it.
fn quoted(word: &str, style: u8) -> String {
    match style % 4 {
        0 if word.bytes().all(is_plain) && !word.is_empty() => word.into(),
        1 => format!(
            "\"{}\"",
            word.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$").replace('`', "\\`")
        ),
        2 if !word.is_empty() && !word.contains('\n') => {
            word.chars().map(|c| format!("\\{c}")).collect()
        }
        _ => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn blank(style: u8) -> &'static str {
    ["  ", " ", " \\\n\t", "\t"][usize::from(style % 4)]
}

/// What a program given these words sees, by the shell of this machine.
fn seen_by_sh(script: &str) -> Vec<String> {
    let whole = format!("s() {{ for a in \"$@\"; do printf '%s\\0' \"$a\"; done; }}\n{script}\n");
    let out = Process::new("sh").arg("-c").arg(whole).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.split_terminator('\0').map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The shell itself says that the flag's value is the new one and every other word is as before.
    #[test]
    fn a_shell_sees_the_new_value_and_no_other_change(
        before in proptest::collection::vec(("[ -~]{0,12}", any::<u8>()), 0..5),
        after in proptest::collection::vec(("[ -~]{0,12}", any::<u8>()), 0..5),
        styles in any::<(u8, u8, u8, bool)>(),
        value in "[a-z0-9./]{1,8}",
    ) {
        let about = |w: &(String, u8)| w.0.contains("--parallel") || w.0.contains("-np");
        prop_assume!(!before.iter().chain(&after).any(about));
        let mut script = String::from("s");
        let mut push = |word: &str, style: u8| {
            script.push_str(blank(style));
            script.push_str(&quoted(word, style / 4));
        };
        before.iter().for_each(|(w, style)| push(w, *style));
        if styles.3 {
            push("--parallel=4", styles.0);
        } else {
            push("--parallel", styles.0);
            push("4", styles.1);
        }
        after.iter().for_each(|(w, style)| push(w, *style));
        let edited = set_flag(script.as_bytes(), Syntax::Shell, &PARALLEL, &value).unwrap();
        let text = String::from_utf8(edited.text).unwrap();
        let (old, new) = (seen_by_sh(&script), seen_by_sh(&text));
        prop_assert_eq!(old.len(), new.len());
        let at = before.len() + usize::from(!styles.3);
        for (i, (o, n)) in old.iter().zip(&new).enumerate() {
            if i == at {
                let shown = if styles.3 { format!("--parallel={value}") } else { value.clone() };
                prop_assert_eq!(n, &shown);
            } else {
                prop_assert_eq!(o, n);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes: no panic, and what is edited differs in the stated bytes alone.
    #[test]
    fn any_bytes_are_edited_in_one_place_or_refused(
        parts in proptest::collection::vec(prop_oneof![
            Just(b"--parallel".to_vec()), Just(b" 4 ".to_vec()), Just(b"=".to_vec()),
            Just(b"[Service]\nExecStart=".to_vec()), Just(b"\\\n".to_vec()), Just(b"'".to_vec()),
            Just(b"\"".to_vec()), Just(b"$N".to_vec()), Just(b"N=".to_vec()), Just(b"${".to_vec()),
            Just(b"$(".to_vec()), Just(b"<<E\n".to_vec()), Just(b"#".to_vec()), Just(b"\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ], 0..14),
        unit in any::<bool>(),
    ) {
        let text = parts.concat();
        let syntax = if unit { Syntax::Unit } else { Syntax::Shell };
        if let Ok(edited) = set_flag(&text, syntax, &PARALLEL, "16") {
            let Range { start, end } = edited.changed;
            let tail = edited.text.len() - end;
            prop_assert_eq!(&edited.text[..start], &text[..start]);
            prop_assert_eq!(&edited.text[end..], &text[text.len() - tail..]);
            let again = get_flag(&edited.text, syntax, &PARALLEL).unwrap();
            prop_assert_eq!(again.as_deref(), Some("16"));
        }
        let _ = set_toml(&text, "decode.graph-max-bs", &TomlValue::Number(1));
    }
}
