//! The gate against a clerk that is never wrong, by way of a proxy that damages answers: every
//! class is told apart at its rate, and nothing is ever held against a sound server.

#[path = "support/clerk.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod clerk;
#[path = "support/proxy.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod proxy;

use clerk::Clerk;
use lockstep_check::Stop;
use lockstep_check::client::{Client, Target, Timeouts};
use lockstep_check::coverage::Source;
use lockstep_check::dialogue::{Kind, make};
use lockstep_check::isolate::Rung;
use lockstep_check::judge::Verdict;
use lockstep_check::report;
use lockstep_check::run::{
    Answer, Claim, Conclusion, Finding, Options, Profile, Progress, Watch, check,
};
use proxy::{Fault, Plan};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

fn options(sessions: u32) -> Options {
    let mut options = Options::of(Profile::Gate);
    options.sessions = sessions;
    options.sizes.answer_tokens_max = 240;
    options.accept_partial_coverage = true;
    options
}

fn run(url: &str, options: &Options, timeout: Duration) -> Finding {
    watched(url, options, timeout, Arc::new(|_: &Progress| ()))
}

/// The same, with somebody who is told how far it is.
fn watched(url: &str, options: &Options, timeout: Duration, watch: Watch) -> Finding {
    let timeouts = Timeouts { total: timeout, idle: timeout, ..Timeouts::default() };
    let client = Client::new(Target::parse(url).unwrap().with_timeouts(timeouts));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(check(client, options.clone(), watch, Stop::default())).unwrap()
}

const PATIENT: Duration = Duration::from_secs(120);

/// The finding with a fault in one of `one_in` answers, and how many were put in. The fault begins
/// after the calibration, which asks for every answer alone, twice.
fn faulty(fault: Fault, one_in: u64, options: &Options, timeout: Duration) -> (Finding, u64) {
    let upstream = clerk::start(Clerk::default());
    let (finding, faults) = faulty_by(&upstream, fault, one_in, options, timeout);
    assert_eq!(finding.calibrated.0, finding.calibrated.1, "the clerk knows everything");
    (finding, faults)
}

/// The same at a clerk of another kind.
fn faulty_at(clerk: Clerk, fault: Fault, one_in: u64, options: &Options) -> (Finding, u64) {
    faulty_by(&clerk::start(clerk), fault, one_in, options, PATIENT)
}

fn rung<'a>(finding: &'a Finding, change: &str) -> &'a Rung {
    let found = finding.ladder.iter().find(|r| r.change.starts_with(change));
    found.unwrap_or_else(|| panic!("{change} is no rung of {:?}", finding.ladder))
}

fn faulty_by(
    upstream: &str,
    fault: Fault,
    one_in: u64,
    options: &Options,
    timeout: Duration,
) -> (Finding, u64) {
    let kind = |id: u32| options.kinds[(id / 4) as usize % options.kinds.len()];
    let steps = |id| make(options.seed, id, kind(id), options.sizes).steps.len() as u64;
    let requests: u64 = (0..options.sessions).map(steps).sum();
    let plan = Plan { fault, one_in, after: 2 * requests, seed: 5 };
    let proxy = proxy::start(upstream, plan).unwrap();
    let finding = run(&proxy.address, options, timeout);
    assert_eq!(finding.calibrated.0, requests);
    (finding, proxy.faults())
}

fn classes(finding: &Finding) -> BTreeSet<&'static str> {
    finding.classes().into_keys().collect()
}

fn some(kinds: &[Kind], sessions: u32) -> Options {
    Options { kinds: kinds.to_vec(), ..options(sessions) }
}

const SPOKEN: [Kind; 4] = [Kind::Report, Kind::Lookup, Kind::Echo, Kind::List];

