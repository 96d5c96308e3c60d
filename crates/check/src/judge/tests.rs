//! Clean transcripts never alarm, and each mutation has its own class.

use super::*;
use crate::dialogue::{Kind, Rng, Session, Sizes, make};

const SIZES: Sizes = Sizes { context_tokens: 640, rounds: 3, answer_tokens_max: 300 };

/// The answer that the script itself holds after step `at`.
fn scripted(session: &Session, at: usize) -> Reply {
    let message = &session.messages[session.steps[at].messages];
    assert_eq!(message["role"], "assistant");
    let calls: Vec<Call> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| Call {
            name: call["function"]["name"].as_str().unwrap().into(),
            arguments: call["function"]["arguments"].as_str().unwrap().into(),
        })
        .collect();
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    Reply {
        text: message["content"].as_str().unwrap().into(),
        reasoning: String::new(),
        calls,
        finish: Some(finish.into()),
    }
}

fn sessions() -> Vec<Session> {
    (0..160).map(|id| make(21, id, Kind::ALL[(id / 4 % 4) as usize], SIZES)).collect()
}

/// Calls `body` with every step of every session.
fn each(mut body: impl FnMut(&Session, &Want, Reply, &Registry)) {
    let sessions = sessions();
    let registry = Registry::of(&sessions);
    for session in &sessions {
        for (at, step) in session.steps.iter().enumerate() {
            body(session, &step.want, scripted(session, at), &registry);
        }
    }
}

fn known<'a>(
    session: &'a Session,
    want: &'a Want,
    registry: &'a Registry,
    alone: Option<&'a Reply>,
    deterministic: bool,
) -> Knowledge<'a> {
    Knowledge { session, want, registry, alone, deterministic }
}

fn class(verdict: &Verdict) -> &'static str {
    verdict.corruption().map_or(verdict.class(), Corruption::class)
}

/// Once taken for a code that the model invented: the arguments are well-formed JSON.
#[test]
fn a_special_token_inside_a_calls_arguments_is_markup() {
    let mut seen = 0;
    each(|session, want, mut reply, registry| {
        let Some(call) = reply.calls.last_mut() else { return };
        let (key, value) = form::arguments(&call.arguments).unwrap();
        let (begin, end) = value.split_at(value.len() / 2);
        let value = format!("{begin}<|im_end|>{end}");
        call.arguments = serde_json::json!({"key": key, "value": value}).to_string();
        let verdict = judge(&reply, known(session, want, registry, None, false));
        assert_eq!(class(&verdict), "structural", "{verdict:?}");
        seen += 1;
    });
    assert!(seen > 20, "{seen}");
}

/// Once right, whatever it said.
#[test]
fn another_session_s_code_is_swapped_where_any_words_would_do() {
    let sessions = sessions();
    let registry = Registry::of(&sessions);
    let code = |s: &Session| s.codes.iter().find(|c| c.len() >= 8).cloned();
    let theirs = code(&sessions[1]).unwrap();
    let steps = || sessions[0].steps.iter().chain(sessions.iter().flat_map(|s| &s.steps));
    let reply = Reply { text: format!("It is {theirs}."), ..Reply::default() };
    assert!(steps().any(|s| matches!(s.want, Want::Words)));
    let verdict = judge(&reply, known(&sessions[0], &Want::Words, &registry, None, false));
    assert_eq!(class(&verdict), "swapped", "{verdict:?}");
    let own = Reply { text: code(&sessions[0]).unwrap(), ..Reply::default() };
    let verdict = judge(&own, known(&sessions[0], &Want::Words, &registry, None, false));
    assert_eq!(verdict, Verdict::Ok);
}

#[test]
fn clean_transcripts_never_alarm() {
    let mut judged = 0;
    each(|session, want, reply, registry| {
        for deterministic in [false, true] {
            let known = known(session, want, registry, Some(&reply), deterministic);
            assert_eq!(judge(&reply, known), Verdict::Ok, "{reply:?}");
        }
        judged += 1;
    });
    assert!(judged > 300, "{judged}");
}

/// Other wordings around the right codes are right where no determinism is claimed.
#[test]
fn another_wording_is_no_damage() {
    each(|session, want, reply, registry| {
        let Want::Codes(codes) = want else { return };
        let mut other = reply.clone();
        other.text = format!("Sure! Here you are, exactly: {}. Anything else?", codes.join(", "));
        let known = known(session, want, registry, Some(&reply), false);
        assert_eq!(judge(&other, known), Verdict::Ok);
    });
}

