//! Sockets: accepting, time-outs, graceful end.

use crate::socket::{Exchange, Socket};
use axum::Router;
use core::convert::Infallible;
use core::fmt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// From a connection's idle moment to the end of its next request's head.
const HEAD_SECONDS: u64 = 60;
/// The same once the server ends: what has not come whole by then will hold nobody up.
const HEAD_SECONDS_AT_END: u64 = 2;
/// How long an answer to a client that came while the server ended may still take at its very end.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Bytes of a request head, and of the read buffer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What was left when the listener ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drained {
    /// Connections that were still open at the end of the drain.
    pub connections_cut: usize,
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.connections_cut {
            0 => write!(f, "no connection had to be cut"),
            n => write!(f, "{n} connections were cut"),
        }
    }
}

/// Serves `router` on `listener` until `stop` ends, then lets running answers finish until `cut`
/// ends. Who connects meanwhile is answered too, once: that the server ends is the router's to say,
/// with 503 and a reason, where a refused connection could be anything.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    stop: impl Future<Output = ()>,
    cut: impl Future<Output = ()>,
) -> Drained {
    let slots = Arc::new(Semaphore::new(connections_max));
    let (stopping, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            (stream, slot) = arrival(&listener, &slots) => {
                let connection = connection(stream, router.clone(), Some(stopping.subscribe()));
                connections.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    // Nobody listens only where no connection is open.
    let _ = stopping.send(true);
    let mut late = JoinSet::new();
    let mut cut = pin!(cut);
    while !connections.is_empty() {
        tokio::select! {
            biased;
            () = &mut cut => break,
            Some(_) = connections.join_next() => {}
            Some(_) = late.join_next(), if !late.is_empty() => {}
            (stream, slot) = arrival(&listener, &slots) => {
                let connection = connection(stream, router.clone(), None);
                late.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
        }
    }
    drop(listener);
    let all = async { while late.join_next().await.is_some() {} };
    let _ = timeout(LAST_WORDS, all).await;
    Drained { connections_cut: connections.len() }
}

/// The next client, and its place among those that may be connected.
async fn arrival(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let slot = Arc::clone(slots).acquire_owned().await.expect("nobody closes the semaphore");
    (accept(listener).await, slot)
}

/// The next client. Errors of the process (out of descriptors) pass by waiting; errors of one
/// client are its own.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Tokens are small and wanted at once. Where this fails, they are only later.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(e) if is_clients(&e) => {}
            Err(e) => {
                tracing::warn!("accepting connections failed, trying again in 1 s: {e}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

fn is_clients(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(e.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A client's exchanges, until it goes or `stopping` is told to. Without that a stop has been asked
/// for already, and there is one exchange.
async fn connection(stream: TcpStream, router: Router, stopping: Option<watch::Receiver<bool>>) {
    let peer = stream.peer_addr().ok();
    let exchange = Exchange::default();
    let io = TokioIo::new(Socket::new(stream, exchange.clone()));
    let router = TowerToHyperService::new(router);
    let following = exchange.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = router.call(request.map(|body| following.request(body)));
        let following = following.clone();
        async move { Ok::<_, Infallible>(answer.await?.map(|body| following.answer(body))) }
    });
    let head_seconds = if stopping.is_some() { HEAD_SECONDS } else { HEAD_SECONDS_AT_END };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(head_seconds))
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(stopping.is_some())
        .serve_connection(io, service);
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = stopped(stopping) => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = &mut served => ended,
                () = unfinished(&exchange) => return,
            }
        }
    };
    if let Err(e) = ended {
        tracing::debug!(peer = peer.map(|p: SocketAddr| p.to_string()), "connection ended: {e}");
    }
}

/// Returns where a request's head has begun and does not come whole in time; never where none has.
async fn unfinished(exchange: &Exchange) {
    sleep(Duration::from_secs(HEAD_SECONDS_AT_END)).await;
    if !exchange.is_in_head() {
        pending::<()>().await;
    }
}

/// Returns once a stop is asked for; an error means that the server is gone, which is one too.
async fn stopped(stopping: Option<watch::Receiver<bool>>) {
    match stopping {
        Some(mut stopping) => _ = stopping.wait_for(|stop| *stop).await,
        None => pending().await,
    }
}