#[test]
fn a_sound_server_never_alarms() {
    let url = format!("http://{}", clerk::start(Clerk::default()));
    for (claim, seed) in [(Claim::No, 1), (Claim::Yes, 2), (Claim::Auto, 3)] {
        let options = Options { deterministic: claim, seed, ..options(48) };
        let finding = run(&url, &options, PATIENT);
        assert_eq!(finding.conclude(), Conclusion::Clean, "{}", report::summary(&finding));
        let tally = finding.tally();
        assert_eq!((tally.wrong, tally.corrupted), (0, 0));
        assert!(tally.ok > 100 && finding.aborts > 10, "{}", report::summary(&finding));
        assert_eq!(finding.calibrated.0, finding.calibrated.1);
    }
}

/// Damage that is in the text: as many corrupted answers as were damaged, in the right class.
#[test]
fn every_kind_of_damage_has_its_class_and_its_rate() {
    let cases: [(Fault, &[&str], f64); 5] = [
        (Fault::Alter, &["altered", "structural"], 0.9),
        (Fault::Drop, &["altered", "structural"], 0.85),
        (Fault::Duplicate, &["altered", "structural"], 0.85),
        (Fault::Leak, &["structural"], 1.0),
        (Fault::Swap, &["swapped", "altered"], 0.9),
    ];
    for (fault, allowed, least) in cases {
        // Of an answer that the client leaves in the middle nobody sees the damage.
        let options = Options { deterministic: Claim::No, churns: false, ..some(&SPOKEN, 96) };
        let (finding, faults) = faulty(fault, 10, &options, PATIENT);
        let corrupted = finding.tally().corrupted;
        assert!(faults >= 10, "{fault:?}: {faults} faults");
        // Some fall on a word that no one is told the letters of.
        let seen = corrupted as f64 / faults as f64;
        assert!(seen >= least, "{fault:?}: {corrupted} of {faults}");
        assert!(corrupted <= faults, "{fault:?}: {corrupted} of {faults}");
        let found = classes(&finding);
        assert!(found.iter().all(|c| allowed.contains(c)), "{fault:?}: {found:?}");
        assert!(found.contains(allowed[0]), "{fault:?}: {found:?}");
        assert!(matches!(finding.conclude(), Conclusion::Corrupted { .. }));
        let (ms, answers, _) = finding.first_damage().unwrap();
        assert!(answers > 0 && ms < 600_000);
    }
}

/// What takes an answer away is no corruption.
#[test]
fn errors_cuts_and_stalls_are_no_corruption() {
    for (fault, class) in
        [(Fault::Error, "error"), (Fault::Cut, "error"), (Fault::Stall, "timeout")]
    {
        let options = some(&[Kind::Report, Kind::Echo], 32);
        let timeout = if fault == Fault::Stall { Duration::from_secs(6) } else { PATIENT };
        let (finding, faults) = faulty(fault, 24, &options, timeout);
        let of_class = finding.answers.iter().filter(|a| a.verdict.class() == class).count() as u64;
        assert!(faults > 0 && of_class > 0, "{fault:?}: {of_class} of {faults}");
        assert_eq!(finding.tally().corrupted, 0, "{}", report::summary(&finding));
        assert_ne!(finding.conclude().name(), "corrupted");
    }
}

/// One in 200 is found, and the report replays it.
#[test]
fn one_altered_character_in_two_hundred_answers_is_found_and_replayed() {
    let mut options = some(&[Kind::Report, Kind::Lookup], 96);
    options.bound = Some(0.001);
    // The bound ends it: it is refuted.
    options.time_limit = Duration::from_secs(600);
    let (finding, faults) = faulty(Fault::Alter, 200, &options, PATIENT);
    assert!(faults > 0);
    assert!(finding.tally().corrupted > 0, "{}", report::summary(&finding));
    let json = report::json(&finding);
    assert_eq!(json["conclusion"], "corrupted");
    let again = report::replay(&json.to_string()).unwrap();
    assert_eq!(again.only, finding.corrupted_sessions().into_iter().collect::<Vec<_>>());
    assert_eq!((again.seed, again.sessions, again.sizes), (1, 96, options.sizes));
    let sound = run(&format!("http://{}", clerk::start(Clerk::default())), &again, PATIENT);
    assert!(sound.answers.iter().all(|a| again.only.contains(&a.session)));
    assert_eq!(sound.tally().corrupted, 0);
    let page = report::html(&finding);
    assert!(page.contains("<svg") && page.contains("Evidence") && !page.contains("http-equiv"));
}

