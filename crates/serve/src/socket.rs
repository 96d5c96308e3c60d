//! A client's socket as HTTP reads and writes it: it notices clients that take nothing, and tells
//! those that have gone from those that only send no more.

use crate::peer;
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Sleep, sleep};

/// A client that takes no byte of its answer for this long is gone.
const WRITE_STALL_SECONDS: u64 = 120;
/// Of a client elsewhere: one that ends its sending this soon after its request's last byte has
/// said all it has to say; one that does so later has left.
const SAID_ALL: Duration = Duration::from_millis(100);
/// When a client that sends no more is looked at again: soon, as a closing socket lets go of its
/// process a moment after it has said so, then ever less often.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_LAST: Duration = Duration::from_secs(1);
/// How long a request's reader may take to see that it has come whole.
const GRACE: Duration = Duration::from_millis(20);

/// Where a connection's exchange of a request for an answer stands.
#[derive(Clone, Default, Debug)]
pub struct Exchange(Arc<AtomicU8>);

/// No request has begun.
const IDLE: u8 = 0;
/// A request has begun and has not come whole.
const READING: u8 = 1;
/// A request has come whole and its answer is not complete.
const OWED: u8 = 2;
/// Bytes have come that are no request's yet: its head is not whole.
const HEAD: u8 = 3;

impl Exchange {
    /// A request's body that notes its end.
    pub fn request<B>(&self, body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        self.set(if body.is_end_stream() { OWED } else { READING });
        Body::new(Noted { body, exchange: self.clone(), at_end: OWED })
    }

    /// An answer's body that notes its end.
    pub fn answer(&self, body: Body) -> Body {
        Body::new(Noted { body, exchange: self.clone(), at_end: IDLE })
    }

    /// True where a request has begun whose head has not come whole.
    pub fn is_in_head(&self) -> bool {
        self.0.load(Ordering::Relaxed) == HEAD
    }

    /// Bytes have come.
    fn heard(&self) {
        // Of a request that is known they are its body, or the next one's beginning.
        let _ = self.0.compare_exchange(IDLE, HEAD, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Relaxed);
    }
}

/// A body whose end brings the exchange on.
struct Noted<B> {
    body: B,
    exchange: Exchange,
    at_end: u8,
}

impl<B: HttpBody + Unpin> HttpBody for Noted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let ended = frame.is_none() || self.body.is_end_stream();
        if ended && self.at_end == OWED {
            self.exchange.set(OWED);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Noted<B> {
    fn drop(&mut self) {
        // An answer is dropped once it is written, or with its connection.
        if self.at_end == IDLE {
            self.exchange.set(IDLE);
        }
    }
}

/// What is done about a client that sends no more.
enum Silent {
    /// The request may have come whole without its reader having seen it: a moment more.
    Grace(Pin<Box<Sleep>>),
    /// Until the next look at it.
    Waiting(Pin<Box<Sleep>>),
    /// Being looked at.
    Looking(JoinHandle<Option<bool>>),
    /// It waits for its answer; writing will tell.
    Trusted,
}

/// See the module.
pub struct Socket {
    stream: TcpStream,
    ends: Option<(SocketAddr, SocketAddr)>,
    exchange: Exchange,
    stalled: Option<Pin<Box<Sleep>>>,
    last_byte: Instant,
    /// It stopped sending in one breath with its last request.
    said_all: bool,
    silent: Option<Silent>,
    next_look: Duration,
}

impl Socket {
    /// Of a connection whose exchanges `exchange` follows.
    pub fn new(stream: TcpStream, exchange: Exchange) -> Socket {
        let ends = stream.local_addr().ok().zip(stream.peer_addr().ok());
        Socket {
            stream,
            ends,
            exchange,
            stalled: None,
            last_byte: Instant::now(),
            said_all: false,
            silent: None,
            next_look: LOOK_FIRST,
        }
    }

    /// The end of what the client sends: told to HTTP as an end where nothing is owed, as an error
    /// where the client is gone, and not at all while it waits for its answer.
    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gone = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        let wait = |time| Pin::from(Box::new(sleep(time)));
        loop {
            let state = self.exchange.0.load(Ordering::Relaxed);
            self.silent = match (state, self.silent.take()) {
                (IDLE | HEAD, _) => return Poll::Ready(Ok(())),
                (READING, Some(Silent::Grace(mut grace))) => match grace.as_mut().poll(cx) {
                    Poll::Ready(()) => return Poll::Ready(Ok(())),
                    Poll::Pending => {
                        self.silent = Some(Silent::Grace(grace));
                        return Poll::Pending;
                    }
                },
                (READING, _) => Some(Silent::Grace(wait(GRACE))),
                (_, Some(Silent::Waiting(mut time))) => match time.as_mut().poll(cx) {
                    Poll::Ready(()) => None,
                    Poll::Pending => {
                        self.silent = Some(Silent::Waiting(time));
                        return Poll::Pending;
                    }
                },
                (_, Some(Silent::Looking(mut look))) => match Pin::new(&mut look).poll(cx) {
                    Poll::Ready(Ok(Some(true))) => return gone(),
                    Poll::Ready(Ok(Some(false))) => {
                        let time = self.next_look;
                        self.next_look = (time * 4).min(LOOK_LAST);
                        Some(Silent::Waiting(wait(time)))
                    }
                    Poll::Ready(_) if self.said_all => Some(Silent::Trusted),
                    Poll::Ready(_) => return gone(),
                    Poll::Pending => {
                        self.silent = Some(Silent::Looking(look));
                        return Poll::Pending;
                    }
                },
                (_, Some(Silent::Trusted)) => {
                    self.silent = Some(Silent::Trusted);
                    return Poll::Pending;
                }
                (_, None | Some(Silent::Grace(_))) => {
                    let Some((local, peer)) = self.ends else { return gone() };
                    let look = spawn_blocking(move || peer::is_gone(local, peer));
                    Some(Silent::Looking(look))
                }
            };
        }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let limit = || Box::pin(sleep(Duration::from_secs(WRITE_STALL_SECONDS)));
        match self.stalled.get_or_insert_with(limit).as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.silent.is_some() {
            return self.poll_silent(cx);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.remaining() == 0 {
            self.last_byte = Instant::now();
            if buf.filled().len() > before {
                self.exchange.heard();
            }
            return Poll::Ready(Ok(()));
        }
        self.said_all = self.last_byte.elapsed() <= SAID_ALL;
        self.next_look = LOOK_FIRST;
        self.poll_silent(cx)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
