//! Every way a request can go wrong, and its OpenAI shape:
//! `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use core::fmt;
use lockstep_flow::generation::GenerationError;
use lockstep_flow::{Failure, Refusal};
use serde_json::{Value, json};

/// What is answered instead of a result.
#[derive(Clone, PartialEq, Debug)]
pub enum ApiError {
    /// 400: the body is not the JSON that this route takes.
    Body { what: String },
    /// 400: a field has the wrong type or a value out of its range.
    Field { param: String, what: String },
    /// 422: well-formed, but more than this model or server can do.
    Unsupported { param: String, what: String },
    /// 400: a field that this endpoint does not have and that would change the answer.
    Parameter { param: String, what: String },
    /// 401: no key, or not the right one.
    Unauthorized { what: &'static str },
    /// 403: an admin route that this server does not open.
    Forbidden { what: &'static str },
    /// 404: no such route.
    NoRoute { method: String, path: String },
    /// 404: no such model.
    NoModel { asked: String, served: String },
    /// 405: the route exists, the method does not.
    Method { method: String, path: String },
    /// 408: the body did not arrive in time.
    BodyTimeout { seconds: u64 },
    /// 413: the body is too large.
    BodyTooLarge { limit_bytes: usize },
    /// 415: an admin route that wants JSON said so.
    MediaType,
    /// 415: the body is in a coding that is not read here.
    ContentEncoding { found: String },
    /// 501: the transfer is in a coding that is not read here.
    TransferEncoding { found: String },
    /// 417: an expectation that is not met here.
    Expectation { found: String },
    /// 400, 429 or 503: not admitted. `param` is where the prompt came from.
    Refused { refusal: Refusal, param: &'static str },
    /// 499, 500, 503 or 504: admitted, then it failed.
    Failed(Failure),
    /// 404, 409, 422 or 503: asked of generations, and not done.
    Generation(GenerationError),
    /// 422: a staged generation did not pass.
    Rejected { number: u64, reason: String },
    /// 503: the health probe got no answer.
    Unhealthy { what: String },
    /// 500: a bug of ours.
    Internal { what: String },
}

impl ApiError {
    /// A field's error.
    pub fn field(param: impl Into<String>, what: impl Into<String>) -> ApiError {
        ApiError::Field { param: param.into(), what: what.into() }
    }

    /// A field that this endpoint does not have.
    pub fn parameter(param: impl Into<String>, what: impl Into<String>) -> ApiError {
        ApiError::Parameter { param: param.into(), what: what.into() }
    }

    /// Something understood that cannot be done.
    pub fn unsupported(param: impl Into<String>, what: impl Into<String>) -> ApiError {
        ApiError::Unsupported { param: param.into(), what: what.into() }
    }

    /// The status. 499 is the convention for "the client gave up": unlike a 5xx it is not retried
    /// by client libraries.
    pub fn status(&self) -> StatusCode {
        let code = match self {
            ApiError::Body { .. } | ApiError::Field { .. } | ApiError::Parameter { .. } => 400,
            ApiError::Unsupported { .. } | ApiError::Rejected { .. } => 422,
            ApiError::Generation(e) => match e {
                GenerationError::Knob { .. } | GenerationError::NotOffered => 422,
                GenerationError::Unknown { .. } => 404,
                GenerationError::Busy { .. }
                | GenerationError::State { .. }
                | GenerationError::Watched { .. }
                | GenerationError::Refused { .. } => 409,
                GenerationError::Draining { .. } | GenerationError::Stopped { .. } => 503,
            },
            ApiError::Unauthorized { .. } => 401,
            ApiError::Forbidden { .. } => 403,
            ApiError::NoRoute { .. } | ApiError::NoModel { .. } => 404,
            ApiError::Method { .. } => 405,
            ApiError::BodyTimeout { .. } => 408,
            ApiError::BodyTooLarge { .. } => 413,
            ApiError::MediaType | ApiError::ContentEncoding { .. } => 415,
            ApiError::Expectation { .. } => 417,
            ApiError::TransferEncoding { .. } => 501,
            ApiError::Refused { refusal: Refusal::QueueFull { .. }, .. } => 429,
            ApiError::Refused { refusal: Refusal::NotServing { .. }, .. } => 503,
            ApiError::Refused { .. } => 400,
            ApiError::Failed(Failure::Cancelled) => 499,
            ApiError::Failed(Failure::DeadlineExceeded) => 504,
            ApiError::Failed(Failure::ShuttingDown) | ApiError::Unhealthy { .. } => 503,
            ApiError::Failed(_) | ApiError::Internal { .. } => 500,
        };
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn kind(&self) -> &'static str {
        match self.status().as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            499 => "request_cancelled",
            400..500 => "invalid_request_error",
            503 => "service_unavailable",
            504 => "timeout_error",
            _ => "server_error",
        }
    }

    fn code(&self) -> Option<&'static str> {
        Some(match self {
            ApiError::Body { .. } => "invalid_json",
            ApiError::Field { .. } => "invalid_value",
            ApiError::Unsupported { .. } => "unsupported",
            ApiError::Parameter { .. } => "unsupported_parameter",
            ApiError::Unauthorized { .. } => "invalid_api_key",
            ApiError::Forbidden { .. } => "admin_key_required",
            ApiError::NoRoute { .. } => "route_not_found",
            ApiError::NoModel { .. } => "model_not_found",
            ApiError::Method { .. } => "method_not_allowed",
            ApiError::BodyTimeout { .. } => "body_timeout",
            ApiError::BodyTooLarge { .. } => "body_too_large",
            ApiError::MediaType => "json_required",
            ApiError::ContentEncoding { .. } => "unsupported_content_encoding",
            ApiError::TransferEncoding { .. } => "unsupported_transfer_encoding",
            ApiError::Expectation { .. } => "unsupported_expectation",
            ApiError::Refused { refusal, .. } => match refusal {
                Refusal::QueueFull { .. } => "queue_full",
                Refusal::TooManySequences { .. } => "too_many_sequences",
                Refusal::NotServing { .. } => "not_serving",
                Refusal::ContextTooLong { .. } => "context_length_exceeded",
                Refusal::PoolTooSmall { .. } => "kv_pool_too_small",
                Refusal::EmptyPrompt => "empty_prompt",
                Refusal::TokenOutOfRange { .. } => "token_out_of_range",
                Refusal::Sampling(_) => "invalid_value",
            },
            ApiError::Failed(Failure::Cancelled) => "request_cancelled",
            ApiError::Failed(Failure::DeadlineExceeded) => "deadline_exceeded",
            ApiError::Failed(Failure::ShuttingDown) => "shutting_down",
            ApiError::Failed(Failure::Grammar(_)) => "grammar_failed",
            ApiError::Failed(Failure::Engine { .. }) => "engine_failed",
            ApiError::Failed(Failure::Audit { .. }) => "audit_mismatch",
            ApiError::Generation(e) => match e {
                GenerationError::Knob { .. } => "knob_not_live",
                GenerationError::Unknown { .. } => "generation_not_found",
                GenerationError::Busy { .. } => "generation_busy",
                GenerationError::State { .. } => "generation_state",
                GenerationError::Watched { .. } => "generation_watched",
                GenerationError::Refused { .. } => "generation_refused",
                GenerationError::Draining { .. } | GenerationError::Stopped { .. } => "not_serving",
                GenerationError::NotOffered => "unsupported",
            },
            ApiError::Rejected { .. } => "generation_rejected",
            ApiError::Unhealthy { .. } => "unhealthy",
            ApiError::Internal { .. } => return None,
        })
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::Field { param, .. }
            | ApiError::Unsupported { param, .. }
            | ApiError::Parameter { param, .. } => Some(param),
            ApiError::NoModel { .. } => Some("model"),
            ApiError::Generation(GenerationError::Knob { name, .. }) => Some(name),
            ApiError::Refused { refusal: Refusal::Sampling(e), .. } => Some(e.param),
            ApiError::Refused { refusal, param } => match refusal {
                Refusal::QueueFull { .. } | Refusal::NotServing { .. } => None,
                _ => Some(param),
            },
            _ => None,
        }
    }