/// A model that cannot do a request is not held against the server, and one that can do too little
/// makes the run inconclusive.
#[test]
fn a_weak_model_is_no_corruption() {
    let weak = Clerk { forgets_one_in: 3, ..Clerk::default() };
    let url = format!("http://{}", clerk::start(weak));
    let finding = run(&url, &Options { deterministic: Claim::No, ..options(48) }, PATIENT);
    let (requests, reliable) = finding.calibrated;
    assert!(reliable < requests * 9 / 10, "{reliable} of {requests}");
    assert_eq!(finding.conclude(), Conclusion::Clean, "{}", report::summary(&finding));
    assert!(finding.answers.iter().any(|a| matches!(a.verdict, Verdict::Wrong(_))));
    let hopeless = Clerk { forgets_one_in: 1, ..Clerk::default() };
    let url = format!("http://{}", clerk::start(hopeless));
    let finding = run(&url, &Options { deterministic: Claim::No, ..options(24) }, PATIENT);
    let Conclusion::Inconclusive { why } = finding.conclude() else { panic!() };
    assert!(why[0].contains("answers count"), "{why:?}");
}

/// What a model cannot do it fails at in the same words: damage to these is seen where the server
/// tells that the model was sure of them, and held against nobody else.
#[test]
fn damage_to_a_wrong_answer_is_seen_where_the_model_was_sure_of_it() {
    let kinds = some(&[Kind::Lookup, Kind::Echo], 48);
    let options = Options { deterministic: Claim::No, churns: false, ..kinds };
    let in_wrong = |finding: &Finding| {
        let is = |a: &&Answer| !a.is_evidence && a.verdict.corruption().is_some();
        finding.answers.iter().filter(is).count()
    };
    for (tells_p, is_seen) in [(0.999, true), (0.6, false), (0.0, false), (1.0, false)] {
        let clerk = Clerk { forgets_one_in: 2, tells_p, ..Clerk::default() };
        let (finding, faults) = faulty_at(clerk, Fault::Alter, 6, &options);
        assert!(finding.calibrated.1 < finding.calibrated.0 && faults > 5);
        assert_eq!(in_wrong(&finding) > 0, is_seen, "{tells_p}: {}", report::summary(&finding));
    }
    let sound = Clerk { forgets_one_in: 2, tells_p: 0.999, ..Clerk::default() };
    let finding = run(&format!("http://{}", clerk::start(sound)), &options, PATIENT);
    assert_eq!(finding.tally().corrupted, 0, "{}", report::summary(&finding));
}

/// A model that stumbles now and then, alone as in a crowd, is not worse in a crowd.
#[test]
fn stumbling_alike_alone_and_in_a_crowd_is_no_corruption() {
    let clerk = Clerk { stumbles_one_in: 15, ..Clerk::default() };
    let url = format!("http://{}", clerk::start(clerk));
    let options = Options { deterministic: Claim::No, calibrations: 6, ..options(48) };
    let finding = run(&url, &options, PATIENT);
    assert!(finding.base_rate.0 > 0 && finding.tally().wrong > 0);
    assert_eq!(finding.conclude(), Conclusion::Clean, "{}", report::summary(&finding));
}

#[test]
fn refusals_are_refusals_and_the_request_is_sent_again() {
    let clerk = Clerk { refuses_above: 4, takes: Duration::from_millis(20), ..Clerk::default() };
    let url = format!("http://{}", clerk::start(clerk));
    let finding = run(&url, &some(&[Kind::Echo, Kind::Report], 24), PATIENT);
    assert!(finding.all().refused > 0, "{}", report::summary(&finding));
    assert_eq!(finding.tally().corrupted, 0);
}

