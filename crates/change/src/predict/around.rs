//! What the role of a server, and the workers around it, mean for a change.

use super::{Finding, Grounds, Wish, own};
use crate::address::is_here;
use crate::deployment::{Peer, is_one_side, needs_router};
use crate::readback::Readback;
use crate::rules::{self, Effect};
use crate::target::{Kind, Launch, Target};

/// Programs that listen for others.
const FORWARDERS: [&str; 10] = [
    "ssh",
    "sshd",
    "docker-proxy",
    "rootlessport",
    "kubectl",
    "socat",
    "nginx",
    "haproxy",
    "envoy",
    "systemd",
];

/// Findings about where the server stands and what stands around it.
pub fn findings(target: &Target, r: &Readback, wishes: &[Wish], grounds: &Grounds) -> Vec<Finding> {
    let mut all: Vec<Finding> = place(target, grounds.holder.as_deref()).into_iter().collect();
    all.extend(alarms(r));
    all.extend(roles(target, r, grounds));
    let role = r.role.as_deref();
    let peers = &grounds.around.peers;
    let alike = |p: &&Peer| p.role() == role || !is_one_side(role) && !is_one_side(p.role());
    let same: Vec<&Peer> = peers.iter().filter(alike).collect();
    if let Some(router) = target.router.as_ref().filter(|_| target.launch != Launch::Live) {
        all.push(while_restarting(router, role, &same, &grounds.around.router_fault));
    }
    for wish in wishes {
        all.extend(left_behind(wish, &same));
    }
    for peer in peers {
        all.extend(dead_flags(peer));
    }
    all
}

/// A server that this machine starts must be on it, and what is ended there the server itself.
fn place(target: &Target, holder: Option<&str>) -> Option<Finding> {
    let is_started = !matches!(target.launch, Launch::Live | Launch::Unknown);
    let is_ended = matches!(target.launch, Launch::Script { .. } | Launch::Command { .. });
    if let Some(program) = holder.filter(|h| is_ended && FORWARDERS.contains(h)) {
        let words = format!(
            "{} is held by {program}, which only passes requests on: the server is elsewhere, and \
             {program} would be ended in its place; name the server's own address",
            target.url
        );
        return Some(Finding { source: "the system".into(), ..own("not-the-server", words, true) });
    }
    (is_started && !is_here(&target.url)).then(|| {
        let words = format!(
            "{} is not on this machine, so what starts it (launch.method {}) cannot be edited and \
             restarted from here: run `lockstep change` there",
            target.url,
            target.launch.method()
        );
        Finding { source: "the target's address".into(), ..own("not-here", words, true) }
    })
}

/// Alarms that stand before the change: they are not its doing.
fn alarms(r: &Readback) -> Option<Finding> {
    (!r.alarms.is_empty()).then(|| {
        let words = format!(
            "raised now, before the change: {}; only what is raised beside these counts against it",
            r.alarms.join(", ")
        );
        own("alarms-before", words, false)
    })
}

fn roles(target: &Target, r: &Readback, grounds: &Grounds) -> Vec<Finding> {
    let mut all = Vec::new();
    let role = r.role.as_deref();
    let said = grounds.around.said_role.as_deref();
    if let (Some(is), Some(said)) = (role, said)
        && is != said
    {
        let words = format!("the server runs as {is}, and is listed as {said}");
        all.push(own("role-differs", words, true));
    }
    if !is_one_side(role) {
        return all;
    }
    let role = role.unwrap_or_default();
    match &target.router {
        None if needs_router(r.kind, Some(role)) => {
            let words = format!(
                "a {role} worker answers no request by itself, so no gate could be run: name its \
                 router in the target (router = \"http://HOST:PORT\")"
            );
            all.push(own("one-side-without-router", words, true));
        }
        None => {}
        Some(router) => {
            let words = format!(
                "a {role} worker has one side of each request: the gates' requests go through \
                 {router}, settings and batches are read from {} itself, since a router tells of \
                 a prefill worker alone",
                target.url
            );
            let source =
                "sgl-model-gateway: /get_server_info is passed to the first prefill worker";
            let finding = own("requests-through-router", words, false);
            let source =
                if r.kind == Kind::Sglang { source.into() } else { finding.source.clone() };
            all.push(Finding { source, ..finding });
        }
    }
    all
}

/// Who carries the load while the server is away.
fn while_restarting(
    router: &str,
    role: Option<&str>,
    same: &[&Peer],
    fault: &Option<String>,
) -> Finding {
    let kind = role.map_or(String::new(), |r| format!("{r} "));
    if let Some(why) = fault {
        let words = format!("{router} cannot be asked who else is behind it: {why}");
        return own("router-silent", words, false);
    }
    if same.is_empty() {
        let words = format!(
            "it is the only {kind}worker of {router}: requests fail from its drain until it is back"
        );
        return own("only-worker", words, false);
    }
    let list: Vec<&str> = same.iter().map(|p| p.worker.url.as_str()).collect();
    let words = format!(
        "while it restarts {} other {kind}workers carry its load: {}",
        list.len(),
        list.join(", ")
    );
    own("others-carry", words, false)
}

/// Workers of the same role that keep another value.
fn left_behind(wish: &Wish, same: &[&Peer]) -> Option<Finding> {
    let other = |p: &&Peer| {
        let is = p.readback.as_ref()?.value(&wish.name)?;
        (is != wish.value).then(|| format!("{} has {is}", p.worker.url))
    };
    let list: Vec<String> = same.iter().filter_map(other).collect();
    (!list.is_empty()).then(|| {
        let words = format!(
            "with this change alone workers of one role differ in {}: {}; a router spreads \
             requests without knowing that, so change them one after the other",
            wish.name,
            list.join(", ")
        );
        own("workers-differ", words, false)
    })
}

/// Flags of another worker that do nothing there, or will keep it from starting again.
fn dead_flags(peer: &Peer) -> Vec<Finding> {
    let Some(r) = &peer.readback else { return Vec::new() };
    let has = |name: &str| {
        let flag = format!("--{name}");
        r.command.split([' ', '=']).any(|w| w == flag)
    };
    let mut all: Vec<Finding> = Vec::new();
    for name in rules::spoken_of(r.kind).filter(|n| has(n)) {
        for rule in rules::about(r, name) {
            if !matches!(rule.effect, Effect::Dead | Effect::Ambiguous) {
                continue;
            }
            let role = peer.role().map_or(String::new(), |role| format!(" ({role})"));
            let words = format!("at {}{role}: {}", peer.worker.url, rule.words);
            let finding =
                Finding { id: rule.id.clone(), words, source: rule.source.clone(), blocks: false };
            if !all.contains(&finding) {
                all.push(finding);
            }
        }
    }
    all
}
