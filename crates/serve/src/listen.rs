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
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// From a connection's idle moment to the end of its next request's head.
const HEAD_SECONDS: u64 = 60;
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
            0 => write!(f, "every connection ended by itself"),
            n => write!(f, "{n} connections were cut"),
        }
    }
}

/// Serves `router` on `listener` until `stop` ends, then lets running answers finish until `cut`
/// ends.
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
        let accept = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (accept(&listener).await, slot)
        };
        tokio::select! {
            biased;
            () = &mut stop => break,
            (stream, slot) = accept => {
                let connection = connection(stream, router.clone(), stopping.subscribe());
                connections.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    // Nobody listens only where no connection is open.
    let _ = stopping.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        () = cut => {}
    }
    Drained { connections_cut: connections.len() }
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

async fn connection(stream: TcpStream, router: Router, mut stopping: watch::Receiver<bool>) {
    let peer = stream.peer_addr().ok();
    let exchange = Exchange::default();
    let io = TokioIo::new(Socket::new(stream, exchange.clone()));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = router.call(request.map(|body| exchange.request(body)));
        let exchange = exchange.clone();
        async move { Ok::<_, Infallible>(answer.await?.map(|body| exchange.answer(body))) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(HEAD_SECONDS))
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(io, service);
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = stopped(&mut stopping) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(peer = peer.map(|p: SocketAddr| p.to_string()), "connection ended: {e}");
    }
}

/// Returns once a stop was asked for; an error means that the server is gone, which is one too.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}