/// Coverage is inferred from slots, and a bucket that the load missed is filled.
#[test]
fn coverage_is_inferred_from_slots_and_filled() {
    let clerk = Clerk { slots: 8, takes: Duration::from_millis(80), ..Clerk::default() };
    let url = format!("http://{}", clerk::start(clerk));
    let options =
        Options { accept_partial_coverage: false, ..some(&[Kind::Echo, Kind::Report], 8) };
    let finding = run(&url, &options, PATIENT);
    assert_eq!(finding.coverage.source, Source::Inferred);
    assert_eq!(finding.coverage.missing().len(), 0, "{:?}", finding.coverage);
    assert_eq!(finding.conclude(), Conclusion::Clean, "{}", report::summary(&finding));
    let blind = format!("http://{}", clerk::start(Clerk::default()));
    let Conclusion::Inconclusive { why } = run(&blind, &options, PATIENT).conclude() else {
        panic!("nothing is known of its batches")
    };
    assert!(why[0].contains("--decode-log"), "{why:?}");
}

/// A load of less than a server's interval between two lines of its decode log ended before the
/// first one came, and was once told as one that no line speaks of.
#[test]
fn a_decode_log_that_speaks_after_the_load_is_waited_for() {
    let url = format!("http://{}", clerk::start(Clerk::default()));
    let path = std::env::temp_dir().join(format!("lockstep-late-log-{}", std::process::id()));
    std::fs::write(&path, "").unwrap();
    let options =
        Options { decode_log: Some(path.clone()), ..some(&[Kind::Echo, Kind::Report], 8) };
    let late = path.clone();
    let watch = move |p: &Progress| {
        if p.phase.contains("decode log") {
            let line = "Decode batch, #running-req: 5, cuda graph: True\n";
            std::fs::write(&late, line).unwrap();
        }
    };
    let finding = watched(&url, &options, PATIENT, Arc::new(watch));
    std::fs::remove_file(path).unwrap();
    let coverage = &finding.coverage;
    assert_eq!((coverage.source, coverage.peak_running), (Source::Inferred, 5), "{coverage:?}");
    assert!(!coverage.is_log_silent);
}

/// With --accept-partial-coverage a summary once was CLEAN like any other, and did not say what the
/// load had missed.
#[test]
fn accepted_gaps_are_told() {
    let clerk = Clerk { slots: 16, ..Clerk::default() };
    let url = format!("http://{}", clerk::start(clerk));
    let mut finding = run(&url, &some(&[Kind::Echo, Kind::Report], 12), PATIENT);
    // Which sizes so quick a server is seen with is chance.
    finding.coverage.buckets.iter_mut().for_each(|b| b.seen = u64::from(b.rows <= 4));
    let (summary, page) = (report::summary(&finding), report::html(&finding));
    assert_eq!(finding.conclude(), Conclusion::Clean, "{summary}");
    assert!(summary.starts_with("CLEAN (partial coverage)  0 of "), "{summary}");
    assert!(summary.contains("\n             missed: 8, 12\n"), "{summary}");
    assert!(page.contains("<h1>clean (partial coverage): "), "{page}");
    assert!(page.contains("--sessions 12 ") && page.contains(" --seed 1 "), "{page}");
    let blind = format!("http://{}", clerk::start(Clerk::default()));
    let summary = report::summary(&run(&blind, &some(&[Kind::Echo, Kind::Report], 12), PATIENT));
    assert!(summary.starts_with("CLEAN (partial coverage)  "), "{summary}");
    assert!(summary.contains("\ncoverage     unknown: "), "{summary}");
    assert!(summary.contains("\n             missed: "), "{summary}");
}

