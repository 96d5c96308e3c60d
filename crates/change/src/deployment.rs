//! The servers around the one that is changed: the other workers of its router, each with its role.
//!
//! With prefill and decode on workers of their own, a worker answers no request by itself, the
//! router tells of its prefill workers alone, and a limit may do nothing on one side. So settings
//! are read from each worker directly, requests go through the router, and what is predicted looks
//! at all of them.

use crate::address::pick;
use crate::readback::{self, Readback};
use crate::router;
use crate::target::{Kind, Launch, Target, Worker};
use crate::web::Web;

/// Workers that are asked, at most.
const PEERS_MAX: usize = 64;

/// Another worker of the same deployment.
#[derive(Clone, PartialEq, Debug)]
pub struct Peer {
    /// Where it is, and what the target or the router says that it does.
    pub worker: Worker,
    /// What it says of itself; nothing where it does not answer.
    pub readback: Option<Readback>,
}

impl Peer {
    /// What it does: as it says itself, else as is said of it.
    pub fn role(&self) -> Option<&str> {
        let own = self.readback.as_ref().and_then(|r| r.role.as_deref());
        own.or(self.worker.role.as_deref())
    }
}

/// What stands around a server.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Deployment {
    /// The other workers.
    pub peers: Vec<Peer>,
    /// What the target or the router says that the server itself does.
    pub said_role: Option<String>,
    /// Why the router could not be asked, where there is one and it could not.
    pub router_fault: Option<String>,
}

/// True for a worker that has one side of a request only.
pub fn is_one_side(role: Option<&str>) -> bool {
    matches!(role, Some("prefill" | "decode"))
}

/// Where requests go to reach a server: through its router, where it has one side of them only.
pub fn front<'a>(target: &'a Target, role: Option<&str>) -> Option<&'a str> {
    target.router.as_deref().filter(|_| is_one_side(role))
}

/// Asks the router for its workers, and each of them for its settings.
pub fn around(target: &Target, web: &Web) -> Deployment {
    let mut all = target.workers.clone();
    let mut router_fault = None;
    if let Some(url) = &target.router {
        match web.beside(url).and_then(|router| router::workers(&router)) {
            Ok(list) => {
                let pairs = pairs(&all, &list);
                for (worker, known) in list.into_iter().zip(pairs) {
                    match known {
                        Some(at) => all[at].role = all[at].role.take().or(worker.role),
                        None => all.push(worker),
                    }
                }
            }
            Err(e) => router_fault = Some(e.to_string()),
        }
    }
    let (own, mut all) = router::apart(all, &target.url);
    let said_role = own.and_then(|w| w.role);
    all.truncate(PEERS_MAX);
    let peers = all.into_iter().map(|worker| Peer { readback: ask(target, web, &worker), worker });
    Deployment { peers: peers.collect(), said_role, router_fault }
}

/// Which of the known workers each listed one is: they have to be each other's best match.
fn pairs(known: &[Worker], listed: &[Worker]) -> Vec<Option<usize>> {
    let known: Vec<&str> = known.iter().map(|w| w.url.as_str()).collect();
    let listed: Vec<&str> = listed.iter().map(|w| w.url.as_str()).collect();
    let best = |all: &[&str], url: &str| pick(all, url, true).ok().flatten();
    let is_back =
        |url: &str, at: usize| best(&listed, known[at]).is_some_and(|back| listed[back] == url);
    let one = |url: &&str| best(&known, url).filter(|&at| is_back(url, at));
    listed.iter().map(one).collect()
}

fn ask(target: &Target, web: &Web, worker: &Worker) -> Option<Readback> {
    let as_target =
        Target { kind: target.kind, launch: Launch::Unknown, ..Target::direct(&worker.url) };
    readback::read(&web.beside(&worker.url).ok()?, &as_target).ok()
}

/// True for a server whose workers answer no request by themselves.
pub fn needs_router(kind: Kind, role: Option<&str>) -> bool {
    kind == Kind::Sglang && is_one_side(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_through_the_router_for_one_side_alone() {
        let target = Target { router: Some("http://r:1".into()), ..Target::direct("http://w:1") };
        assert_eq!(front(&target, Some("decode")), Some("http://r:1"));
        assert_eq!(front(&target, None), None, "a whole worker answers by itself");
        assert_eq!(front(&Target::direct("http://w:1"), Some("prefill")), None);
        assert!(needs_router(Kind::Sglang, Some("prefill")) && !needs_router(Kind::Vllm, None));
    }

    /// Two servers at one port of two addresses of this machine once counted as one.
    #[test]
    fn workers_at_one_port_of_two_addresses_are_two() {
        let of = |url: &str| Worker { url: url.into(), role: None };
        let two = [of("http://127.0.0.2:7"), of("http://127.0.0.1:7")];
        assert_eq!(pairs(&[of("http://localhost:7")], &two), [None, Some(0)]);
        assert_eq!(pairs(&[of("http://127.0.0.9:7")], &two[..1]), [Some(0)], "may be the same");
        let (own, others) = router::apart(two.to_vec(), "http://127.0.0.1:7");
        assert_eq!((own, others), (Some(two[1].clone()), vec![two[0].clone()]));
    }

    #[test]
    fn a_worker_s_own_word_of_its_role_goes_first() {
        let worker = Worker { url: "http://w:1".into(), role: Some("prefill".into()) };
        let mut readback = Readback::none(Kind::Sglang);
        readback.role = Some("decode".into());
        let silent = Peer { worker: worker.clone(), readback: None };
        assert_eq!(silent.role(), Some("prefill"));
        assert_eq!(Peer { worker, readback: Some(readback) }.role(), Some("decode"));
    }
}