    /// The body, as sent alone or inside a stream.
    pub fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiError::Body { what } => write!(f, "the body is not usable: {what}"),
            ApiError::Field { param, what }
            | ApiError::Unsupported { param, what }
            | ApiError::Parameter { param, what } => write!(f, "'{param}' {what}"),
            ApiError::Unauthorized { what } | ApiError::Forbidden { what } => f.write_str(what),
            ApiError::NoRoute { method, path } => {
                write!(
                    f,
                    "there is no {method} {path} here; README.md lists the routes, /ui is the page to look at"
                )
            }
            ApiError::NoModel { asked, served } => {
                write!(f, "the model '{asked}' is not served here; this server has '{served}'")
            }
            ApiError::Method { method, path } => {
                write!(f, "{path} does not take {method}; the Allow header says what it takes")
            }
            ApiError::BodyTimeout { seconds } => {
                write!(f, "the request body was not complete after {seconds} s")
            }
            ApiError::BodyTooLarge { limit_bytes } => {
                write!(f, "the request body exceeds {limit_bytes} bytes")
            }
            ApiError::MediaType => {
                f.write_str("admin routes take a JSON body: send Content-Type: application/json")
            }
            ApiError::ContentEncoding { found } => write!(
                f,
                "the body's Content-Encoding is '{found}', which is not read here; send it as it is"
            ),
            ApiError::TransferEncoding { found } => write!(
                f,
                "the Transfer-Encoding '{found}' is not read here; send chunked or Content-Length"
            ),
            ApiError::Expectation { found } => {
                write!(f, "the expectation '{found}' is not met here; only 100-continue is")
            }
            // The number by the name that the request has for it.
            ApiError::Refused { refusal, param: param @ "max_completion_tokens" } => {
                f.write_str(&refusal.to_string().replace("max_tokens", param))
            }
            ApiError::Refused { refusal, .. } => refusal.fmt(f),
            ApiError::Failed(failure) => failure.fmt(f),
            ApiError::Generation(e) => e.fmt(f),
            ApiError::Rejected { number, reason } => {
                write!(
                    f,
                    "generation {number} was rejected, and what serves is as it was: {reason}"
                )
            }
            ApiError::Unhealthy { what } => write!(f, "unhealthy: {what}"),
            ApiError::Internal { what } => write!(f, "internal error: {what}"),
        }
    }
}