/// The requests one at a time before the load were once counted as coverage: buckets that no crowd
/// had gone through looked exercised.
#[test]
fn calibration_is_no_coverage() {
    let clerk = Clerk { counts_steps: true, ..Clerk::default() };
    let url = format!("http://{}", clerk::start(clerk));
    let options = some(&[Kind::Echo], 4);
    let finding = run(&url, &options, PATIENT);
    assert_eq!(finding.coverage.source, Source::Exactly);
    let steps: u64 = finding.coverage.buckets.iter().map(|b| b.seen).sum();
    let under_load = finding.answers.len() as u64 + u64::from(finding.aborts);
    assert_eq!(steps, under_load, "{:?}", finding.coverage);
    assert!(finding.calibrated.0 > 0);
}

/// A soak goes on until its time is over, and a bound until it is reached.
#[test]
fn a_soak_and_a_bound_send_wave_after_wave() {
    let url = format!("http://{}", clerk::start(Clerk::default()));
    let mut soak = some(&[Kind::Echo, Kind::Report], 24);
    soak.profile = Profile::Soak;
    soak.time_limit = Duration::from_secs(2);
    let finding = run(&url, &soak, PATIENT);
    assert!(finding.waves > 1, "{}", report::summary(&finding));
    assert_eq!(finding.conclude(), Conclusion::Clean);
    let bound = Options { bound: Some(0.02), ..some(&[Kind::Echo, Kind::Report], 24) };
    let finding = run(&url, &bound, PATIENT);
    // 0 of 149 bounds a rate at 2%.
    assert!(finding.waves > 1 && finding.tally().judged() >= 149);
    assert_eq!(finding.conclude(), Conclusion::Clean, "{}", report::summary(&finding));
}

/// An ended check once saved nothing, not even damage that it had found.
#[test]
fn what_was_found_before_the_end_is_kept_and_replayed() {
    let ended =
        |url: &str, phase: &'static str, enough: fn(&Progress) -> bool, options: &Options| {
            let stop = Stop::default();
            let asker = stop.clone();
            let watch: Watch = Arc::new(move |p: &Progress| {
                if p.phase.starts_with(phase) && enough(p) {
                    asker.stop();
                }
            });
            let client = Client::new(Target::parse(url).unwrap());
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(check(client, options.clone(), watch, stop))
        };
    let clerk = Clerk { takes: Duration::from_millis(5), ..Clerk::default() };
    let upstream = clerk::start(clerk);
    let url = format!("http://{upstream}");
    let options = some(&[Kind::Report, Kind::Lookup], 48);

    let finding = ended(&url, "wave", |p| p.done == 30, &options).unwrap();
    assert!(finding.is_ended_early && (30..200).contains(&finding.answers.len()));
    let Conclusion::Inconclusive { why } = finding.conclude() else { panic!() };
    assert!(why[0].starts_with("it was ended early"), "{why:?}");
    let again = report::replay(&report::json(&finding).to_string()).unwrap();
    assert_eq!((again.only.len(), again.sessions, again.seed), (0, 48, 1));
    assert_eq!(again.kinds, options.kinds);

    let finding = ended(&url, "calibrating", |p| p.done == 30, &options).unwrap();
    assert_eq!((finding.answers.len(), finding.waves), (0, 0));
    assert!(matches!(finding.conclude(), Conclusion::Inconclusive { .. }));
    let nothing = ended(&url, "calibrating", |_| true, &options).unwrap_err();
    assert!(nothing.to_string().contains("nothing to report"), "{nothing}");

    // Damage that was found is damage, however the run ended.
    let options = Options { deterministic: Claim::Yes, ..options };
    let plan = Plan { fault: Fault::Alter, one_in: 4, after: 0, seed: 5 };
    let proxy = proxy::start(&upstream, plan).unwrap();
    let finding = ended(&proxy.address, "wave", |p| p.tally.corrupted == 3, &options).unwrap();
    assert!(finding.is_ended_early && finding.tally().corrupted >= 3);
    assert_eq!(finding.conclude().name(), "corrupted");
    let again = report::replay(&report::json(&finding).to_string()).unwrap();
    assert_eq!(again.only, finding.corrupted_sessions().into_iter().collect::<Vec<_>>());
}

