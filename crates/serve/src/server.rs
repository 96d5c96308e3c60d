//! A server from its socket to its end.

use crate::app::{App, ServeConfig, Shared};
use crate::engine::Engine;
use crate::listen::{self, Drained};
use crate::{load, router};
use core::fmt;
use lockstep_text::TextModel;
use std::future::Future;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Why a server does not begin or go on.
#[derive(Debug)]
pub enum ServeError {
    /// The address cannot be listened on.
    Listen { host: String, port: u16, why: io::Error },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Listen { host, port, why } => {
                let is_v6 = host.parse::<Ipv6Addr>().is_ok();
                let (open, close) = if is_v6 { ("[", "]") } else { ("", "") };
                write!(f, "cannot listen on {open}{host}{close}:{port}: {why}")?;
                match why.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(f, "; another server has it: stop that one, or choose --port")
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "; ports below 1024 need privileges: choose --port")
                    }
                    _ => write!(f, "; --host names an address of this machine, --port the port"),
                }
            }
        }
    }
}

impl core::error::Error for ServeError {}

/// A socket that listens. Binding comes before loading, so that a busy port shows at once.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Listens on `host:port`; port 0 takes a free one. An IPv6 address may stand in brackets, as in
    /// a URL.
    pub async fn bind(host: &str, port: u16) -> Result<Bound, ServeError> {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bare.filter(|h| h.parse::<Ipv6Addr>().is_ok()).unwrap_or(host);
        let failed = |why| ServeError::Listen { host: host.into(), port, why };
        let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Bound { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` ends; then takes no new connection and no new request, lets what was
    /// accepted finish within `server.drain-timeout`, and shuts the engine down.
    pub async fn serve(
        self,
        config: ServeConfig,
        engine: Arc<dyn Engine>,
        text: Arc<TextModel>,
        stop: impl Future<Output = ()>,
    ) -> Drained {
        let loopback = self.address.ip().is_loopback();
        let app: Shared = Arc::new(App::new(config, Arc::clone(&engine), text, loopback));
        let s = &app.settings;
        let drain = Duration::from_secs(s.number("server.drain-timeout"));
        let log_every = Duration::from_secs(s.number("server.log-interval"));
        let connections_max = s.number("server.max-connections") as usize;
        let (ended, over) = oneshot::channel();
        let watch = load::watch(Arc::clone(&engine), Arc::clone(&app.load), log_every, over);
        let watch = tokio::spawn(watch);
        let stop = async {
            stop.await;
            app.stopping.store(true, Ordering::Relaxed);
            engine.drain();
            tracing::info!("draining: no new requests, {} s for those accepted", drain.as_secs());
        };
        let ending = Arc::clone(&engine);
        let cut = async move {
            sleep(drain).await;
            tracing::warn!("the drain timeout passed; ending what is left");
            // Gives every open request its final event, and the connections a moment to send it.
            end(ending).await;
            sleep(Duration::from_secs(1)).await;
        };
        let router = router::router(Arc::clone(&app));
        let drained = listen::serve(self.listener, router, connections_max, stop, cut).await;
        end(engine).await;
        // It has the last word, on all that was.
        let _ = ended.send(());
        if let Err(e) = watch.await {
            tracing::error!("watching the load panicked: {e}");
        }
        drained
    }
}

/// [`Engine::shutdown`] waits for the step loop, so it has a thread of its own.
async fn end(engine: Arc<dyn Engine>) {
    if let Err(e) = tokio::task::spawn_blocking(move || engine.shutdown()).await {
        tracing::error!("shutting the engine down panicked: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--host [::1]` was once looked up as a name, which nothing has.
    #[tokio::test]
    async fn a_host_may_be_an_ipv6_address_in_brackets() {
        let plain = TcpListener::bind(("::1", 0)).await;
        let words = |e: &io::Error| e.to_string();
        match (Bound::bind("[::1]", 0).await, plain) {
            (Ok(bound), _) => assert!(bound.address().is_ipv6()),
            // A machine without IPv6 says so.
            (Err(ServeError::Listen { why, .. }), Err(of_plain)) => {
                assert_eq!(words(&why), words(&of_plain));
            }
            (Err(e), Ok(_)) => panic!("{e}"),
        }
        for name in ["[localhost]", "[::1", "[127.0.0.1]"] {
            assert!(Bound::bind(name, 0).await.is_err(), "{name}");
        }
        let why = io::Error::from(io::ErrorKind::AddrInUse);
        let e = ServeError::Listen { host: "::1".into(), port: 5, why };
        assert!(e.to_string().starts_with("cannot listen on [::1]:5: "), "{e}");
        let why = io::Error::from(io::ErrorKind::NotFound);
        let e = ServeError::Listen { host: "[::1]:99".into(), port: 5, why };
        assert!(e.to_string().starts_with("cannot listen on [::1]:99:5: "), "{e}");
    }
}