#[test]
fn one_changed_symbol_is_altered() {
    let mut rng = Rng::new(2);
    each(|session, want, mut reply, registry| {
        let code = match want {
            Want::Calls(calls) => calls[rng.index(calls.len())].1.clone(),
            Want::Codes(codes) => codes[rng.index(codes.len())].clone(),
            Want::Words => return,
        };
        let at = rng.index(code.len());
        let mut other = code.clone().into_bytes();
        other[at] = if other[at] == b'M' { b'F' } else { b'M' };
        let other = String::from_utf8(other).unwrap();
        reply.text = reply.text.replace(&code, &other);
        for call in &mut reply.calls {
            call.arguments = call.arguments.replace(&code, &other);
        }
        let verdict = judge(&reply, known(session, want, registry, None, false));
        assert_eq!(class(&verdict), "altered", "{verdict} in {reply:?}");
    });
}

#[test]
fn another_session_s_answer_is_swapped() {
    let sessions = sessions();
    let registry = Registry::of(&sessions);
    let mut swapped = 0;
    for (a, b) in sessions.iter().zip(sessions.iter().skip(4)) {
        for (at, step) in a.steps.iter().enumerate() {
            let Some(other) = b.steps.get(at) else { continue };
            let telling = |want: &Want| match want {
                Want::Calls(calls) => !calls.is_empty(),
                Want::Codes(codes) => codes.iter().any(|c| c.len() >= 6),
                Want::Words => false,
            };
            if !telling(&step.want) || !telling(&other.want) {
                continue;
            }
            let verdict = judge(&scripted(b, at), known(a, &step.want, &registry, None, false));
            let Some(Corruption::Swapped { of: Owner::Session(id), .. }) = verdict.corruption()
            else {
                panic!("{verdict}")
            };
            assert!(sessions[*id as usize].codes.iter().any(|c| b.codes.contains(c)));
            swapped += 1;
        }
    }
    assert!(swapped > 100, "{swapped}");
}

#[test]
fn another_key_s_value_is_swapped() {
    each(|session, want, mut reply, registry| {
        let Want::Calls(calls) = want else { return };
        let asked: Vec<&String> = calls.iter().flat_map(|(k, v)| [k, v]).collect();
        let other = session.codes.iter().find(|c| c.len() == 8 && !asked.contains(c)).unwrap();
        reply.calls[0].arguments = reply.calls[0].arguments.replace(&calls[0].1, other);
        let verdict = judge(&reply, known(session, want, registry, None, false));
        let of_key =
            matches!(verdict.corruption(), Some(Corruption::Swapped { of: Owner::Key, .. }));
        assert!(of_key, "{verdict}");
    });
}

#[test]
fn a_made_up_code_is_wrong_and_no_damage() {
    let mut rng = Rng::new(77);
    each(|session, want, mut reply, registry| {
        let Want::Codes(codes) = want else { return };
        let Some(code) = codes.iter().find(|c| c.len() == 8) else { return };
        let made_up: String =
            (0..8).map(|_| "346789CDGHKQWXYZ".as_bytes()[rng.index(16)] as char).collect();
        reply.text = reply.text.replace(code.as_str(), &made_up);
        let verdict = judge(&reply, known(session, want, registry, None, false));
        assert!(matches!(verdict, Verdict::Wrong(_)), "{verdict}");
    });
}

#[test]
fn broken_form_is_structural() {
    each(|session, want, reply, registry| {
        let known = known(session, want, registry, None, false);
        for leak in ["<|im_end|>", "</s>", "<｜DSML｜invoke", "<tool_call>", "\u{fffd}"] {
            let mut leaked = reply.clone();
            leaked.text.push_str(leak);
            assert_eq!(class(&judge(&leaked, known)), "structural", "{leak}");
        }
        let mut finish = reply.clone();
        finish.finish = Some(if reply.calls.is_empty() { "tool_calls" } else { "banana" }.into());
        assert_eq!(class(&judge(&finish, known)), "structural");
        for at in 0..reply.calls.len() {
            let mut cut = reply.clone();
            cut.calls[at].arguments.pop();
            assert_eq!(class(&judge(&cut, known)), "structural");
            let mut renamed = reply.clone();
            renamed.calls[at].name = "report_one".into();
            assert_eq!(class(&judge(&renamed, known)), "structural");
        }
    });
}