impl core::error::Error for ApiError {}

impl From<GenerationError> for ApiError {
    fn from(e: GenerationError) -> ApiError {
        ApiError::Generation(e)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.to_json())).into_response();
        let mut put = |name: HeaderName, value: HeaderValue| {
            response.headers_mut().insert(name, value);
        };
        match &self {
            ApiError::Unauthorized { .. } => {
                put(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ApiError::Refused { refusal: Refusal::QueueFull { retry_after_s, .. }, .. } => {
                put(header::RETRY_AFTER, HeaderValue::from(*retry_after_s));
            }
            ApiError::ContentEncoding { .. } => {
                put(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
                put(header::CONNECTION, HeaderValue::from_static("close"));
            }
            ApiError::BodyTimeout { .. }
            | ApiError::BodyTooLarge { .. }
            | ApiError::TransferEncoding { .. }
            | ApiError::Expectation { .. } => {
                put(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_statuses_are_the_documented_ones() {
        let full = Refusal::QueueFull { queued: 4, limit: 4, retry_after_s: 7 };
        let e = ApiError::Refused { refusal: full, param: "messages" };
        assert_eq!(e.status(), 429);
        let response = e.clone().into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "7");
        let body = e.to_json();
        assert_eq!(body["error"]["code"], "queue_full");
        assert_eq!(body["error"]["param"], Value::Null);

        let long =
            Refusal::ContextTooLong { prompt_tokens: 9, max_tokens: 9, context_max_tokens: 8 };
        let e = ApiError::Refused { refusal: long, param: "messages" };
        assert_eq!(e.status(), 400);
        assert_eq!(e.to_json()["error"]["param"], "messages");
        assert_eq!(e.to_json()["error"]["code"], "context_length_exceeded");
        assert_eq!(ApiError::Failed(Failure::Cancelled).status().as_u16(), 499);
    }
}
