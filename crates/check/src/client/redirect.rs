//! Where an answer leads instead: a redirect is not followed, since what is asked is what is judged.

use super::answer::shorten;
use super::target::Target;
use hyper::Response;
use hyper::header::LOCATION;

/// Words for an answer with status 3xx to `path`, with the address that would have to be given;
/// nothing for any other answer.
pub(super) fn words<B>(target: &Target, path: &str, response: &Response<B>) -> Option<String> {
    if !response.status().is_redirection() {
        return None;
    }
    let location = response.headers().get(LOCATION).map(|l| String::from_utf8_lossy(l.as_bytes()));
    let Some(location) = location.filter(|l| !l.trim().is_empty()) else {
        return Some("it redirects, and does not say where to".into());
    };
    let whole = absolute(target, location.trim());
    let (shown, asked) = (shorten(&whole), whole.split(['?', '#']).next().unwrap_or(""));
    let base = asked.trim_end_matches('/').strip_suffix(path);
    Some(match base.filter(|base| Target::parse(base).is_ok()) {
        Some(base) => {
            format!("it redirects to {shown}; '{}' is the address to give", shorten(base))
        }
        None => {
            format!("it redirects to {shown}, which is not followed: give a server's own address")
        }
    })
}

/// The whole address of a `Location`, which may begin at the scheme, the host or the path.
fn absolute(target: &Target, location: &str) -> String {
    if location.contains("://") {
        return location.into();
    }
    match location.strip_prefix("//") {
        Some(rest) => format!("http://{rest}"),
        None if location.starts_with('/') => format!("http://{}{location}", target.authority),
        None => format!("{target}/{location}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, location: Option<&str>) -> Option<String> {
        let target = Target::parse("http://a:1/x").unwrap();
        let mut response = Response::builder().status(status);
        if let Some(location) = location {
            response = response.header(LOCATION, location);
        }
        words(&target, "/v1/models", &response.body(()).unwrap())
    }

    /// What was found: a redirect was "status 302: " and no more.
    #[test]
    fn a_redirect_says_where_it_leads_and_which_address_to_give() {
        for (location, address) in [
            ("http://b:2/v1/models", "http://b:2"),
            ("http://b/y/v1/models/?z=1", "http://b/y"),
            ("//b:2/v1/models", "http://b:2"),
            ("/y/v1/models", "http://a:1/y"),
        ] {
            let said = said(302, Some(location)).unwrap();
            assert!(said.ends_with(&format!("; '{address}' is the address to give")), "{said}");
        }
        for location in ["https://b/v1/models", "/login", "login?next=%2Fv1", "http:///v1/models"] {
            let said = said(307, Some(location)).unwrap();
            assert!(said.starts_with("it redirects to http"), "{said}");
            assert!(said.contains("give a server's own address"), "{said}");
        }
        assert_eq!(said(301, None).unwrap(), "it redirects, and does not say where to");
        assert_eq!(said(404, Some("http://b:2/v1/models")), None);
        let long = format!("http://b/{}", "x".repeat(5000));
        assert!(said(302, Some(&long)).unwrap().len() < 500);
    }
}