#[test]
fn soup_is_degenerate() {
    each(|session, want, reply, registry| {
        let known = known(session, want, registry, None, false);
        let soups =
            ["!".repeat(60), " the lamp is".repeat(20), "这是什么东西".into(), "привет".into()];
        for soup in soups {
            let mut bad = reply.clone();
            bad.text.push_str(&soup);
            assert_eq!(class(&judge(&bad, known)), "degenerate", "{soup}");
        }
    });
}

#[test]
fn any_difference_diverges_where_none_is_claimed() {
    each(|session, want, reply, registry| {
        if reply.text.len() < 8 {
            return;
        }
        let mut other = reply.clone();
        other.text.insert_str(reply.text.len() / 2, " and");
        let strict = judge(&other, known(session, want, registry, Some(&reply), true));
        assert!(["divergent", "altered"].contains(&class(&strict)), "{strict}");
        let mut reworded = reply.clone();
        reworded.text.push_str(" Anything else?");
        let strict = judge(&reworded, known(session, want, registry, Some(&reply), true));
        assert_eq!(class(&strict), "divergent");
        let lax = judge(&reworded, known(session, want, registry, Some(&reply), false));
        assert_eq!(lax, Verdict::Ok);
    });
}

/// A chunk that came twice, or one lost inside a word, is seen beside the answer alone.
#[test]
fn doubled_and_lost_chunks_are_seen() {
    let alone = "48GH is XDW6DHYD, receipt GXKK.";
    let altered = |found: &str| compare::stutter(alone, found, false).is_some();
    assert!(altered("48GH is is XDW6DHYD, receipt GXKK."));
    assert!(altered("48GH is XDW6DHYD, receipt receipt GXKK."));
    assert!(altered("48GH is XDW6DHYD, reipt GXKK."));
    assert!(!altered(alone));
    assert!(!altered("48GH XDW6DHYD, receipt GXKK."));
    assert!(!altered("The value of 48GH is XDW6DHYD, receipt GXKK."));
    assert!(compare::stutter(alone, "48GH is XDW6DHYD, receipt .", true).is_some());
    assert!(compare::stutter(alone, "H is XDW6DHYD, receipt GXKK.", true).is_some());
    assert!(compare::stutter(alone, "I do not know.", true).is_none());
}

#[test]
fn codes_damaged_in_other_ways_are_altered() {
    for (code, found) in [
        ("XDW6DHYD", "XDW6YD"),
        ("XDW6DHYD", "XDW6DHDHYD"),
        ("XDW6DHYD", "XDW6"),
        ("XDW6DHYD", "XDW6DHYDXDW6DHYD"),
        ("48GH", "48G"),
        // A piece of three: lost and doubled in the middle, doubled at the end. Once not seen.
        ("XDW6DHYD", "XDHYD"),
        ("XDW6DHYD", "W6DH"),
        ("XDW6DHYD", "XDW6DW6DHYD"),
        ("XDW6DHYD", "XDW6DHYDHYD"),
    ] {
        assert!(is_altered(code, found), "{code} {found}");
    }
    for (code, found) in [
        ("XDW6DHYD", "CDX74Z44"),
        ("48GH", "9H8Z"),
        ("XDW6DHYD", "XDY"),
        ("XDW6DHYD", "XKW6ZHQD"),
        ("48GHKQ", "48ZZZZZKQ"),
    ] {
        assert!(!is_altered(code, found), "{code} {found}");
    }
}

/// What the model gets wrong alone is compared with what it says alone: a slip is seen, another
/// answer is not.
#[test]
fn a_slip_in_a_wrong_answer_is_seen_and_another_wrong_answer_is_not() {
    let alone = "The codes are 48GHKQ and XDW6DHYD.";
    for found in [
        "The codes are 48GHKQ and XDW7DHYD.",
        "The codes are 48KQ and XDW6DHYD.",
        "The codes are 48GHGHKQ and XDW6DHYD.",
        "The codes codes are 48GHKQ and XDW6DHYD.",
    ] {
        let slip = compare::slip(alone, found);
        assert!(matches!(slip, Some(Corruption::Altered { .. })), "{found}: {slip:?}");
    }
    for found in [
        alone,
        "",
        "The codes are 48GHKQ and XDW6DHYD",
        "The codes are 48GHKQ, XDW6DHYD.",
        "The codes are 48GHKQ or XDW6DHYD.",
        "The codes are 93CZKQ and XDW6DHYD.",
        "I do not know the codes that you want.",
    ] {
        assert_eq!(compare::slip(alone, found), None, "{found}");
    }
}
