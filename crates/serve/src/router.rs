//! Which path goes where.

use crate::app::Shared;
use crate::error::ApiError;
use crate::{admin, auth, chat, completions, head, info, ops, probe, tokens, ui};
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

/// Every route of the server.
pub fn router(app: Shared) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/v1/loads", get(info::loads))
        .route("/health", get(probe::health))
        .route("/health_generate", get(probe::health_generate))
        .route("/server_info", get(info::server_info))
        .route("/get_server_info", get(info::server_info))
        .route("/model_info", get(info::model_info))
        .route("/metrics", get(ops::metrics))
        .route("/", get(ui::root))
        .route("/ui", get(ui::page))
        .route("/ui/page.css", get(ui::style))
        .route("/ui/page.js", get(ui::script))
        .route("/ui/data", get(ui::data))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/abort_request", post(ops::abort_request))
        .route("/admin/generations", get(admin::list).post(admin::stage))
        .route("/admin/generations/{number}", get(admin::one))
        .route("/admin/generations/{number}/flip", post(admin::flip))
        .route("/admin/generations/{number}/retire", post(admin::retire))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(middleware::from_fn(head::layer))
        .layer(middleware::from_fn_with_state(app.clone(), auth::layer))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

async fn no_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::NoRoute { method: request.method().to_string(), path }
}

async fn wrong_method(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::Method { method: request.method().to_string(), path }
}

/// Counts answers and names the server's request, whatever happened.
async fn observe(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let name = app.ids.response("req");
    let mut response = next.run(request).await.into_response();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    app.metrics.count_response(route, response.status().as_u16());
    if let Ok(value) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), value);
    }
    response
}
