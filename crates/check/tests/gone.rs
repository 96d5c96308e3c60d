//! A server that goes away, or is started again, while it is checked: the check says so in place of
//! what it would say of a server that was never there.

#[path = "support/clerk.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod clerk;

use clerk::{Clerk, Door};
use lockstep_check::Stop;
use lockstep_check::client::{Client, Outcome, Target};
use lockstep_check::dialogue::Kind;
use lockstep_check::run::{
    CheckError, Conclusion, Finding, Options, Profile, Progress, Watch, check,
};
use std::sync::Arc;
use std::time::Duration;

fn options(kinds: &[Kind]) -> Options {
    let mut options = Options::of(Profile::Gate);
    options.sessions = 24;
    options.kinds = kinds.to_vec();
    options.accept_partial_coverage = true;
    options
}

/// A check of a clerk to whose door something happens once, as soon as `when` is so.
fn with_door(
    clerk: Clerk,
    options: Options,
    when: impl Fn(&Progress) -> bool + Send + Sync + 'static,
    happens: impl Fn(Arc<Door>) + Send + Sync + 'static,
) -> Result<Finding, CheckError> {
    let door = Arc::new(clerk::open(clerk));
    let client = Client::new(Target::parse(&format!("http://{}", door.address)).unwrap());
    let once = std::sync::Once::new();
    let watch: Watch = Arc::new(move |p: &Progress| {
        if when(p) {
            once.call_once(|| happens(Arc::clone(&door)));
        }
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(check(client, options, watch, Stop::default()))
}

fn at(phase: &'static str, done: u64) -> impl Fn(&Progress) -> bool + Send + Sync + 'static {
    move |p| p.phase.starts_with(phase) && p.done == done
}

fn why(finding: &Finding) -> String {
    let Conclusion::Inconclusive { why } = finding.conclude() else {
        panic!("{:?}", finding.conclude());
    };
    why.join("\n")
}

/// What was found: a server that was killed while it was calibrated "answered no request", or went
/// away "under load" that there had not been yet.
#[test]
fn a_server_that_goes_away_while_it_is_calibrated_is_said_to_have_gone() {
    let close = |door: Arc<Door>| door.close();
    let e = with_door(Clerk::default(), options(&[Kind::Report]), at("calibrating", 5), close);
    let e = e.unwrap_err();
    let CheckError::Lost(lost) = &e else { panic!("{e}") };
    assert_eq!(lost.answers, 5);
    assert!(matches!(lost.outcome, Some(Outcome::Connect { .. })), "{e}");
    let said = e.to_string();
    assert!(said.contains("went away while it was asked one request at a time, after 5"), "{said}");
    assert!(said.contains("start it again"), "{said}");
}

#[test]
fn a_server_that_goes_away_while_kinds_are_tried_is_said_to_have_gone() {
    let close = |door: Arc<Door>| door.close();
    let e = with_door(Clerk::default(), options(&[]), at("trying", 1), close).unwrap_err();
    let CheckError::Lost(lost) = &e else { panic!("{e}") };
    assert_eq!(lost.answers, 1, "{e}");
    assert!(e.to_string().contains("after 1 answer ("), "{e}");
}

#[test]
fn a_server_that_is_started_again_while_it_is_calibrated_is_told_from_one_that_stays_away() {
    let restart = |door: Arc<Door>| {
        door.close();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            door.open_again();
        });
    };
    let behind_a_proxy = |door: Arc<Door>| door.restart_behind_a_proxy();
    let tells = Clerk { counts_steps: true, ..Clerk::default() };
    for e in [
        with_door(Clerk::default(), options(&[Kind::Echo]), at("calibrating", 5), restart),
        with_door(tells, options(&[Kind::Echo]), at("calibrating", 5), behind_a_proxy),
    ] {
        let e = e.unwrap_err();
        let CheckError::Lost(lost) = &e else { panic!("{e}") };
        assert!(lost.answers >= 5 && lost.outcome.is_none(), "{e}");
        assert!(e.to_string().contains("ended and was started again"), "{e}");
    }
}

/// What was found: a soak went on sending to an address where nobody was until its time was over.
#[test]
fn a_soak_ends_where_its_server_does() {
    let mut soak = options(&[Kind::Echo]);
    (soak.profile, soak.time_limit) = (Profile::Soak, Duration::from_secs(3600));
    let enough = |p: &Progress| p.tally.ok == 30;
    let found = with_door(Clerk::default(), soak, enough, |door| door.close()).unwrap();
    let why = why(&found);
    assert!(why.contains("the server went away under load (no connection: "), "{why}");
    assert!(found.all().errors > 0);
}

/// What was found: of a server that tells nothing of itself, and was started again under load, only
/// the failed requests were counted.
#[test]
fn a_server_that_was_away_under_load_and_tells_nothing_is_said_to_have_been() {
    // Whoever is told waits, so that nothing is sent meanwhile but what is under way.
    let steps = std::sync::atomic::AtomicU32::new(0);
    let door = Arc::new(clerk::open(Clerk::default()));
    let client = Client::new(Target::parse(&format!("http://{}", door.address)).unwrap());
    let watch: Watch = Arc::new(move |p: &Progress| {
        use std::sync::atomic::Ordering::SeqCst;
        if p.tally.ok == 5 && steps.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
            door.close();
        }
        if p.tally.errors > 0 && steps.compare_exchange(1, 2, SeqCst, SeqCst).is_ok() {
            door.open_again();
        }
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let found =
        runtime.block_on(check(client, options(&[Kind::Report]), watch, Stop::default())).unwrap();
    let why = why(&found);
    assert!(why.contains("the server was away under load: "), "{why}");
    assert!(why.contains("found no connection, and it answers now"), "{why}");
    assert!(found.all().ok > 5);
}