/// Damage that is put in behind `/v1/chat/completions` alone goes with that endpoint, whoever writes
/// the prompts, and with nothing else; what could not be tried says why.
#[test]
fn the_ladder_names_the_change_that_removes_the_damage() {
    let options = Options { isolate: true, deterministic: Claim::No, ..some(&[Kind::Report], 32) };
    for (tokenizes, how) in [(true, "as token ids"), (false, "in words")] {
        let clerk = Clerk { tokenizes, ..Clerk::default() };
        let (finding, _) = faulty_at(clerk, Fault::Swap, 4, &options);
        let rung = |change: &str| rung(&finding, change);
        let plain = rung("/v1/completions");
        assert!(plain.removes(), "{}: {}", plain.change, plain.words());
        assert!(plain.change.contains(how) && plain.change.contains("call a tool"), "{plain:?}");
        let others =
            ["nothing", "one session", "no prefix", "no streams", "no aborts", "a quarter"];
        for change in others {
            assert!(!rung(change).removes(), "{change}: {}", rung(change).words());
        }
        for (change, why) in [
            ("as many sessions", "does not tell its buckets"),
            ("every step op by op", "cannot be changed"),
            ("one lane", "cannot be changed"),
            ("another type of index keys", "cannot be changed"),
            ("another way to the model", "--other-url"),
        ] {
            assert!(rung(change).words().contains(why), "{}", rung(change).words());
        }
        assert_eq!(finding.ladder.len(), 12);
        let said = report::summary(&finding);
        assert!(finding.ladder.iter().all(|r| said.contains(&r.change)), "{said}");
    }
}

/// Where the server takes no prompts, or all damage is in what no prompt can ask for, the rung says
/// so in place of a result.
#[test]
fn a_rung_that_cannot_be_tried_says_why() {
    let options = Options { isolate: true, deterministic: Claim::No, ..some(&[Kind::Echo], 32) };
    let (finding, _) = faulty_at(
        Clerk { only_chats: true, slots: 4, ..Clerk::default() },
        Fault::Alter,
        4,
        &options,
    );
    let words = rung(&finding, "/v1/completions").words();
    assert!(words.contains("not tried") && words.contains("404"), "{words}");
    let words = rung(&finding, "every step op by op").words();
    assert!(words.contains("GGML_CUDA_DISABLE_GRAPHS=1") && words.contains("--replay"), "{words}");
    assert!(!rung(&finding, "as many sessions").words().contains("not tried"));
}

/// Another prompt has another answer: that it was not compared was once taken for the cure.
#[test]
fn a_difference_to_the_answer_alone_is_not_removed_by_another_prompt() {
    let options = Options { isolate: true, deterministic: Claim::Yes, ..some(&[Kind::Echo], 32) };
    let takes = Duration::from_millis(5);
    let clerk = Clerk { chats_one_in: 3, takes, ..Clerk::default() };
    let url = format!("http://{}", clerk::start(clerk));
    let finding = run(&url, &options, PATIENT);
    assert_eq!(classes(&finding), BTreeSet::from(["divergent"]));
    let words = rung(&finding, "no prefix").words();
    assert!(words.contains("not tried") && words.contains("other answers"), "{words}");
    assert!(!rung(&finding, "nothing").removes() && rung(&finding, "one session").removes());
}

#[test]
fn nothing_that_answers_is_an_error_that_says_so() {
    let client = Client::new(Target::parse("http://127.0.0.1:9").unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |client, options| {
        runtime.block_on(check(client, options, Arc::new(|_| ()), Stop::default())).unwrap_err()
    };
    let e = ask(client, options(8));
    assert!(e.to_string().contains("127.0.0.1:9"), "{e}");
    let bad = Options { sessions: 0, ..options(8) };
    let client = Client::new(Target::parse("http://127.0.0.1:9").unwrap());
    let e = ask(client, bad);
    assert!(e.to_string().contains("--sessions is 0"), "{e}");
}
