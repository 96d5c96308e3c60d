//! `/ui`: a page for operators, and the data that it asks for each second.
//!
//! The page, its style and its script are in the binary; it asks nobody but this server, and the
//! policy that is sent with it lets it ask nobody else. The page itself holds no data and is open
//! like the probes; `/ui/data` wants the API key like every other route, and the page has a field
//! for it.

use crate::app::Shared;
use crate::load::per_second;
use crate::state;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::{Value, json};

/// Where the page and its parts are: open routes.
pub const ROUTES: [&str; 4] = ["/", "/ui", "/ui/page.css", "/ui/page.js"];

const HTML: &str = include_str!("ui/page.html");
const CSS: &str = include_str!("ui/page.css");
const JS: &str = include_str!("ui/page.js");

/// Only this server's own script and style, only this server asked, nowhere shown in a frame.
/// `'self'` fences scripts to files of this server, and none of those holds a client's words.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

fn part(content_type: &'static str, body: &'static str) -> Response {
    let headers: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // A page of another version would not understand this server's data.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

/// `GET /`, which a person types into a browser.
pub async fn root() -> Redirect {
    Redirect::temporary("/ui")
}

/// `GET /ui`.
pub async fn page() -> Response {
    part("text/html; charset=utf-8", HTML)
}

/// `GET /ui/page.css`.
pub async fn style() -> Response {
    part("text/css; charset=utf-8", CSS)
}

/// `GET /ui/page.js`.
pub async fn script() -> Response {
    part("text/javascript; charset=utf-8", JS)
}

/// `GET /ui/data`: alarms, the engine's status, and the last minutes, one entry a second.
pub async fn data(State(app): State<Shared>) -> Response {
    let s = app.status();
    let samples = app.load.history();
    let pairs = || samples.windows(2);
    let rates: Vec<Value> =
        pairs().map(|w| json!((10.0 * per_second(&w[0], &w[1])).round() / 10.0)).collect();
    let body = json!({
        "model_name": app.model_name,
        "version": env!("CARGO_PKG_VERSION"),
        "alarms": state::alarms(&s, &app.load),
        "engine": state::engine(&s, app.load.tokens_per_second()),
        "history": {
            "tokens_per_second": rates,
            "running": pairs().map(|w| w[1].running).collect::<Vec<u32>>(),
            "queued": pairs().map(|w| w[1].queued).collect::<Vec<u32>>(),
        },
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
