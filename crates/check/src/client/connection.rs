//! Keep-alive connections to one server, straight to it: no proxy is asked, whatever the
//! environment says.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Servers close what was idle for five seconds or more; a request must not meet that.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// Bytes of an answer's head, at most; also what is read at once.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Header fields of an answer, at most.
const HEADERS_MAX: usize = 128;

/// A connection. Dropping it closes it.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
    /// It has brought an answer before, so that the server may have closed it since.
    is_used: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why a request has no answer.
pub(crate) enum SendError {
    /// It never left: the connection had been closed.
    Unsent(Box<Request<Full<Bytes>>>),
    /// It may have left.
    Sent(hyper::Error),
}

impl Connection {
    async fn open(authority: &str) -> Result<Connection, String> {
        let stream = TcpStream::connect(authority).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        let driver = tokio::spawn(async move {
            // What goes wrong here is told to whoever waits for the answer.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver: driver.abort_handle(), is_used: false })
    }

    /// Whether it has brought an answer before.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sends a request; the head of the answer comes back.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendError> {
        self.sender.try_send_request(request).await.map_err(|mut e| match e.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Sent(e.into_error()),
        })
    }
}

/// Idle connections, the last one used on top.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<(Connection, Instant)>>,
    /// The server closes connections after an answer without saying so: llama.cpp after a stream.
    is_closing: AtomicBool,
}

impl Pool {
    /// A connection that is ready for a request.
    pub(crate) async fn take(&self, authority: &str) -> Result<Connection, String> {
        while let Some(mut connection) = self.pop() {
            if connection.sender.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        Connection::open(authority).await
    }

    fn pop(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, since) = idle.pop()?;
        if since.elapsed() > IDLE_MAX {
            // The ones below are older still.
            idle.clear();
            return None;
        }
        Some(connection)
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn give(&self, mut connection: Connection) {
        if !self.is_closing.load(Relaxed) && !connection.sender.is_closed() {
            connection.is_used = true;
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push((connection, Instant::now()));
        }
    }

    /// Keeps no connection from now on.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Relaxed);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
