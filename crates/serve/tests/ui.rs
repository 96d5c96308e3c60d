//! The operators' page from outside a browser: what is sent with it, and what it may ask.

mod common;

use common::{Server, ToyConfig};
use serde_json::json;

#[test]
fn the_page_may_ask_nobody_but_its_server() {
    let server = Server::start();
    for (path, kind) in
        [("/ui", "text/html"), ("/ui/page.css", "text/css"), ("/ui/page.js", "text/javascript")]
    {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some(&*format!("{kind}; charset=utf-8")));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        for word in ["unsafe", "*", "http"] {
            assert!(!policy.contains(word), "{policy}");
        }
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("x-frame-options"), Some("DENY"));
        // Namespaces are names, not addresses; the icon is a data URL.
        let text = answer.text().replace("http://www.w3.org/2000/svg", "");
        for word in ["http://", "https://", "//cdn", "innerHTML", "insertAdjacentHTML", "eval("] {
            assert!(!text.contains(word), "{path} holds {word}");
        }
        assert!(!text.contains(" style=") && !text.contains(" onclick="), "{path}");
    }
}

#[test]
fn every_place_that_the_script_fills_is_on_the_page() {
    let server = Server::start();
    let (html, script) = (server.get("/ui").text(), server.get("/ui/page.js").text());
    let mut found = 0;
    for call in [" at(\"", "(at(\"", " say(\"", " cells(\""] {
        for rest in script.split(call).skip(1) {
            let id = rest.split('"').next().unwrap();
            assert!(html.contains(&format!("id=\"{id}\"")), "no element {id}");
            found += 1;
        }
    }
    assert!(found > 40, "{found}");
}

#[test]
fn the_page_is_open_and_its_data_wants_the_key() {
    let server = Server::with(ToyConfig::default(), &[("server.api-key", "k1")]);
    let root = server.get("/");
    assert_eq!((root.status, root.header("location")), (307, Some("/ui")));
    assert_eq!(server.get("/ui").status, 200);
    assert!(!server.get("/ui").text().contains("toy"), "the page itself holds no data");
    assert_eq!(server.get("/ui/data").status, 401);
    let mut client = server.client();
    client.send("GET", "/ui/data", &[("Authorization", "Bearer k1")], b"");
    let answer = client.answer();
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let data = answer.json();
    assert_eq!(
        (&data["model_name"], &data["alarms"][0]["alarm"]),
        (&json!("toy"), &json!("audit_off"))
    );
    assert_eq!(data["engine"]["buckets"][0]["bucket"], "decode-8");
    assert_eq!(data["engine"]["buckets"][0]["audit_age_s"], json!(null));
}
